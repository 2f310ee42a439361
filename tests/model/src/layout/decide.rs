//! What each actor decides from what it reads, with production's functions.
//!
//! Where production's own loop is asynchronous (the walk over pages, the look at all verify records), the lines here
//! follow it and say so; every decision and every transaction is production's.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, RwLock};

use jiff::Timestamp;
use metashift::layout::backfill::decide::{Verdict, first, movable, settled};
use metashift::layout::plan::{
    self, Beside, begin_cutover, begin_repair, close_generation, end_repair, finalize, next_generation,
    opened, release, transition,
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
    Create(Vec<Item>),
    Close(Item, Value),
    Group(Item, Value, Vec<(usize, Judgement)>, Option<Flaw>),
    Record(&'static str, Item, Value, u64),
    Recheck(Item, Value, Item, Value, Judgement),
    Repair(Item, Value, usize, Option<Value>, Option<Value>, Option<Flaw>),
    Verify(Item, Value, usize, Side, Option<Value>, Option<Value>),
    Under(Item, Value),
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
        .map(|key| Action::record(&key, None, Write::Put(encode(&Segment::default()).unwrap())))
        .collect();
    vec![
        transition(None, &first, Beside::Nothing).unwrap(),
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
    planners(protocol, state, &mut decided);
    let walks: Vec<_> = state.tables.iter().filter(|(item, _)| item.key().contains("/backfill/")).collect();
    for (item, value) in walks {
        backfill(protocol, state, item, value, &mut decided);
    }
    repairs(protocol, state, &mut decided);
    verifiers(protocol, state, &mut decided);
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

fn planners(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let (tables, scope) = (&state.tables, &protocol.scope);
    let Some(stored) = tables.get(protocol.plan) else {
        decided.extend(answer(Question::Plan("first", None, 0, None), || {
            let first = Plan::first(protocol.layout.fingerprint(), scope.segments);
            moved("a plan is made", None, &first, Beside::Nothing, false)
        }));
        return;
    };
    let plan = stored.plan();
    let read = Some(stored.bytes());
    let ask = |what: &'static str, n: u8, build: &dyn Fn() -> Vec<Intent>| {
        answer(Question::Plan(what, Some(stored), n, scope.flaw), build)
    };
    let generation = |generation: u64| {
        (0..scope.segments).map(move |segment| Item::v1(&Walk::Backfill { generation }.key(segment)))
    };
    match plan.state {
        PlanState::Opening => {
            let missing: Vec<_> =
                generation(plan.generation).filter(|item| tables.get(*item).is_none()).collect();
            if missing.is_empty() {
                decided.extend(ask("open", 0, &|| {
                    moved("the generation is opened", read, &opened(plan).unwrap(), Beside::Nothing, false)
                }));
            } else {
                decided.extend(create(&missing));
            }
        }
        PlanState::Open => {
            if state.history.repairs < scope.repairs {
                let run = format!("r{}", state.history.repairs);
                decided.extend(ask("repair", state.history.repairs, &|| {
                    let next = begin_repair(plan, &run).unwrap();
                    let blind = protocol.has(Flaw::RepairStartUnchecked);
                    moved(&format!("repair {run} begins"), read, &next, Beside::NotFinalizing, blind)
                }));
            }
            if plan.generation + 1 < scope.generations {
                decided.extend(ask("close", 0, &|| {
                    let next = close_generation(plan).unwrap();
                    let blind = protocol.has(Flaw::GenerationStartUnchecked);
                    moved("a new generation is asked for", read, &next, Beside::NotFinalizing, blind)
                }));
            }
            installers(protocol, state, stored, decided);
        }
        PlanState::Closing => {
            for item in generation(plan.generation) {
                let Some(value) = tables.get(item) else { continue };
                if value.segment().state != SegmentState::Closed {
                    decided.extend(close(item, value));
                }
            }
            let closed = |item: Item| {
                tables.get(item).is_some_and(|value| value.segment().state == SegmentState::Closed)
            };
            if generation(plan.generation).all(closed) || protocol.has(Flaw::OldGenerationOpen) {
                decided.extend(ask("next", 0, &|| {
                    let next = next_generation(plan, plan.segments).unwrap();
                    moved("the next generation begins", read, &next, Beside::Nothing, false)
                }));
            }
        }
        PlanState::Repairing => {
            let run = plan.repair_run.clone().unwrap();
            let all: Vec<_> = repair_records(&run, scope.segments).map(|(_, _, item)| item).collect();
            let missing: Vec<_> = all.iter().copied().filter(|item| tables.get(*item).is_none()).collect();
            if !missing.is_empty() {
                decided.extend(create(&missing));
                return;
            }
            let mut closed = true;
            for item in all {
                let value = tables.get(item).unwrap();
                if value.segment().state != SegmentState::Closed {
                    closed = false;
                    decided.extend(close(item, value));
                }
            }
            if closed || protocol.has(Flaw::RepairLeftOpen) {
                decided.extend(ask("repaired", 0, &|| {
                    let next = end_repair(plan, &run).unwrap();
                    moved(&format!("repair {run} ends"), read, &next, Beside::Nothing, false)
                }));
            }
        }
        PlanState::Finalizing => {
            let epoch = plan.cutover.as_ref().unwrap().epoch.clone();
            decided.extend(ask("release", 0, &|| {
                let next = release(plan, &epoch).unwrap();
                let label = format!("cutover {epoch} is released");
                let mut intents = moved(&label, read, &next, Beside::ReleaseBarrier, false);
                // Where the barrier was removed by hand.
                let label = format!("cutover {epoch} is released, its barrier gone");
                intents.extend(moved(&label, read, &next, Beside::NotFinalizing, false));
                intents
            }));
            publishers(protocol, state, stored, &epoch, decided);
        }
        PlanState::Final => {}
    }
}

fn moved(label: &str, read: Option<&[u8]>, next: &Plan, beside: Beside, blind: bool) -> Vec<Intent> {
    let mut transaction = transition(read, next, beside).unwrap();
    if blind {
        transaction.actions[0].condition = Condition::None;
    }
    vec![Intent::of(Who::Planner, label, transaction)]
}

fn create(missing: &[Item]) -> Vec<Intent> {
    answer(Question::Create(missing.to_vec()), || {
        let open = encode(&Segment::default()).unwrap();
        let actions = missing.iter().map(|item| Action::record(item.key(), None, Write::Put(open.clone())));
        one(Who::Planner, format!("records {missing:?} are made"), actions.collect())
    })
}

fn close(item: Item, value: Value) -> Vec<Intent> {
    answer(Question::Close(item, value), || {
        let mut closed = value.segment().clone();
        closed.state = SegmentState::Closed;
        let write = Write::Put(encode(&closed).unwrap());
        let actions = vec![Action::record(item.key(), Some(value.bytes()), write)];
        one(Who::Planner, format!("record {item:?} is closed"), actions)
    })
}

/// As `cutover::install_barrier`: ready, fresh, then the transition. Clocks stand still, so that two cutovers differ
/// by their epochs alone.
fn installers(protocol: &Protocol, state: &State, stored: Value, decided: &mut Vec<Intent>) {
    let (tables, scope, plan) = (&state.tables, &protocol.scope, stored.plan());
    if state.history.epochs >= scope.epochs {
        return;
    }
    if scope.field && !state.history.field_gone && !protocol.has(Flaw::RolloutUnchecked) {
        return;
    }
    let segments: Vec<_> = (0..plan.segments)
        .filter_map(|segment| {
            tables.get(Item::v1(&Walk::Backfill { generation: plan.generation }.key(segment)))
        })
        .map(Value::segment)
        .collect();
    let ready = segments.len() == plan.segments as usize
        && segments.iter().all(|segment| segment.state == SegmentState::Done);
    let unblocked =
        metashift::layout::cutover::check_unblocked(&segments.into_iter().cloned().collect::<Vec<_>>());
    if !ready || unblocked.is_err() {
        return;
    }
    let reused = protocol.has(Flaw::EpochReused);
    let epoch = format!("e{}", if reused { 0 } else { state.history.epochs });
    let used = verify_records(&epoch, scope.segments).any(|(_, item)| tables.get(item).is_some());
    if used && !reused {
        return;
    }
    let question = Question::Plan("install", Some(stored), state.history.epochs, scope.flaw);
    decided.extend(answer(question, || {
        let cutover = Cutover {
            epoch: epoch.clone(),
            installed_at: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH,
            on_failure: OnFailure::Release,
            owner: "o".to_owned(),
            digest_key: epoch.clone(),
            verified: None,
        };
        let mut read = plan.clone();
        if reused {
            read.released = None;
        }
        let next = begin_cutover(&read, cutover).unwrap();
        moved(
            &format!("cutover {epoch} takes the barrier"),
            Some(stored.bytes()),
            &next,
            Beside::TakeBarrier,
            false,
        )
    }));
}

/// As `cutover::publish_marker`: the records of the epoch are complete, without mismatch, of equal totals and digests.
fn publishers(protocol: &Protocol, state: &State, stored: Value, epoch: &str, decided: &mut Vec<Intent>) {
    let (tables, plan) = (&state.tables, stored.plan());
    let mut summary = Summary { segments: 2 * plan.segments, exact: true, ..Summary::default() };
    for (bit, item) in verify_records(epoch, plan.segments) {
        let Some(value) = tables.get(item) else { continue };
        let segment = value.segment();
        summary.done += u32::from(segment.state == SegmentState::Done);
        summary.mismatched += segment.mismatched;
        summary.exact &= segment.exact;
        if bit.trailing_zeros() % 2 == 0 {
            summary.v1_items += segment.scanned;
            summary.v1_digest += segment.digest;
        } else {
            summary.v2_items += segment.scanned;
            summary.v2_digest += segment.digest;
        }
    }
    if !summary.is_complete() && !protocol.has(Flaw::VerificationIncomplete) {
        return;
    }
    if protocol.has(Flaw::TotalsAlone) {
        summary.v2_digest = summary.v1_digest;
    }
    if !summary.is_equal() {
        if summary.exact {
            return;
        }
        // What was only counted starts again and compares.
        for (_, item) in verify_records(epoch, plan.segments) {
            let Some(value) = tables.get(item) else { continue };
            if !value.segment().exact {
                decided.extend(answer(Question::Record("exact", item, value, 0), || {
                    let again = Segment { exact: true, ..Segment::default() };
                    let write = Write::Put(encode(&again).unwrap());
                    let actions = vec![Action::record(item.key(), Some(value.bytes()), write)];
                    one(Who::Verifier, format!("{item:?} is verified again, exactly"), actions)
                }));
            }
        }
        return;
    }
    let items = u8::try_from(summary.v1_items).unwrap();
    decided.extend(answer(Question::Plan("publish", Some(stored), items, protocol.scope.flaw), || {
        let next = finalize(plan, epoch, summary.v1_items).unwrap();
        let mut transaction = transition(Some(stored.bytes()), &next, Beside::PublishMarker).unwrap();
        if protocol.has(Flaw::EpochUnbound) {
            transaction.actions[0].condition = Condition::None;
        }
        if protocol.has(Flaw::MarkerWithoutBarrier) {
            transaction.actions.retain(|action| action.role != Role::Barrier);
        }
        vec![Intent::of(Who::Planner, format!("the marker is published for {epoch}"), transaction)]
    }));
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

/// The items of one scan of v1 behind a position.
fn scan(protocol: &Protocol, tables: &Tables, item: Item, from: usize) -> Page {
    let segment = segment_number(item);
    let mut items: Vec<_> = (from..protocol.keys.len())
        .filter(|key| protocol.segment_of(*key) == segment)
        .filter_map(|key| protocol.copies(tables, key).0.map(|value| (key, value)))
        .collect();
    let end = items.len() < protocol.scope.page;
    items.truncate(protocol.scope.page);
    Page { record: item, from, items, end }
}

fn segment_number(item: Item) -> u32 {
    item.key().rsplit('/').next().unwrap().parse().unwrap()
}

/// As `walk::Walker::run` with `backfill`'s visitor: pages are read ahead of the writes, judged, and committed with
/// the cursor; keys that moved are judged again.
fn backfill(protocol: &Protocol, state: &mut State, item: Item, value: Value, decided: &mut Vec<Intent>) {
    let segment = value.segment();
    if segment.state == SegmentState::Closed {
        return;
    }
    let generation: u64 = item.key().rsplit('/').nth(1).unwrap().parse().unwrap();
    if segment.state == SegmentState::Done {
        recheck(protocol, state, item, value, generation, decided);
        return;
    }
    // Whoever reads this page reads the next one before it is written.
    let mut from = protocol.position(value);
    let cursor = from;
    loop {
        let page = scan(protocol, &state.tables, item, from);
        let next = page.items.last().map(|(key, _)| key + 1);
        let (end, full) = (page.end, !page.items.is_empty());
        if !state.pages.contains(&page) {
            state.pages.push(page);
        }
        if end && full {
            // The scan has ended; its worker looks no further.
            let after = Page { record: item, from: next.unwrap(), items: Vec::new(), end: true };
            if !state.pages.contains(&after) {
                state.pages.push(after);
            }
        }
        match next {
            Some(next) if !end => from = next,
            _ => break,
        }
    }
    for page in state.pages.iter().filter(|page| page.record == item && !page.items.is_empty()) {
        let judge = |again: bool| -> Vec<(usize, Judgement)> {
            page.items
                .iter()
                .map(|(key, scanned)| {
                    let (v1, v2) = protocol.copies(&state.tables, *key);
                    let v1 = record(protocol, *key, Side::V1, v1);
                    let v2 = record(protocol, *key, Side::V2, v2);
                    let name = protocol.keys[*key];
                    let settle = || settled(&protocol.layout, name, v1.as_ref(), v2.as_ref());
                    let verdict = if again {
                        settle()
                    } else {
                        let seen = record(protocol, *key, Side::V1, Some(*scanned)).unwrap();
                        match first(&protocol.layout, &seen, v2.as_ref()) {
                            Verdict::Differs => settle(),
                            verdict => verdict,
                        }
                    };
                    (*key, Judgement::of(verdict))
                })
                .collect()
        };
        for verdicts in [judge(false), judge(true)] {
            let group = Group { record: item, from: page.from, verdicts };
            if keeps_nothing_exact(protocol) && page.from != cursor && all_copies(&group) {
                continue;
            }
            if !state.groups.contains(&group) {
                state.groups.push(group);
            }
        }
    }
    for group in state.groups.iter().filter(|group| group.record == item && group.from == cursor) {
        let question = Question::Group(item, value, group.verdicts.clone(), protocol.scope.flaw);
        decided.extend(answer(question, || commit_group(protocol, item, value, generation, &group.verdicts)));
    }
    if keeps_nothing_exact(protocol) {
        state.groups.retain(|group| group.record != item || !all_copies(group));
    }
    let ended = |page: &Page| page.record == item && page.from == cursor && page.end && page.items.is_empty();
    if state.pages.iter().any(ended) && !recheck(protocol, state, item, value, generation, decided) {
        decided.extend(answer(Question::Record("done", item, value, 0), || {
            let mut done = segment.clone();
            done.state = SegmentState::Done;
            done.cursor = None;
            done.rechecked = 0;
            moved_on(Who::Backfill, format!("backfill of {item:?} is done"), item, value, &done)
        }));
    }
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

/// As `backfill::Backfill::actions` and `walk::Walker::commit`.
fn commit_group(
    protocol: &Protocol,
    item: Item,
    value: Value,
    generation: u64,
    verdicts: &[(usize, Judgement)],
) -> Vec<Intent> {
    let mut next = value.segment().clone();
    let mut actions = Vec::new();
    let mut recorded = next.rejects_recorded;
    let mut what = Vec::new();
    for (key, judgement) in verdicts {
        let name = protocol.keys[*key];
        match judgement.1 {
            Verdict::Copy(bytes) => {
                let [check, mut put] = copy(&protocol.layout, name, bytes);
                if protocol.has(Flaw::CopyOverwrites) {
                    put.condition = Condition::None;
                }
                if !protocol.has(Flaw::NoV1Check) {
                    actions.push(check);
                }
                actions.push(put);
                what.push(format!("copies {name} = {}", String::from_utf8_lossy(bytes)));
            }
            Verdict::Reject(reject) => {
                let key = reject::key(generation, segment_number(item), recorded);
                actions.push(Action::record(&key, None, Write::Put(encode(reject).unwrap())));
                recorded += 1;
                what.push(format!("records {name}: {}", reject.detail));
            }
            _ => what.push(format!("passes {name}")),
        }
        judgement.1.count(name, &mut next);
    }
    let last = protocol.keys[verdicts.last().unwrap().0];
    next.cursor = Some(Position { bucket: None, pk: last.to_owned() });
    let what = format!("backfill of {item:?} {}", what.join(", "));
    let cursor = Action::record(item.key(), Some(value.bytes()), put(&next));
    match protocol.scope.flaw {
        Some(Flaw::CursorBeforeData | Flaw::CursorAfterData) if !actions.is_empty() => {
            let mut intents = one(Who::Backfill, format!("{what}, without its cursor"), actions);
            if protocol.has(Flaw::CursorBeforeData) {
                intents.extend(one(Who::Backfill, format!("{what}: its cursor, first"), vec![cursor]));
            }
            intents
        }
        _ => {
            actions.push(cursor);
            one(Who::Backfill, what, actions)
        }
    }
}

/// As `backfill::recheck`: each recorded reject is judged again; true while some are still to be looked at.
fn recheck(
    protocol: &Protocol,
    state: &State,
    item: Item,
    value: Value,
    generation: u64,
    decided: &mut Vec<Intent>,
) -> bool {
    let segment = value.segment();
    if segment.rejected + segment.diverged == 0 || segment.rechecked >= segment.rejects_recorded {
        if segment.state == SegmentState::Done && segment.rechecked > 0 {
            decided.extend(answer(Question::Record("rechecked", item, value, 0), || {
                let next = Segment { rechecked: 0, ..segment.clone() };
                moved_on(Who::Recheck, format!("the recheck of {item:?} ends"), item, value, &next)
            }));
        }
        return false;
    }
    for n in segment.rechecked..segment.rejects_recorded {
        let place = Item::v1(&reject::key(generation, segment_number(item), n));
        let Some(stored) = state.tables.get(place) else { continue };
        let old = reject_of(stored);
        let key = protocol.key_index(&old.key);
        let (v1, v2) = protocol.copies(&state.tables, key);
        let v1 = record(protocol, key, Side::V1, v1);
        let v2 = record(protocol, key, Side::V2, v2);
        let verdict = settled(&protocol.layout, &old.key, v1.as_ref(), v2.as_ref());
        if matches!(&verdict, Verdict::Reject(new) if *new == old) {
            continue;
        }
        let judgement = Judgement::of(verdict.clone());
        decided.extend(answer(Question::Recheck(item, value, place, stored, judgement), || {
            let mut next = segment.clone();
            let mut actions = Vec::new();
            match &verdict {
                Verdict::Reject(new) => {
                    let write = Write::Put(encode(new).unwrap());
                    actions.push(Action::record(place.key(), Some(stored.bytes()), write));
                }
                Verdict::Copy(bytes) => {
                    actions.extend(copy(&protocol.layout, &old.key, bytes));
                    actions.push(Action::record(place.key(), Some(stored.bytes()), Write::Delete));
                }
                _ => actions.push(Action::record(place.key(), Some(stored.bytes()), Write::Delete)),
            }
            if old.reason == RejectReason::Diverged {
                next.diverged = next.diverged.saturating_sub(1);
            } else {
                next.rejected = next.rejected.saturating_sub(1);
            }
            match &verdict {
                Verdict::Copy(_) => next.copied += 1,
                Verdict::AlreadyLive(_) => next.already_live += 1,
                Verdict::Reject(new) if new.reason == RejectReason::Diverged => next.diverged += 1,
                Verdict::Reject(_) => next.rejected += 1,
                _ => {}
            }
            let write = put(&next);
            actions.push(Action::record(item.key(), Some(value.bytes()), write));
            one(Who::Recheck, format!("the recheck of {item:?} judges {} anew", old.key), actions)
        }));
    }
    decided.extend(answer(Question::Record("recheck", item, value, 0), || {
        let next = Segment { rechecked: segment.rejects_recorded, ..segment.clone() };
        moved_on(Who::Recheck, format!("the recheck of {item:?} goes on"), item, value, &next)
    }));
    true
}

fn repair_records(run: &str, segments: u32) -> impl Iterator<Item = (Side, u32, Item)> + '_ {
    [Side::V1, Side::V2].into_iter().flat_map(move |side| {
        (0..segments).map(move |segment| {
            (side, segment, Item::v1(&Walk::Repair { run: run.to_owned(), side }.key(segment)))
        })
    })
}

/// As `repair::Repair`: one differing key at a time, on exactly what both copies held at one moment.
fn repairs(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    for run in 0..state.history.repairs {
        for (side, segment, item) in repair_records(&format!("r{run}"), protocol.scope.segments) {
            let Some(value) = state.tables.get(item) else { continue };
            if value.segment().state != SegmentState::Open {
                continue;
            }
            let from = protocol.position(value);
            let there = (from..protocol.keys.len()).find(|key| {
                let (v1, v2) = protocol.copies(&state.tables, *key);
                let own = if side == Side::V1 { v1 } else { v2 };
                protocol.segment_of(*key) == segment && own.is_some()
            });
            let Some(key) = there else {
                decided.extend(done(Who::Repair, item, value));
                continue;
            };
            let (v1, v2) = protocol.copies(&state.tables, key);
            let question = Question::Repair(item, value, key, v1, v2, protocol.scope.flaw);
            decided.extend(answer(question, || {
                let mut next = value.segment().clone();
                next.scanned += 1;
                next.cursor = Some(position(protocol, key, side));
                let name = protocol.keys[key];
                if v1 == v2 {
                    return moved_on(Who::Repair, format!("{item:?} passes {name}"), item, value, &next);
                }
                next.copied += 1;
                let (wanted, stale) = (v1.map(Value::bytes), v2.map(Value::bytes));
                let mut actions = follow(&protocol.layout, name, wanted, stale).to_vec();
                let write = put(&next);
                if !protocol.has(Flaw::RepairUnfenced) {
                    actions.push(Action::record(item.key(), Some(value.bytes()), write));
                }
                let label = format!("{item:?} makes v2 follow v1 for {name}: {v2:?} to {v1:?}");
                one(Who::Repair, label, actions)
            }));
        }
    }
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

/// As `verify::Compare` under the barrier: by counting into a digest, or exactly, by a read of the other table.
fn verifiers(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let tables = &state.tables;
    let Some(stored) = tables.get(protocol.plan) else { return };
    if stored.plan().state != PlanState::Finalizing {
        return;
    }
    let cutover = stored.plan().cutover.as_ref().unwrap();
    if plan::cutover_of(stored.plan(), &cutover.epoch).is_err() {
        return;
    }
    for (bit, item) in verify_records(&cutover.epoch, protocol.scope.segments) {
        let side = if bit.trailing_zeros() % 2 == 0 { Side::V1 } else { Side::V2 };
        let Some(value) = tables.get(item) else {
            decided.extend(answer(Question::Under(item, stored), || {
                let open = encode(&Segment::default()).unwrap();
                let held = Condition::Equals(stored.bytes().to_vec());
                let actions = vec![
                    Action::record(item.key(), None, Write::Put(open)),
                    Action::v1(records::plan::KEY, Write::Check, held, Role::Record),
                ];
                one(Who::Verifier, format!("{item:?} is begun"), actions)
            }));
            continue;
        };
        if value.segment().state != SegmentState::Open {
            continue;
        }
        let from = protocol.position(value);
        let there = (from..protocol.keys.len()).find(|key| {
            let (v1, v2) = protocol.copies(tables, *key);
            let own = if side == Side::V1 { v1 } else { v2 };
            protocol.segment_of(*key) == segment_number(item) && own.is_some()
        });
        let Some(key) = there else {
            decided.extend(done(Who::Verifier, item, value));
            continue;
        };
        let (v1, v2) = protocol.copies(tables, key);
        let compared = value.segment().exact;
        let (v1, v2) = match side {
            _ if compared => (v1, v2),
            Side::V1 => (v1, None),
            Side::V2 => (None, v2),
        };
        decided.extend(answer(Question::Verify(item, value, key, side, v1, v2), || {
            let mut next = value.segment().clone();
            let old = record(protocol, key, Side::V1, v1);
            let new = record(protocol, key, Side::V2, v2);
            let different = match side {
                Side::V2 if !compared => None,
                Side::V1 if !compared => old.as_ref().and_then(|v1| unmovable(protocol, v1)),
                _ => difference(protocol, old.as_ref(), new.as_ref()),
            };
            next.cursor = Some(position(protocol, key, side));
            if different.is_none() || side == Side::V1 {
                next.scanned += 1;
                let own = if side == Side::V1 { &old } else { &new };
                let value = own.as_ref().and_then(Record::value).unwrap_or_default();
                next.digest.add(&cutover.digest_key, protocol.keys[key], value);
            }
            match different {
                None => next.already_live += 1,
                Some(kind) => next.add_mismatch(Mismatch { key: protocol.keys[key].to_owned(), kind }),
            }
            let label = format!("{item:?} looks at {}", protocol.keys[key]);
            moved_on(Who::Verifier, label, item, value, &next)
        }));
    }
}

/// As `verify::difference`.
fn difference(protocol: &Protocol, v1: Option<&Record>, v2: Option<&Record>) -> Option<MismatchKind> {
    match (v1, v2) {
        (None, None) => None,
        (None, Some(_)) => Some(MismatchKind::Extra),
        (Some(v1), v2) => unmovable(protocol, v1).or_else(|| match v2 {
            None => Some(MismatchKind::Missing),
            Some(v2) => (v1.value() != v2.value()).then_some(MismatchKind::WrongValue),
        }),
    }
}

fn unmovable(protocol: &Protocol, v1: &Record) -> Option<MismatchKind> {
    movable(&protocol.layout, v1).err().map(|_| MismatchKind::UnsupportedItem)
}
