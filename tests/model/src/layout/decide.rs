//! What each actor decides from what it reads, with production's functions.
//!
//! Where production's own loop is asynchronous (the walk over pages, the look at all verify records), the lines here
//! follow it and say so; every decision and every transaction is production's.

mod backfill;
mod plans;
mod repair;
mod verify;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, RwLock};

use jiff::Timestamp;
use metashift::layout::backfill::decide::{Verdict, first, movable, settled};
use metashift::layout::plan::{
    Beside, Generation, Seen, begin_cutover, begin_repair, cancel_epoch, close_generation, cutover_of,
    end_repair, finalize, next_generation, opened, release, take_over, taken_over, transition,
};
use metashift::layout::records::plan::{Cutover, OnFailure, Plan, State as PlanState};
use metashift::layout::records::reject::{self, Reason as RejectReason, Reject};
use metashift::layout::records::segment::{
    Mismatch, MismatchKind, Position, Segment, State as SegmentState, Walk,
};
use metashift::layout::records::{self, encode};
use metashift::layout::tables::{Content, Item as Record};
use metashift::layout::transaction::{Action, Condition, Role, Side, Transaction, Write, copy, follow};
use metashift::layout::verify::Summary;

use super::{Flaw, Group, Page, Protocol, State};
use crate::store::{Intent, Item, Tables, Value, Who};

