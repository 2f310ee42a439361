//! The layout protocol.
//!
//! Reading and sending are separate steps, and a decision may be sent any time later, or never. Instead of a few
//! actors that hold one decision each, a state holds **every** decision that anybody can have taken from what the
//! tables held up to now and that could still commit: as if any number of workers, repairs, verifiers, publishers,
//! operators and nodes had each read, decided and frozen at every moment. A step of the model is one of these
//! transactions arriving and committing. A crash is a decision that is never sent; a resend or a duplicate is one
//! that is sent again; a replaced worker is two decisions on one record.

pub mod decide;
pub mod flaw;
pub mod writers;

use std::fmt;

use metashift::layout::Layout;
use metashift::layout::outcome::{Cancelled, Refusal, classify, refusal};
use metashift::layout::records::plan::{KEY as PLAN_KEY, State as PlanState};
use metashift::layout::records::segment::{Segment, State as SegmentState, Walk};
use metashift::layout::records::{BARRIER_KEY, FOREIGN_CURSOR_KEY, MARKER_KEY, encode, reject};
use metashift::layout::transaction::Side;
use stateright::{Model, Property};

pub use flaw::Flaw;

use crate::store::{Intent, Item, Step, Tables, Then, Value, When, Who};

/// How much is explored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// User keys: 1 to 3.
    pub keys: usize,
    /// Values that a key may have.
    pub values: usize,
    /// Segments of every walk in the first generation.
    pub segments: u32,
    /// Segments in the generations after it, as another operator wants them.
    pub then_segments: u32,
    /// Items of one scan.
    pub page: usize,
    /// Backfill generations at most.
    pub generations: u64,
    /// Cutovers at most.
    pub epochs: u8,
    /// Repairs at most.
    pub repairs: u8,
    /// The plan is there and open at the start.
    pub opened: bool,
    /// v1 holds every combination of values at the start, else nothing.
    pub legacy: bool,
    /// Dual nodes, with any view of the authority.
    pub dual: bool,
    /// Dual nodes also change a key under a guard on another.
    pub guards: bool,
    /// Nodes rolled back to v1 alone.
    pub v1_only: bool,
    /// v2-only nodes, after the marker.
    pub v2_only: bool,
    /// Nodes of the field that write v1 alone and know no barrier; the rollout check waits until they are gone.
    pub field: bool,
    /// A person may remove the barrier by hand, once, before the marker.
    pub by_hand: bool,
    /// Another migrator may take the barrier and publish the marker; ours follows it.
    pub foreign: bool,
    /// Requests to install a barrier arrive late, and the plan has forgotten the names of ended epochs.
    pub forgets_names: bool,
    /// Nothing that is read or sent again by nobody is forgotten: the same protocol, in far more states.
    pub unreduced: bool,
    /// The broken variant.
    pub flaw: Option<Flaw>,
}

impl Scope {
    /// One key, one value, every actor.
    pub fn one_key() -> Self {
        Self {
            keys: 1,
            values: 1,
            segments: 1,
            then_segments: 1,
            page: 1,
            generations: 2,
            epochs: 2,
            repairs: 1,
            opened: false,
            legacy: false,
            dual: true,
            guards: false,
            v1_only: true,
            v2_only: true,
            field: false,
            by_hand: false,
            foreign: false,
            forgets_names: false,
            unreduced: false,
            flaw: None,
        }
    }

    /// Two keys behind one moving cursor, one dual writer and v2-only nodes, one cutover.
    pub fn two_keys() -> Self {
        Self {
            keys: 2,
            generations: 1,
            epochs: 1,
            repairs: 0,
            opened: true,
            legacy: true,
            v1_only: false,
            ..Self::one_key()
        }
    }

    /// The same scope with one guard missing.
    #[must_use]
    pub fn broken(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

/// What somebody saw on a page that began at a position of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page {
    /// The record of the walk's segment.
    pub record: Item,
    /// Keys before this one were behind the cursor.
    pub from: usize,
    /// Key and value in v1.
    pub items: Vec<(usize, Value)>,
    /// Nothing was behind it.
    pub end: bool,
}

/// A page whose keys somebody has judged.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The record of the walk's segment.
    pub record: Item,
    /// Where its page began.
    pub from: usize,
    /// Each key, and what is to be done with it.
    pub verdicts: Vec<(usize, decide::Judgement)>,
}

