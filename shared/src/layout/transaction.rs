//! Building TransactWriteItems requests, as pure functions of what was read.
//!
//! The same inputs give the same bytes, always: a request that is sent again must be the one that its token was
//! drawn for.

use super::family::Layout;
use super::key::{v1_item_bytes, v2_item_bytes};
use super::records::BARRIER_KEY;
use crate::{Error, ErrorKind, Result};

/// Most actions of one transaction (DynamoDB's limit).
pub const MOST_ACTIONS: usize = 100;

/// Most bytes of all items of one transaction (DynamoDB's limit, 4 MB).
pub const MOST_BYTES: usize = 4 * 1024 * 1024;

/// One of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The table with one HASH key; holds the internal records too.
    V1,
    /// The companion table with bucket and key.
    V2,
}

impl Side {
    /// `v1` or `v2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

/// What must hold of the item for its action, and so the transaction, to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    None,
    /// `attribute_not_exists(pk)`.
    Absent,
    /// `val = …`.
    Equals(Vec<u8>),
    /// `attribute_not_exists(pk) OR val = …`.
    AbsentOrEquals(Vec<u8>),
}

impl Condition {
    /// Absent where nothing is expected, else equal.
    pub fn exactly(expected: Option<&[u8]>) -> Self {
        expected.map_or(Self::Absent, |value| Self::Equals(value.to_vec()))
    }

    /// As [`Self::exactly`], but a copy that was not made yet does not stand in the way.
    pub fn exactly_or_absent(expected: Option<&[u8]>) -> Self {
        expected.map_or(Self::Absent, |value| Self::AbsentOrEquals(value.to_vec()))
    }
}

/// What an action does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Puts the item with this `val`.
    Put(Vec<u8>),
    /// Deletes the item.
    Delete,
    /// Only checks its condition.
    Check,
}

/// What an action is there for; what a failed condition means depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The key that the caller changes.
    Target,
    /// The key that the caller wants unchanged.
    Guard,
    /// The key that the caller puts whatever it was, so that others see that something has changed.
    Signal,
    /// The write barrier.
    Barrier,
    /// A record of the migrator.
    Record,
}

/// One action of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Action {
    /// The table.
    pub side: Side,
    /// The logical key, `pk` in both tables.
    pub key: String,
    /// The bucket, for v2.
    pub bucket: Option<String>,
    /// What it does.
    pub write: Write,
    /// When it may.
    pub condition: Condition,
    /// What it is there for.
    pub role: Role,
}

impl Action {
    /// An action on v1.
    pub fn v1(key: &str, write: Write, condition: Condition, role: Role) -> Self {
        Self { side: Side::V1, key: key.to_owned(), bucket: None, write, condition, role }
    }

    /// An action on v2, in the bucket that the layout gives the key.
    pub fn v2(layout: &Layout, key: &str, write: Write, condition: Condition, role: Role) -> Self {
        Self { side: Side::V2, key: key.to_owned(), bucket: Some(layout.bucket(key)), write, condition, role }
    }

    /// A record of the migrator goes from what was read to `write`.
    pub fn record(key: &str, read: Option<&[u8]>, write: Write) -> Self {
        Self::v1(key, write, Condition::exactly(read), Role::Record)
    }

    /// Write request units that DynamoDB charges for it within a transaction: 2 for each KB of the item, begun or
    /// whole.
    pub fn write_units(&self, layout: &Layout) -> f64 {
        2.0 * self.bytes(layout).div_ceil(1024).max(1) as f64
    }

    /// Bytes that count against [`MOST_BYTES`].
    pub fn bytes(&self, layout: &Layout) -> usize {
        let condition = match &self.condition {
            Condition::None | Condition::Absent => 0,
            Condition::Equals(value) | Condition::AbsentOrEquals(value) => value.len(),
        };
        let written = match &self.write {
            Write::Put(value) => value.len(),
            Write::Delete | Write::Check => 0,
        };
        // DynamoDB counts the items; the larger of the values read and written bounds them.
        match self.side {
            Side::V1 => v1_item_bytes(&self.key, written.max(condition)),
            Side::V2 => v2_item_bytes(layout, &self.key, written.max(condition)),
        }
    }
}

