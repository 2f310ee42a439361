//! Who changes the plan: generations, repairs, cutovers.

use super::repair::repair_records;
use super::{
    Action, Beside, Condition, Cutover, Flaw, Generation, Intent, Item, OnFailure, Plan, PlanState, Protocol,
    Question, Role, Seen, Segment, SegmentState, Side, State, Summary, Timestamp, Value, Walk, Who, Write,
    answer, begin_cutover, begin_repair, cancel_epoch, close_generation, encode, end_repair, finalize, fresh,
    next_generation, one, opened, release, take_over, taken_over, transition, verify_records,
};
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Transaction;

pub(super) fn planners(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let (tables, scope) = (&state.tables, &protocol.scope);
    let Some(stored) = tables.get(protocol.plan) else {
        decided.extend(answer(Question::Plan("first", None, 0, None), || {
            let first = Plan::first(protocol.layout.fingerprint(), scope.segments);
            let beside =
                if protocol.has(Flaw::OpeningUnchecked) { Beside::Nothing } else { Beside::NoMarker };
            moved("a plan is made", None, &first, beside, false)
        }));
        if protocol.published(tables) {
            decided.extend(answer(Question::Plan("first takeover", None, 0, None), || {
                let first = Plan::first(protocol.layout.fingerprint(), scope.segments);
                let next = take_over(&first).unwrap();
                moved("a takeover begins, from no plan", None, &next, Beside::FollowMarker, false)
            }));
        }
        return;
    };
    let plan = stored.plan();
    let read = Some(stored.bytes());
    let ask = |what: &'static str, n: u8, build: &dyn Fn() -> Vec<Intent>| {
        answer(Question::Plan(what, Some(stored), n, scope.flaw), build)
    };
    let generation = |generation: u64| {
        (0..plan.segments).map(move |segment| Item::v1(&Walk::Backfill { generation }.key(segment)))
    };
    // As `generation::follow_marker`: the marker is the truth, whichever migrator put it.
    if protocol.published(tables) && !matches!(plan.state, PlanState::Takeover | PlanState::Final) {
        decided.extend(ask("takeover", 0, &|| {
            let next = take_over(plan).unwrap();
            moved("a takeover begins", read, &next, Beside::FollowMarker, false)
        }));
    }
    match plan.state {
        PlanState::Opening => {
            let missing: Vec<_> =
                generation(plan.generation).filter(|item| tables.get(*item).is_none()).collect();
            if missing.is_empty() {
                decided.extend(ask("open", 0, &|| {
                    moved("the generation is opened", read, &opened(plan).unwrap(), Beside::Nothing, false)
                }));
            } else {
                decided.extend(create(&missing, plan));
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
                    let chosen = Generation {
                        segments: scope.then_segments,
                        layout: plan.layout.clone(),
                        companion: "v2".to_owned(),
                    };
                    let next = next_generation(plan, chosen).unwrap();
                    moved("the next generation begins", read, &next, Beside::Nothing, false)
                }));
            }
        }
        PlanState::Repairing => {
            let run = plan.repair_run.clone().unwrap();
            let all: Vec<_> = repair_records(&run, plan.segments).map(|(_, _, item)| item).collect();
            let missing: Vec<_> = all.iter().copied().filter(|item| tables.get(*item).is_none()).collect();
            if !missing.is_empty() {
                decided.extend(create(&missing, plan));
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
        PlanState::Takeover => {
            let mut records: Vec<_> = Vec::new();
            if !protocol.has(Flaw::TakeoverLeavesSegments) {
                records.extend(generation(plan.generation));
            }
            if let Some(run) =
                plan.repair_run.as_deref().filter(|_| !protocol.has(Flaw::TakeoverLeavesRepair))
            {
                records.extend(repair_records(run, plan.segments).map(|(_, _, item)| item));
            }
            let missing: Vec<_> =
                records.iter().copied().filter(|item| tables.get(*item).is_none()).collect();
            if !missing.is_empty() {
                decided.extend(create(&missing, plan));
                return;
            }
            let open: Vec<_> = records
                .iter()
                .filter_map(|item| tables.get(*item).map(|value| (*item, value)))
                .filter(|(_, value)| value.segment().state != SegmentState::Closed)
                .collect();
            for (item, value) in &open {
                decided.extend(close(*item, *value));
            }
            if open.is_empty() {
                decided.extend(ask("taken over", 0, &|| {
                    let next = taken_over(plan, Timestamp::UNIX_EPOCH).unwrap();
                    moved("the table is taken over", read, &next, Beside::FollowMarker, false)
                }));
            }
        }
        PlanState::Final => {}
    }
}