/// What the invariants need to know of the past.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// By key: the value that the last committed mutation gave it.
    pub acknowledged: Vec<Option<Value>>,
    /// By key: values that both tables held at one moment before the marker, as bits.
    pub common: Vec<u8>,
    /// Keys that v1 did not hold, or v2 held with the same value, at one moment of this generation; as bits.
    pub converged: u8,
    /// Segments and directions that were verified to the end while this barrier stood, as bits.
    pub verified: u16,
    /// Cutovers begun.
    pub epochs: u8,
    /// Repairs begun.
    pub repairs: u8,
    /// A v2-only node has written.
    pub v2_only: bool,
    /// No node of the field is left.
    pub field_gone: bool,
    /// The barrier was removed by hand.
    pub by_hand: bool,
    /// Generations that were open: no worker begins on another one.
    pub opened: u64,
    /// The other migrator has taken the barrier, or found ours; it does so once.
    pub foreign_took: bool,
    /// Cutovers that ended, as bits by their number.
    pub ended: u8,
    /// Something that no state may show has happened.
    pub broken: Option<Broken>,
}

/// What a single step may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// Backfill changed a present copy, or put one that v1 did not have.
    Backfill,
    /// The marker appeared without a held barrier, a whole verification, or equal tables.
    Marker,
    /// The marker was removed or changed.
    MarkerGone,
    /// A mutation from before the marker committed while the barrier stood.
    Barrier,
    /// Something from before the marker changed v2 after it.
    Regressed,
    /// A segment's record went back.
    Record,
    /// A guarded mutation committed without its guard.
    Guard,
    /// A cutover began that had ended before.
    Epoch,
}

/// Tables, decisions under way, and history.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Both tables.
    pub tables: Tables,
    /// Decided, and able to commit now or later.
    pub decided: Vec<Intent>,
    /// Seen.
    pub pages: Vec<Page>,
    /// Judged.
    pub groups: Vec<Group>,
    /// The past.
    pub history: History,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.tables, self.history)
    }
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A transaction arrives and commits.
    Send(Intent),
    /// The last node of the field is replaced by one that knows the barrier.
    FieldGone,
}

impl fmt::Debug for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(intent) => write!(f, "{intent:?}"),
            Self::FieldGone => f.write_str("the last field node is replaced"),
        }
    }
}

/// The protocol on a scope.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// How much is explored.
    pub scope: Scope,
    /// The production layout.
    pub layout: Layout,
    /// The user keys.
    pub keys: Vec<&'static str>,
    /// Their values.
    pub values: Vec<Value>,
    plan: Item,
    barrier: Item,
    marker: Item,
    cursor: Item,
    v1: Vec<Item>,
    v2: Vec<Item>,
    writes: writers::Writes,
}

impl Protocol {
    /// The protocol on a scope.
    pub fn new(scope: Scope) -> Self {
        let layout = Layout::default();
        let keys = ["t/k0", "t/k1", "t/k2"][..scope.keys].to_vec();
        let values: Vec<_> =
            [&b"a"[..], b"b", b"c"][..scope.values].iter().map(|bytes| Value::of(bytes)).collect();
        let v1 = keys.iter().map(|key| Item::v1(key)).collect();
        let v2 = keys.iter().map(|key| Item::of(Side::V2, Some(&layout.bucket(key)), key)).collect();
        let writes = writers::Writes::new(&scope, &layout, &keys, &values);
        Self {
            scope,
            layout,
            keys,
            values,
            plan: Item::v1(PLAN_KEY),
            barrier: Item::v1(BARRIER_KEY),
            marker: Item::v1(MARKER_KEY),
            cursor: Item::v1(FOREIGN_CURSOR_KEY),
            v1,
            v2,
            writes,
        }
    }

    /// The values of a key in v1 and v2.
    pub fn copies(&self, tables: &Tables, key: usize) -> (Option<Value>, Option<Value>) {
        (tables.get(self.v1[key]), tables.get(self.v2[key]))
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.scope.flaw == Some(flaw)
    }

    /// The other migrator takes the barrier.
    fn takes_for_another(&self, intent: Intent) -> bool {
        let puts = |step: &Step| step.item == self.barrier && matches!(step.then, Then::Put(_));
        intent.who == Who::Foreign && intent.actions.iter().any(puts)
    }

    fn published(&self, tables: &Tables) -> bool {
        tables.get(self.marker).is_some()
    }