/// The actions of one TransactWriteItems request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// In the order in which cancellation reasons come back.
    pub actions: Vec<Action>,
}

impl Transaction {
    /// Bytes that count against [`MOST_BYTES`].
    pub fn bytes(&self, layout: &Layout) -> usize {
        self.actions.iter().map(|action| action.bytes(layout)).sum()
    }

    /// Refuses what DynamoDB would refuse, before anything is sent: no action, too many, too many bytes, two actions
    /// on one item.
    pub fn check(&self, layout: &Layout) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        if self.actions.is_empty() || self.actions.len() > MOST_ACTIONS {
            return invalid(format!(
                "a transaction of {} actions; 1 to {MOST_ACTIONS} are possible",
                self.actions.len()
            ));
        }
        let bytes = self.bytes(layout);
        if bytes > MOST_BYTES {
            return invalid(format!("a transaction of {bytes} bytes; at most {MOST_BYTES} are possible"));
        }
        let mut items: Vec<_> =
            self.actions.iter().map(|action| (action.side, action.key.as_str())).collect();
        items.sort_unstable();
        for pair in items.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                return invalid(format!("{:?} is named twice in one transaction", a.1));
            }
        }
        Ok(())
    }
}

/// A change to one key that a metadata node asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a str,
    /// Its value now; `None`: it does not exist.
    pub expected: Option<&'a [u8]>,
    /// Its value afterwards; `None`: it does not exist.
    pub new: Option<&'a [u8]>,
    /// Another key and the value that it must have.
    pub guard: Option<(&'a str, &'a [u8])>,
    /// A third key and the value that it gets, whatever it was.
    pub signal: Option<(&'a str, &'a [u8])>,
}

impl<'a> Change<'a> {
    /// A change of one key from `expected` to `new`, and of nothing else.
    pub fn new(key: &'a str, expected: Option<&'a [u8]>, new: Option<&'a [u8]>) -> Self {
        Self { key, expected, new, guard: None, signal: None }
    }

    fn write(&self) -> Write {
        self.new.map_or(Write::Delete, |value| Write::Put(value.to_vec()))
    }
}

/// The signal is put, whatever it was.
fn signal_v1((key, value): (&str, &[u8])) -> Action {
    Action::v1(key, Write::Put(value.to_vec()), Condition::None, Role::Signal)
}

fn signal_v2(layout: &Layout, (key, value): (&str, &[u8])) -> Action {
    Action::v2(layout, key, Write::Put(value.to_vec()), Condition::None, Role::Signal)
}

/// The barrier is absent.
fn barrier_absent() -> Action {
    Action::v1(BARRIER_KEY, Write::Check, Condition::Absent, Role::Barrier)
}

/// v1 alone, as nodes before the migration write, but for the barrier, which they too respect.
pub fn v1_only(change: &Change<'_>) -> Transaction {
    let mut actions =
        vec![Action::v1(change.key, change.write(), Condition::exactly(change.expected), Role::Target)];
    if let Some((key, value)) = change.guard {
        actions.push(Action::v1(key, Write::Check, Condition::Equals(value.to_vec()), Role::Guard));
    }
    actions.extend(change.signal.map(signal_v1));
    actions.push(barrier_absent());
    Transaction { actions }
}

/// Both tables under v1 authority: a v2 copy may be missing, but not differ.
pub fn dual_before_marker(layout: &Layout, change: &Change<'_>) -> Transaction {
    let mut actions = vec![
        Action::v1(change.key, change.write(), Condition::exactly(change.expected), Role::Target),
        Action::v2(
            layout,
            change.key,
            change.write(),
            Condition::exactly_or_absent(change.expected),
            Role::Target,
        ),
    ];
    if let Some((key, value)) = change.guard {
        actions.push(Action::v1(key, Write::Check, Condition::Equals(value.to_vec()), Role::Guard));
        actions.push(Action::v2(
            layout,
            key,
            Write::Check,
            Condition::AbsentOrEquals(value.to_vec()),
            Role::Guard,
        ));
    }
    if let Some(signal) = change.signal {
        actions.extend([signal_v1(signal), signal_v2(layout, signal)]);
    }
    actions.push(barrier_absent());
    Transaction { actions }
}