/// Another migrator, as the published protocol has it: its cursor is there as long as it lives, it takes the barrier where
/// it is absent or of the old value, compares, and publishes while the barrier is held.
pub(super) fn foreign(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let tables = &state.tables;
    if !protocol.scope.foreign || protocol.published(tables) {
        return;
    }
    let sent = |label: &'static str, actions: Vec<Action>| {
        answer(Question::Foreign(label), || {
            vec![Intent::of(Who::Foreign, label, Transaction { actions: actions.clone() })]
        })
    };
    if tables.get(protocol.cursor).is_none() {
        let cursor =
            Action::v1(FOREIGN_CURSOR_KEY, Write::Put(b"t".to_vec()), Condition::Absent, Role::Record);
        decided.extend(sent("another migrator starts", vec![cursor]));
        return;
    }
    let held = BARRIER_VALUE.to_vec();
    let barrier =
        |write: Write, condition: Condition| Action::v1(BARRIER_KEY, write, condition, Role::Barrier);
    if !state.history.foreign_took {
        let take = barrier(Write::Put(held.clone()), Condition::AbsentOrEquals(held));
        decided.extend(sent("another migrator takes the barrier", vec![take]));
        return;
    }
    let equal = (0..protocol.keys.len()).all(|key| {
        let (v1, v2) = protocol.copies(tables, key);
        v1 == v2
    });
    if equal && tables.get(protocol.barrier).is_some() {
        let value = MARKER_VALUE.to_vec();
        let marker =
            Action::v1(MARKER_KEY, Write::Put(value.clone()), Condition::AbsentOrEquals(value), Role::Record);
        let check = barrier(Write::Check, Condition::Equals(held));
        decided.extend(sent("another migrator publishes the marker", vec![check, marker]));
    }
}

fn moved(label: &str, read: Option<&[u8]>, next: &Plan, beside: Beside, blind: bool) -> Vec<Intent> {
    let mut transaction = transition(read, next, beside).unwrap();
    if blind {
        transaction.actions[0].condition = Condition::None;
    }
    vec![Intent::of(Who::Planner, label, transaction)]
}

fn create(missing: &[Item], plan: &Plan) -> Vec<Intent> {
    answer(Question::Create(missing.to_vec(), plan.segments, plan.generation), || {
        let open = encode(&fresh(plan.segments, plan.generation)).unwrap();
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
    // As `cutover::install_barrier`: another migrator's cursor says that it may be alive.
    if tables.get(protocol.cursor).is_some() {
        return;
    }
    let next = plan.cutovers;
    let reused = protocol.has(Flaw::EpochReused);
    let late = protocol.has(Flaw::LateInstall);
    // The cutover that is wanted now, and requests of earlier ones that arrive late: their runs saw an earlier number.
    for number in 0..=next {
        let epoch = format!("e{}", if reused { 0 } else { number });
        let used = verify_records(&epoch, plan.segments).any(|(_, item)| tables.get(item).is_some());
        if used && !reused {
            continue;
        }
        let n = u8::try_from(number).unwrap();
        let question = Question::Plan("install", Some(stored), n, scope.flaw);
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
            if reused || late || scope.forgets_names {
                read.released = None;
                read.ended_epochs.clear();
            }
            let seen = Seen { generation: plan.generation, cutovers: number };
            let Ok(mut next) = begin_cutover(&read, cutover, (!reused && !late).then_some(seen)) else {
                return Vec::new();
            };
            next.released.clone_from(&plan.released);
            next.ended_epochs.clone_from(&plan.ended_epochs);
            let label = format!("cutover {epoch} takes the barrier");
            moved(&label, Some(stored.bytes()), &next, Beside::TakeBarrier, false)
        }));
    }
    // As `cutover::release_barrier` of a run that failed before its barrier.
    if scope.forgets_names || late {
        let n = u8::try_from(next).unwrap();
        decided.extend(answer(Question::Plan("cancel", Some(stored), n, None), || {
            let Some(cancelled) = cancel_epoch(plan, &format!("e{next}")) else { return Vec::new() };
            let label = format!("cutover e{next} is cancelled");
            moved(&label, Some(stored.bytes()), &cancelled, Beside::NoMarker, false)
        }));
    }
}

/// As `cutover::publish_marker`: the records of the epoch are complete, without mismatch, of equal totals and digests.
fn publishers(protocol: &Protocol, state: &State, stored: Value, epoch: &str, decided: &mut Vec<Intent>) {
    let (tables, plan) = (&state.tables, stored.plan());
    let records: Vec<_> = verify_records(epoch, plan.segments)
        .filter_map(|(bit, item)| tables.get(item).map(|value| (bit, value)))
        .map(|(bit, value)| {
            let side = if bit.trailing_zeros() % 2 == 0 { Side::V1 } else { Side::V2 };
            let mut segment = value.segment().clone();
            if protocol.has(Flaw::OldPlan) {
                segment.total = plan.segments;
            }
            (side, segment)
        })
        .collect();
    let mut summary = Summary::of(plan, records);
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
                    let again = Segment { exact: true, ..fresh(plan.segments, plan.generation) };
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