    /// The segment that a key lies in, of a walk of so many.
    fn segment_of(key: usize, segments: u32) -> u32 {
        u32::try_from(key).unwrap() % segments
    }

    fn key_index(&self, pk: &str) -> usize {
        self.keys.iter().position(|key| *key == pk).unwrap()
    }

    /// Keys from this one on are ahead of the record's cursor.
    fn position(&self, record: Value) -> usize {
        let segment = record.segment();
        if segment.state == SegmentState::Done {
            return self.keys.len();
        }
        segment.cursor.as_ref().map_or(0, |cursor| self.key_index(&cursor.pk) + 1)
    }

    /// Drops decisions that can never commit any more.
    fn forget(&self, state: &mut State) {
        let tables = &state.tables;
        let live_page = |record: Item, from: usize| {
            tables.get(record).is_some_and(|value| {
                value.segment().state == SegmentState::Open && self.position(value) <= from
            })
        };
        state.pages.retain(|page| live_page(page.record, page.from));
        state.groups.retain(|group| live_page(group.record, group.from));
        let plan = tables.get(self.plan);
        if !self.has(Flaw::EpochReused) && !self.scope.unreduced {
            self.sweep(state);
        }
        let tables = &state.tables;
        state.decided.retain(|intent| {
            intent.actions.iter().all(|step| {
                let current = tables.get(step.item);
                match (step.item.key(), step.when) {
                    (MARKER_KEY, When::Absent) => current.is_none(),
                    (PLAN_KEY, when) if self.scope.flaw.is_none_or(Flaw::keeps_plan) => match when {
                        When::Absent => current.is_none(),
                        When::Equals(wanted) => plan.is_none_or(|plan| may_return(plan, wanted)),
                        _ => true,
                    },
                    (key, when) if is_segment(key) => match (when, current) {
                        (When::Absent, Some(_)) => false,
                        (When::Equals(wanted), Some(current)) => rank(wanted) >= rank(current),
                        _ => true,
                    },
                    _ => true,
                }
            })
        });
    }

    /// Takes away what nobody reads again, so that states that differ only in it are one: verify records of a cutover
    /// that has ended, what a closed record held, rejects of an old generation.
    fn sweep(&self, state: &mut State) {
        let Some(stored) = state.tables.get(self.plan) else { return };
        let plan = stored.plan();
        let verifying = (plan.state == PlanState::Finalizing)
            .then(|| plan.cutover.as_ref().map(|cutover| format!("/verify/{}/", cutover.epoch)))
            .flatten();
        let generation = format!("/reject/{}/", plan.generation);
        if plan.state != PlanState::Finalizing {
            state.history.verified = 0;
        }
        let over = |key: &str| {
            (key.contains("/verify/") && !verifying.as_ref().is_some_and(|part| key.contains(part)))
                || (key.contains("/reject/") && !key.contains(&generation))
        };
        let items: Vec<_> = state.tables.iter().collect();
        for (item, value) in items {
            if over(item.key()) {
                state.tables.set(item, None);
            } else if is_segment(item.key()) && value.segment().state == SegmentState::Closed {
                let held = value.segment();
                let closed =
                    Segment { state: SegmentState::Closed, ..Segment::of_walk(held.total, held.generation) };
                state.tables.set(item, Some(Value::of(&encode(&closed).unwrap())));
            }
        }
        state.decided.retain(|intent| !intent.actions.iter().any(|step| over(step.item.key())));
    }

