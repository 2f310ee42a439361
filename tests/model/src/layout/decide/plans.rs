//! Who changes the plan: generations, repairs, cutovers.

use super::repair::repair_records;
use super::{
    Action, Beside, Condition, Cutover, Flaw, Generation, Intent, Item, OnFailure, Plan, PlanState, Protocol,
    Question, Role, Segment, SegmentState, State, Summary, Timestamp, Value, Walk, Who, Write, answer,
    begin_cutover, begin_repair, close_generation, encode, end_repair, finalize, next_generation, one,
    opened, release, transition, verify_records,
};

pub(super) fn planners(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let (tables, scope) = (&state.tables, &protocol.scope);
    let Some(stored) = tables.get(protocol.plan) else {
        decided.extend(answer(Question::Plan("first", None, 0, None), || {
            let first = Plan::first(protocol.layout.fingerprint(), scope.segments);
            moved("a plan is made", None, &first, Beside::NoMarker, false)
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
                    let chosen = Generation {
                        segments: plan.segments,
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
        PlanState::Takeover | PlanState::Final => {}
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
            read.ended_epochs.clear();
        }
        let next = begin_cutover(&read, cutover, None).unwrap();
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
