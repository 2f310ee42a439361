//! Two tables as DynamoDB keeps them, and TransactWriteItems as DynamoDB evaluates it.
//!
//! Bytes, items and transactions are interned, so that a state of the model is a few small numbers.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, OnceLock, RwLock};

use metashift::layout::outcome::Reason;
use metashift::layout::records::plan::Plan;
use metashift::layout::records::segment::Segment;
use metashift::layout::records::{self};
use metashift::layout::transaction::{Condition, Side, Transaction, Write};

macro_rules! by_id {
    ($name:ident) => {
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.id == other.0.id
            }
        }
        impl Eq for $name {}
        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.id.hash(state);
            }
        }
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.id.cmp(&other.0.id)
            }
        }
    };
}

/// The `val` of an item.
#[derive(Clone, Copy)]
pub struct Value(&'static Bytes);

struct Bytes {
    id: u32,
    bytes: &'static [u8],
    plan: OnceLock<Option<Plan>>,
    segment: OnceLock<Option<Segment>>,
}

/// The primary key of an item.
#[derive(Clone, Copy)]
pub struct Item(&'static Place);

struct Place {
    id: u32,
    side: Side,
    key: String,
}

/// A transaction that somebody has decided to send.
#[derive(Clone, Copy)]
pub struct Intent(&'static Prepared);

/// Who sends it, what it does in words, and the request itself.
pub struct Prepared {
    id: u32,
    /// Who sends it.
    pub who: Who,
    /// What it is, for a reader of a counterexample.
    pub label: String,
    /// As production builds it.
    pub transaction: Transaction,
    /// The same with interned items and values.
    pub actions: Vec<Step>,
}

by_id!(Value);
by_id!(Item);
by_id!(Intent);

/// One action of a transaction, interned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The item.
    pub item: Item,
    /// When it may.
    pub when: When,
    /// What it does.
    pub then: Then,
}

/// [`Condition`], interned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants of Condition")]
pub enum When {
    Always,
    Absent,
    Equals(Value),
    AbsentOrEquals(Value),
}

/// [`Write`], interned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants of Write")]
pub enum Then {
    Put(Value),
    Delete,
    Check,
}

/// Who sends a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// Whoever moves the plan on: opener, generation start, repair start and end, installer, releaser, publisher.
    Planner,
    /// A backfill worker.
    Backfill,
    /// A backfill worker that looks again at what could not move.
    Recheck,
    /// A repair worker.
    Repair,
    /// A verifier.
    Verifier,
    /// A dual node that sees v1 as the authority.
    Dual,
    /// A dual node that has seen the marker.
    Mirror,
    /// A node that writes v1 alone and checks the barrier.
    V1Only,
    /// A node from before the barrier, that writes v1 alone.
    Field,
    /// A node that writes v2 alone.
    V2Only,
    /// A person who removes the barrier by hand.
    Hand,
    /// Another migrator, of the field: its cursor, the barrier and the marker.
    Foreign,
}

impl Who {
    /// A mutation of a metadata node that takes v1 for the authority.
    pub fn is_before_marker(self) -> bool {
        matches!(self, Self::Dual | Self::V1Only | Self::Field)
    }

    /// A mutation of a metadata node.
    pub fn is_writer(self) -> bool {
        self.is_before_marker() || matches!(self, Self::Mirror | Self::V2Only)
    }
}

type Identity = (Who, Vec<Step>);

#[derive(Default)]
struct Pool {
    values: HashMap<&'static [u8], Value>,
    items: HashMap<(Side, Option<String>, String), Item>,
    intents: HashMap<Identity, Intent>,
}

static POOL: LazyLock<RwLock<Pool>> = LazyLock::new(RwLock::default);

fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap()
}

impl Value {
    /// Interns bytes.
    pub fn of(bytes: &[u8]) -> Self {
        if let Some(value) = POOL.read().unwrap().values.get(bytes) {
            return *value;
        }
        let mut pool = POOL.write().unwrap();
        if let Some(value) = pool.values.get(bytes) {
            return *value;
        }
        let bytes: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
        let id = number(pool.values.len());
        let value =
            Self(Box::leak(Box::new(Bytes { id, bytes, plan: OnceLock::new(), segment: OnceLock::new() })));
        pool.values.insert(bytes, value);
        value
    }

    /// The bytes.
    pub fn bytes(self) -> &'static [u8] {
        self.0.bytes
    }

    /// The plan that these bytes are.
    pub fn plan(self) -> &'static Plan {
        let decode = || records::decode(records::plan::KEY, self.0.bytes).ok();
        self.0.plan.get_or_init(decode).as_ref().unwrap()
    }

    /// The segment's record that these bytes are.
    pub fn segment(self) -> &'static Segment {
        let decode = || records::decode("segment", self.0.bytes).ok();
        self.0.segment.get_or_init(decode).as_ref().unwrap()
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0.bytes))
    }
}

impl Item {
    /// Interns a primary key.
    pub fn of(side: Side, bucket: Option<&str>, key: &str) -> Self {
        let place = (side, bucket.map(str::to_owned), key.to_owned());
        if let Some(item) = POOL.read().unwrap().items.get(&place) {
            return *item;
        }
        let mut pool = POOL.write().unwrap();
        let id = number(pool.items.len());
        *pool.items.entry(place).or_insert_with_key(|(side, _, key)| {
            Self(Box::leak(Box::new(Place { id, side: *side, key: key.clone() })))
        })
    }