    /// Follows one committed transaction.
    fn record(&self, before: &Tables, state: &mut State, intent: Intent) {
        let (tables, history) = (&state.tables, &mut state.history);
        let mut broken = None;
        let (held, published) = (before.get(self.barrier).is_some(), self.published(before));
        if intent.who.is_before_marker() && held {
            broken = Some(Broken::Barrier);
        }
        for key in 0..self.keys.len() {
            let (v1, was) = self.copies(before, key);
            let (_, is) = self.copies(tables, key);
            if was == is {
                continue;
            }
            if published && !matches!(intent.who, Who::Mirror | Who::V2Only) {
                broken = Some(Broken::Regressed);
            } else if matches!(intent.who, Who::Backfill | Who::Recheck) && (was.is_some() || is != v1) {
                broken = Some(Broken::Backfill);
            }
        }
        if published && tables.get(self.marker) != before.get(self.marker) {
            broken = Some(Broken::MarkerGone);
        }
        for step in &intent.actions {
            let Then::Put(put) = step.then else { continue };
            if is_segment(step.item.key()) && before.get(step.item).is_some_and(|was| rank(put) < rank(was)) {
                broken = Some(Broken::Record);
            }
        }
        // Mutations are acknowledged as they commit.
        if let Some(change) = self.writes.change(intent) {
            history.acknowledged[change.key] = change.new;
            history.v2_only |= intent.who == Who::V2Only;
            if let Some((guard, value)) = change.guard {
                let (v1, v2) = self.copies(before, guard);
                if (if published { v2 } else { v1 }) != Some(value) {
                    broken = Some(Broken::Guard);
                }
            }
        }
        // The plan went on.
        let (was, is) = (before.get(self.plan), tables.get(self.plan));
        if was != is {
            let next = is.unwrap().plan();
            let state = next.state;
            let entered = was.is_none_or(|was| was.plan().state != state);
            if state == PlanState::Open {
                history.opened = history.opened.max(next.generation + 1);
            }
            if entered && state == PlanState::Opening {
                history.converged = 0;
            }
            if entered && state == PlanState::Finalizing {
                history.verified = 0;
                if history.ended & (1 << decide::number_of(&next.cutover.as_ref().unwrap().epoch)) != 0 {
                    broken = Some(Broken::Epoch);
                }
            }
            let began = |plan: &Value| plan.plan().cutovers;
            if next.cutovers > was.as_ref().map_or(0, began) {
                history.epochs += 1;
            }
            if let Some(epoch) = next.ended_epochs.last() {
                history.ended |= 1 << decide::number_of(epoch);
            }
            if entered && state == PlanState::Repairing {
                // A start that was decided before this repair ran and ended may arrive again.
                let run = is.unwrap().plan().repair_run.as_deref().unwrap_or_default();
                history.repairs = history.repairs.max(run.trim_start_matches('r').parse::<u8>().unwrap() + 1);
            }
        }
        history.foreign_took |= self.takes_for_another(intent);
        if intent.who == Who::Hand {
            history.by_hand = true;
            history.verified = 0;
        }
        if let Some(plan) = is
            && let Some(cutover) = plan.plan().cutover.as_ref()
            && tables.get(self.barrier).is_some()
        {
            for (bit, item) in decide::verify_records(&cutover.epoch, plan.plan().segments) {
                let done = tables.get(item).is_some_and(|value| value.segment().state == SegmentState::Done);
                if done && before.get(item) != tables.get(item) {
                    history.verified |= bit;
                }
            }
        }
        if !published && self.published(tables) {
            let all = is.map_or(0, |plan| (1_u16 << (2 * plan.plan().segments)) - 1);
            let verified = intent.who == Who::Foreign || history.verified == all;
            let equal = (0..self.keys.len()).all(|key| {
                let (v1, v2) = self.copies(tables, key);
                v1 == v2
            });
            if !held || tables.get(self.barrier).is_none() || !verified || !equal {
                broken = Some(Broken::Marker);
            }
            history.common.fill(0);
            history.verified = 0;
        }
        for key in 0..self.keys.len() {
            let (v1, v2) = self.copies(tables, key);
            if v1.is_none() || v1 == v2 {
                history.converged |= 1 << key;
            }
            if !self.published(tables)
                && v1 == v2
                && let Some(value) = v1
            {
                history.common[key] |= 1 << self.values.iter().position(|one| *one == value).unwrap();
            }
        }
        history.broken = history.broken.or(broken);
    }

    /// Keys that a cursor of the plan's generation claims, with neither convergence nor a reject to show for it.
    fn claimed_in_vain(&self, state: &State) -> bool {
        let tables = &state.tables;
        let Some(plan) = tables.get(self.plan) else { return false };
        let (generation, segments) = (plan.plan().generation, plan.plan().segments);
        (0..self.keys.len()).any(|key| {
            let segment = Self::segment_of(key, segments);
            let record = Item::v1(&Walk::Backfill { generation }.key(segment));
            let Some(value) = tables.get(record) else { return false };
            let rejected = || {
                (0..value.segment().rejects_recorded).any(|n| {
                    tables
                        .get(Item::v1(&reject::key(generation, segment, n)))
                        .is_some_and(|bytes| decide::reject_of(bytes).key == self.keys[key])
                })
            };
            self.position(value) > key && state.history.converged & (1 << key) == 0 && !rejected()
        })
    }