/// v2 decides; with `mirror` v1 follows in the same transaction without a condition, for rollback.
pub fn after_marker(layout: &Layout, change: &Change<'_>, mirror: bool) -> Transaction {
    let mut actions = vec![Action::v2(
        layout,
        change.key,
        change.write(),
        Condition::exactly(change.expected),
        Role::Target,
    )];
    if mirror {
        actions.push(Action::v1(change.key, change.write(), Condition::None, Role::Target));
    }
    if let Some((key, value)) = change.guard {
        actions.push(Action::v2(layout, key, Write::Check, Condition::Equals(value.to_vec()), Role::Guard));
    }
    if let Some(signal) = change.signal {
        actions.push(signal_v2(layout, signal));
        actions.extend(mirror.then(|| signal_v1(signal)));
    }
    Transaction { actions }
}

/// The two actions that copy one scanned item: v1 still holds it, v2 does not hold the key.
pub fn copy(layout: &Layout, key: &str, scanned: &[u8]) -> [Action; 2] {
    [
        Action::v1(key, Write::Check, Condition::Equals(scanned.to_vec()), Role::Target),
        Action::v2(layout, key, Write::Put(scanned.to_vec()), Condition::Absent, Role::Target),
    ]
}

/// The two actions that make v2 follow v1 for one key, each on exactly what was read.
pub fn follow(layout: &Layout, key: &str, v1: Option<&[u8]>, v2: Option<&[u8]>) -> [Action; 2] {
    let write = v1.map_or(Write::Delete, |value| Write::Put(value.to_vec()));
    [
        Action::v1(key, Write::Check, Condition::exactly(v1), Role::Target),
        Action::v2(layout, key, write, Condition::exactly(v2), Role::Target),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: &[u8] = b"expected";
    const N: &[u8] = b"new";
    const G: (&str, &[u8]) = ("guard/g", b"held");

    fn rows(transaction: &Transaction) -> Vec<(Side, &str, &Write, &Condition, Role)> {
        let rows = transaction.actions.iter();
        rows.map(|a| (a.side, a.key.as_str(), &a.write, &a.condition, a.role)).collect()
    }

    fn change(expected: Option<&'static [u8]>, new: Option<&'static [u8]>) -> Change<'static> {
        Change::new("tbl/a", expected, new)
    }

    #[test]
    fn before_the_marker_each_mutation_is_the_documented_row() {
        let layout = Layout::default();
        let put = Write::Put(N.to_vec());
        let equals = Condition::Equals(E.to_vec());
        let lenient = Condition::AbsentOrEquals(E.to_vec());
        let barrier = (Side::V1, BARRIER_KEY, &Write::Check, &Condition::Absent, Role::Barrier);
        for (change, v1, v2, write) in [
            (change(None, Some(N)), &Condition::Absent, &Condition::Absent, &put),
            (change(Some(E), Some(N)), &equals, &lenient, &put),
            (change(Some(E), None), &equals, &lenient, &Write::Delete),
        ] {
            let transaction = dual_before_marker(&layout, &change);
            transaction.check(&layout).unwrap();
            assert_eq!(
                rows(&transaction),
                [
                    (Side::V1, "tbl/a", write, v1, Role::Target),
                    (Side::V2, "tbl/a", write, v2, Role::Target),
                    barrier
                ]
            );
        }
    }

    #[test]
    fn a_guard_is_checked_in_both_tables_before_the_marker_and_in_v2_after() {
        let layout = Layout::default();
        let guarded = Change { guard: Some(G), ..change(Some(E), Some(N)) };
        let before = dual_before_marker(&layout, &guarded);
        let held = Condition::Equals(G.1.to_vec());
        let lenient = Condition::AbsentOrEquals(G.1.to_vec());
        assert_eq!(
            rows(&before)[2..4],
            [
                (Side::V1, G.0, &Write::Check, &held, Role::Guard),
                (Side::V2, G.0, &Write::Check, &lenient, Role::Guard)
            ]
        );
        let after = after_marker(&layout, &guarded, true);
        assert_eq!(rows(&after)[2..], [(Side::V2, G.0, &Write::Check, &held, Role::Guard)]);
    }

    #[test]
    fn a_signal_is_put_without_a_condition_wherever_the_target_is_written() {
        let layout = Layout::default();
        let signal = ("__lake_internal/catalog-directory-generation", &b"2"[..]);
        let put = Write::Put(b"2".to_vec());
        let row = |side: Side| (side, signal.0, &put, &Condition::None, Role::Signal);
        for guard in [None, Some(G)] {
            let signaled = Change { signal: Some(signal), guard, ..change(Some(E), Some(N)) };
            let plain = Change { signal: None, ..signaled };
            for (with, without, sides) in [
                (v1_only(&signaled), v1_only(&plain), &[Side::V1][..]),
                (
                    dual_before_marker(&layout, &signaled),
                    dual_before_marker(&layout, &plain),
                    &[Side::V1, Side::V2],
                ),
                (
                    after_marker(&layout, &signaled, true),
                    after_marker(&layout, &plain, true),
                    &[Side::V2, Side::V1],
                ),
                (after_marker(&layout, &signaled, false), after_marker(&layout, &plain, false), &[Side::V2]),
            ] {
                with.check(&layout).unwrap();
                let (signals, others): (Vec<_>, Vec<_>) =
                    rows(&with).into_iter().partition(|row| row.4 == Role::Signal);
                assert_eq!(signals, sides.iter().map(|side| row(*side)).collect::<Vec<_>>());
                assert_eq!(others, rows(&without));
            }
        }
    }

    #[test]
    fn after_the_marker_v2_decides_and_the_mirror_has_no_condition() {
        let layout = Layout::default();
        let dual = after_marker(&layout, &change(Some(E), None), true);
        assert_eq!(
            rows(&dual),
            [
                (Side::V2, "tbl/a", &Write::Delete, &Condition::Equals(E.to_vec()), Role::Target),
                (Side::V1, "tbl/a", &Write::Delete, &Condition::None, Role::Target)
            ]
        );
        assert_eq!(rows(&after_marker(&layout, &change(Some(E), None), false)).len(), 1);
    }

    #[test]
    fn building_twice_gives_the_same_request() {
        let layout = Layout::default();
        let one = dual_before_marker(&layout, &change(Some(E), Some(N)));
        assert_eq!(one, dual_before_marker(&layout, &change(Some(E), Some(N))));
    }

    #[test]
    fn what_dynamodb_refuses_is_refused_before_sending() {
        let layout = Layout::default();
        let check =
            |actions: Vec<Action>| Transaction { actions }.check(&layout).map_err(|error| error.kind());
        let keys =
            |n: usize| (0..n).flat_map(|n| copy(&layout, &format!("tbl/{n}"), b"v")).collect::<Vec<_>>();
        assert_eq!(check(vec![]), Err(ErrorKind::InvalidInput));
        assert_eq!(check(keys(50)), Ok(()));
        assert_eq!(check(keys(51)), Err(ErrorKind::InvalidInput));
        assert_eq!(check([keys(1), keys(1)].concat()), Err(ErrorKind::InvalidInput));
        let big = vec![0; 400_000];
        let big_keys =
            |n: usize| (0..n).flat_map(|n| copy(&layout, &format!("tbl/{n}"), &big)).collect::<Vec<_>>();
        assert_eq!(check(big_keys(5)), Ok(()));
        assert_eq!(check(big_keys(6)), Err(ErrorKind::InvalidInput));
    }
}