    /// An item of v1.
    pub fn v1(key: &str) -> Self {
        Self::of(Side::V1, None, key)
    }

    /// The table.
    pub fn side(self) -> Side {
        self.0.side
    }

    /// The logical key.
    pub fn key(self) -> &'static str {
        &self.0.key
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = self.0.key.trim_start_matches("__lake_internal/").trim_start_matches("dynamo-prefix-");
        write!(f, "{}:{short}", self.0.side.name())
    }
}

impl Intent {
    /// Interns a transaction of a sender.
    pub fn of(who: Who, label: impl Into<String>, transaction: Transaction) -> Self {
        let actions: Vec<_> = transaction.actions.iter().map(Step::of).collect();
        let identity = (who, actions);
        if let Some(intent) = POOL.read().unwrap().intents.get(&identity) {
            return *intent;
        }
        let mut pool = POOL.write().unwrap();
        let id = number(pool.intents.len());
        let (label, actions) = (label.into(), identity.1.clone());
        *pool
            .intents
            .entry(identity)
            .or_insert_with(|| Self(Box::leak(Box::new(Prepared { id, who, label, transaction, actions }))))
    }
}

impl std::ops::Deref for Intent {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        self.0
    }
}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.label)
    }
}

impl Step {
    fn of(action: &metashift::layout::transaction::Action) -> Self {
        Self {
            item: Item::of(action.side, action.bucket.as_deref(), &action.key),
            when: match &action.condition {
                Condition::None => When::Always,
                Condition::Absent => When::Absent,
                Condition::Equals(value) => When::Equals(Value::of(value)),
                Condition::AbsentOrEquals(value) => When::AbsentOrEquals(Value::of(value)),
            },
            then: match &action.write {
                Write::Put(value) => Then::Put(Value::of(value)),
                Write::Delete => Then::Delete,
                Write::Check => Then::Check,
            },
        }
    }
}

impl When {
    fn holds(self, current: Option<Value>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => current.is_none(),
            Self::Equals(value) => current == Some(value),
            Self::AbsentOrEquals(value) => current.is_none_or(|current| current == value),
        }
    }
}

/// Both tables.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Tables(Vec<(Item, Value)>);

impl Tables {
    /// A strongly consistent read.
    pub fn get(&self, item: Item) -> Option<Value> {
        self.0.iter().find(|(there, _)| *there == item).map(|(_, value)| *value)
    }

    /// Sets or removes an item.
    pub fn set(&mut self, item: Item, value: Option<Value>) {
        match (self.0.binary_search_by_key(&item, |(there, _)| *there), value) {
            (Ok(index), Some(value)) => self.0[index].1 = value,
            (Ok(index), None) => drop(self.0.remove(index)),
            (Err(index), Some(value)) => self.0.insert(index, (item, value)),
            (Err(_), None) => {}
        }
    }

    /// True where every condition holds.
    pub fn permits(&self, intent: Intent) -> bool {
        intent.actions.iter().all(|step| step.when.holds(self.get(step.item)))
    }

    /// TransactWriteItems: all actions, or none and the reason of each.
    pub fn send(&mut self, intent: Intent) -> Result<(), Vec<Reason>> {
        self.write(&intent.actions)
    }

    fn write(&mut self, actions: &[Step]) -> Result<(), Vec<Reason>> {
        let reasons: Vec<_> = actions
            .iter()
            .map(|step| {
                let current = self.get(step.item);
                if step.when.holds(current) {
                    Reason::None
                } else {
                    Reason::ConditionFailed(current.map(|value| value.bytes().to_vec()))
                }
            })
            .collect();
        if reasons.iter().any(|reason| *reason != Reason::None) {
            return Err(reasons);
        }
        for step in actions {
            match step.then {
                Then::Put(value) => self.set(step.item, Some(value)),
                Then::Delete => self.set(step.item, None),
                Then::Check => {}
            }
        }
        Ok(())
    }

    /// [`Self::send`] for a transaction that nobody holds, so that no [`Intent`] keeps its words.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<(), Vec<Reason>> {
        self.write(&transaction.actions.iter().map(Step::of).collect::<Vec<_>>())
    }

    /// Every item.
    pub fn iter(&self) -> impl Iterator<Item = (Item, Value)> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().copied()).finish()
    }
}

#[cfg(test)]
mod tests {
    use metashift::layout::Layout;
    use metashift::layout::outcome::{Cancelled, classify};
    use metashift::layout::transaction::{Change, dual_before_marker};

    use super::*;

    #[test]
    fn a_transaction_commits_whole_or_says_which_conditions_failed() {
        let layout = Layout::default();
        let create = Change::new("t/0", None, Some(b"a"));
        let mut tables = Tables::default();
        assert_eq!(tables.apply(&dual_before_marker(&layout, &create)), Ok(()));
        assert_eq!(tables.iter().count(), 2);
        let before = tables.clone();
        let reasons = tables.apply(&dual_before_marker(&layout, &create)).unwrap_err();
        assert_eq!(classify(&reasons), Cancelled::Conditions(vec![0, 1]));
        assert_eq!(reasons[0], Reason::ConditionFailed(Some(b"a".to_vec())));
        assert_eq!(tables, before);
    }
}