    fn initial(&self) -> Vec<Tables> {
        let mut start = vec![Tables::default()];
        if self.scope.opened {
            for transaction in decide::opening(self) {
                start[0].apply(&transaction).unwrap();
            }
        }
        if self.scope.legacy {
            for item in &self.v1 {
                let with_value = |tables: &Tables| {
                    let mut all = vec![tables.clone()];
                    for value in &self.values {
                        let mut with = tables.clone();
                        with.set(*item, Some(*value));
                        all.push(with);
                    }
                    all
                };
                start = start.iter().flat_map(with_value).collect();
            }
        }
        start
    }
}

/// The plan may be exactly `wanted` again, or is.
fn may_return(current: Value, wanted: Value) -> bool {
    let (current, wanted) = (current, wanted);
    if current == wanted {
        return true;
    }
    // Only the end of a repair gives back a plan that there was before.
    let (now, then) = (current.plan(), wanted.plan());
    now.state == PlanState::Repairing
        && then.state == PlanState::Open
        && now.generation == then.generation
        && now.released == then.released
}

fn is_segment(key: &str) -> bool {
    key.contains("/backfill/") || key.contains("/repair/") || key.contains("/verify/")
}

/// Grows with every write of a segment's record.
fn rank(record: Value) -> (bool, bool, bool, usize, u64, u64) {
    let segment = record.segment();
    let cursor = segment
        .cursor
        .as_ref()
        .map_or(0, |cursor| usize::from(cursor.pk.as_bytes().last().copied().unwrap_or_default()) + 1);
    (
        segment.state == SegmentState::Closed,
        segment.exact,
        segment.state != SegmentState::Open,
        cursor,
        segment.scanned + segment.mismatched,
        u64::MAX - segment.rejected - segment.diverged,
    )
}

impl Model for Protocol {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        let keys = self.keys.len();
        self.initial()
            .into_iter()
            .map(|tables| {
                let mut history = History {
                    acknowledged: (0..keys).map(|key| self.copies(&tables, key).0).collect(),
                    common: vec![0; keys],
                    field_gone: !self.scope.field,
                    opened: u64::from(self.scope.opened),
                    ..History::default()
                };
                for key in 0..keys {
                    if self.copies(&tables, key).0.is_none() {
                        history.converged |= 1 << key;
                    }
                }
                let mut state =
                    State { tables, decided: Vec::new(), pages: Vec::new(), groups: Vec::new(), history };
                decide::everything(self, &mut state);
                state
            })
            .collect()
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        if state.history.broken.is_some() {
            return;
        }
        let can = |intent: &Intent| {
            state.tables.permits(*intent) && !(state.history.foreign_took && self.takes_for_another(*intent))
        };
        moves.extend(state.decided.iter().copied().filter(can).map(Move::Send));
        moves.extend(self.writes.possible(self, state).filter(can).map(Move::Send));
        if !state.history.field_gone {
            moves.push(Move::FieldGone);
        }
    }

    fn next_state(&self, last: &State, step: Move) -> Option<State> {
        let mut state = last.clone();
        match step {
            Move::Send(intent) => {
                state.tables.send(intent).ok()?;
                self.record(&last.tables, &mut state, intent);
            }
            Move::FieldGone => state.history.field_gone = true,
        }
        decide::everything(self, &mut state);
        self.forget(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ACKNOWLEDGED, |protocol: &Self, state: &State| {
                (0..protocol.keys.len()).all(|key| {
                    let (v1, v2) = protocol.copies(&state.tables, key);
                    let authority = if protocol.published(&state.tables) { v2 } else { v1 };
                    authority == state.history.acknowledged[key]
                })
            }),
            Property::always(COMMON, |protocol: &Self, state: &State| {
                state.history.broken != Some(Broken::Backfill)
                    && (protocol.published(&state.tables)
                        || (0..protocol.keys.len()).all(|key| {
                            protocol.copies(&state.tables, key).1.is_none_or(|value| {
                                let bit = protocol.values.iter().position(|one| *one == value).unwrap();
                                state.history.common[key] & (1 << bit) != 0
                            })
                        }))
            }),
            Property::always(MARKER, |_: &Self, state: &State| {
                !matches!(state.history.broken, Some(Broken::Marker | Broken::MarkerGone))
            }),
            Property::always(BARRIER, |_: &Self, state: &State| {
                state.history.broken != Some(Broken::Barrier)
            }),
            Property::always(STALE, |protocol: &Self, state: &State| {
                state.history.broken != Some(Broken::Regressed) && protocol.stale_nodes_are_told(state)
            }),
            Property::always(CURSOR, |protocol: &Self, state: &State| !protocol.claimed_in_vain(state)),
            Property::always(RECORDS, |_: &Self, state: &State| state.history.broken != Some(Broken::Record)),
            Property::always(EPOCHS, |_: &Self, state: &State| state.history.broken != Some(Broken::Epoch)),
            Property::always(GUARDS, |_: &Self, state: &State| state.history.broken != Some(Broken::Guard)),
            Property::always(MIRROR, |protocol: &Self, state: &State| {
                !protocol.published(&state.tables)
                    || state.history.v2_only
                    || (0..protocol.keys.len()).all(|key| {
                        let (v1, v2) = protocol.copies(&state.tables, key);
                        v1 == v2
                    })
            }),
        ];
        if !self.scope.v1_only && !self.scope.field {
            properties.push(Property::always(CLOSED, |protocol: &Self, state: &State| {
                protocol.published(&state.tables)
                    || (0..protocol.keys.len()).all(|key| {
                        let (v1, v2) = protocol.copies(&state.tables, key);
                        v2.is_none() || v1 == v2
                    })
            }));
        }
        if self.scope.flaw.is_none() {
            properties
                .push(Property::sometimes("the marker is published", |protocol: &Self, state: &State| {
                    protocol.published(&state.tables)
                }));
            if self.scope.foreign {
                properties.push(Property::sometimes(
                    "a table with a foreign marker is taken over",
                    |protocol: &Self, state: &State| {
                        state.tables.get(protocol.plan).is_some_and(|p| p.plan().taken_over_at.is_some())
                    },
                ));
            }
            if self.scope.epochs > 1 && !self.scope.forgets_names {
                properties.push(Property::sometimes(
                    "the marker is published after a released cutover",
                    |protocol: &Self, state: &State| {
                        protocol.published(&state.tables)
                            && state.tables.get(protocol.plan).is_some_and(|p| p.plan().released.is_some())
                    },
                ));
            }
            if self.scope.generations > 1 && self.scope.repairs > 0 {
                properties.push(Property::sometimes(
                    "the marker is published in the second generation, after a repair",
                    |protocol: &Self, state: &State| {
                        protocol.published(&state.tables)
                            && state.history.repairs > 0
                            && state.tables.get(protocol.plan).is_some_and(|p| p.plan().generation > 0)
                    },
                ));
            }
        }
        properties
    }
}