/// A verdict of production, interned.
#[derive(Clone, Copy)]
pub struct Judgement(u32, &'static Verdict);

impl Judgement {
    fn of(verdict: Verdict) -> Self {
        static ALL: LazyLock<RwLock<Vec<Judgement>>> = LazyLock::new(RwLock::default);
        let find = |all: &[Self]| all.iter().copied().find(|one| *one.1 == verdict);
        if let Some(found) = find(&ALL.read().unwrap()) {
            return found;
        }
        let mut all = ALL.write().unwrap();
        if let Some(found) = find(&all) {
            return found;
        }
        let one = Self(u32::try_from(all.len()).unwrap(), Box::leak(Box::new(verdict)));
        all.push(one);
        one
    }
}

impl PartialEq for Judgement {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Judgement {}
impl Hash for Judgement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl PartialOrd for Judgement {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Judgement {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl fmt::Debug for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}

/// What a decision depends on, so that it is built once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Question {
    Plan(&'static str, Option<Value>, u8, Option<Flaw>),
    Create(Vec<Item>, u32, u64),
    Close(Item, Value),
    Group(Item, Value, Vec<(usize, Judgement)>, Option<Flaw>),
    Record(&'static str, Item, Value, u64),
    Recheck(Item, Value, Item, Value, Judgement),
    Repair(Item, Value, usize, Option<Value>, Option<Value>, Option<Flaw>),
    Verify(Item, Value, usize, Side, Option<Value>, Option<Value>),
    Under(Item, Value, u32),
    Foreign(&'static str),
}

thread_local! {
    static ANSWERS: RefCell<HashMap<Question, Vec<Intent>>> = RefCell::default();
}

fn answer(question: Question, build: impl FnOnce() -> Vec<Intent>) -> Vec<Intent> {
    if let Some(found) = ANSWERS.with_borrow(|answers| answers.get(&question).cloned()) {
        return found;
    }
    let built = build();
    ANSWERS.with_borrow_mut(|answers| answers.insert(question, built.clone()));
    built
}

fn one(who: Who, label: impl Into<String>, actions: Vec<Action>) -> Vec<Intent> {
    vec![Intent::of(who, label, Transaction { actions })]
}

/// The verify records of an epoch, and the bit of each in the history.
pub(super) fn verify_records(epoch: &str, segments: u32) -> impl Iterator<Item = (u16, Item)> + '_ {
    [Side::V1, Side::V2].into_iter().flat_map(move |side| {
        (0..segments).map(move |segment| {
            let walk = Walk::Verify { epoch: epoch.to_owned(), side };
            let bit = 1 << (2 * segment + u32::from(side == Side::V2));
            (bit, Item::v1(&walk.key(segment)))
        })
    })
}

/// The number of an epoch of the model.
pub(super) fn number_of(epoch: &str) -> u8 {
    epoch.trim_start_matches('e').parse().unwrap()
}

/// A record as it is made for a walk of so many segments, in a generation.
fn fresh(segments: u32, generation: u64) -> Segment {
    Segment::of_walk(segments, Some(generation))
}

/// The reject that these bytes are.
pub(super) fn reject_of(value: Value) -> Reject {
    records::decode("reject", value.bytes()).unwrap()
}

/// The transactions of a plan's first generation, from nothing to open.
pub(super) fn opening(protocol: &Protocol) -> Vec<Transaction> {
    let first = Plan::first(protocol.layout.fingerprint(), protocol.scope.segments);
    let bytes = encode(&first).unwrap();
    let records = (0..protocol.scope.segments)
        .map(|segment| Walk::Backfill { generation: 0 }.key(segment))
        .map(|key| Action::record(&key, None, Write::Put(encode(&fresh(first.segments, 0)).unwrap())))
        .collect();
    vec![
        transition(None, &first, Beside::NoMarker).unwrap(),
        Transaction { actions: records },
        transition(Some(&bytes), &opened(&first).unwrap(), Beside::Nothing).unwrap(),
    ]
}

/// Adds to a state whatever anybody can decide from it.
pub(super) fn everything(protocol: &Protocol, state: &mut State) {
    let mut decided = Vec::new();
    if keeps_nothing_exact(protocol) {
        state.decided.retain(|intent| !is_exact(*intent));
    }
    plans::planners(protocol, state, &mut decided);
    plans::foreign(protocol, state, &mut decided);
    let walks: Vec<_> = state.tables.iter().filter(|(item, _)| item.key().contains("/backfill/")).collect();
    for (item, value) in walks {
        backfill::backfill(protocol, state, item, value, &mut decided);
    }
    repair::repairs(protocol, state, &mut decided);
    verify::verifiers(protocol, state, &mut decided);
    state.decided.append(&mut decided);
    state.decided.sort_unstable();
    state.decided.dedup();
    state.pages.sort_unstable();
    state.groups.sort_unstable();
}

/// A transaction that checks all that its decision was taken from need not be remembered: it can commit exactly when
/// it can be decided. Not so where a flaw takes such a check away.
fn keeps_nothing_exact(protocol: &Protocol) -> bool {
    !protocol.scope.unreduced
        && !protocol.scope.flaw.is_some_and(|flaw| {
            matches!(
                flaw,
                Flaw::CursorBeforeData
                    | Flaw::CursorAfterData
                    | Flaw::NoV1Check
                    | Flaw::CopyOverwrites
                    | Flaw::RepairUnfenced
            )
        })
}

/// Backfill's are remembered as pages and groups; a repair's have both copies and the record.
fn is_exact(intent: Intent) -> bool {
    intent.who == Who::Backfill || (intent.who == Who::Repair && intent.actions.len() == 3)
}

fn all_copies(group: &Group) -> bool {
    group.verdicts.iter().all(|(_, judgement)| matches!(judgement.1, Verdict::Copy(_)))
}

fn record(protocol: &Protocol, key: usize, side: Side, value: Option<Value>) -> Option<Record> {
    value.map(|value| {
        let name = protocol.keys[key];
        Record {
            key: name.to_owned(),
            bucket: (side == Side::V2).then(|| protocol.layout.bucket(name)),
            content: Content::Value(value.bytes().to_vec()),
        }
    })
}

fn segment_number(item: Item) -> u32 {
    item.key().rsplit('/').next().unwrap().parse().unwrap()
}

/// The record without the totals that nothing is decided from.
fn put(segment: &Segment) -> Write {
    let masked = Segment { copied: 0, already_live: 0, bytes: 0, ..segment.clone() };
    Write::Put(encode(&masked).unwrap())
}

fn moved_on(who: Who, label: String, item: Item, read: Value, next: &Segment) -> Vec<Intent> {
    let write = put(next);
    one(who, label, vec![Action::record(item.key(), Some(read.bytes()), write)])
}

fn position(protocol: &Protocol, key: usize, side: Side) -> Position {
    let name = protocol.keys[key];
    let bucket = (side == Side::V2).then(|| protocol.layout.bucket(name));
    Position { bucket, pk: name.to_owned() }
}

fn done(who: Who, item: Item, value: Value) -> Vec<Intent> {
    answer(Question::Record("walked", item, value, 0), || {
        let mut done = value.segment().clone();
        done.state = SegmentState::Done;
        done.cursor = None;
        moved_on(who, format!("{item:?} is done"), item, value, &done)
    })
}