/// Invariant 1.
pub const ACKNOWLEDGED: &str = "1: the authority returns what was acknowledged last";
/// Invariant 2.
pub const COMMON: &str = "2: before the marker a copy is absent or was once equal, and backfill changes none";
/// Invariant 3.
pub const MARKER: &str = "3: the marker appears under the barrier of a verified epoch, and stays";
/// Invariant 4.
pub const BARRIER: &str = "4: behind the barrier no mutation from before the marker commits";
/// Invariant 5.
pub const STALE: &str = "5: after the marker a stale node is told so and never changes v2";
/// Invariant 6.
pub const CURSOR: &str = "6: a cursor claims only what has converged or was recorded";
/// Why a compare-and-set on a record's bytes is enough.
pub const RECORDS: &str = "a segment's record never goes back";
/// A cutover that nobody watches any more does not begin.
pub const EPOCHS: &str = "a cutover that was released or cancelled never begins again";
/// Guarded mutations.
pub const GUARDS: &str = "a guarded mutation commits only while its guard holds";
/// What a node that does not know the marker yet may still read.
pub const MIRROR: &str = "until a v2-only node writes, v1 shows what v2 holds";
/// Nobody fails closed without a reason.
pub const CLOSED: &str = "without a rolled-back node the copies never differ";

impl Protocol {
    /// Whatever a node with the old view sends is refused for the barrier, which makes it look for the marker.
    fn stale_nodes_are_told(&self, state: &State) -> bool {
        if !self.published(&state.tables) || state.history.by_hand {
            return true;
        }
        self.writes.stale().all(|intent| {
            let mut tables = state.tables.clone();
            let Err(reasons) = tables.send(intent) else { return false };
            matches!(classify(&reasons), Cancelled::Conditions(_))
                && refusal(&intent.transaction, &reasons, Side::V1) == Some(Refusal::BarrierHeld)
        })
    }
}
