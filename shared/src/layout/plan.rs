//! The plan's transitions: who may do what from which state, and the one transaction that does it.
//!
//! Pure: each function takes the plan as read and gives the next one, or says why not. A transition is written on
//! exactly the bytes that were read ([`transition`]), so two that were decided on the same plan cannot both land.
//!
//! A function that starts from another state than the plan's answers with [`refused`]: `AlreadyFinalized` once the marker
//! is published, `PlanMismatch` while a repair is not finished, else `Superseded`. An id that was used before is
//! `InvalidInput`.

use jiff::Timestamp;

use super::records::plan::{Audited, Cutover, MAX_ENDED_EPOCHS, Plan, State, VERSION};
use super::records::{self, BARRIER_KEY, BARRIER_VALUE, MARKER_KEY, MARKER_VALUE, plan};
use super::transaction::{Action, Condition, Role, Transaction, Write};
use crate::{Error, ErrorKind, Result};

/// What a transition does to barrier and marker beside the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Checks that the marker is absent.
    NoMarker,
    /// Checks that neither barrier nor marker is there.
    NotFinalizing,
    /// Puts the barrier where there is none, and checks that the marker is absent.
    TakeBarrier,
    /// Takes over a barrier that is already there without a plan that says so, or puts it.
    AdoptBarrier,
    /// Deletes the barrier and checks that the marker is absent.
    ReleaseBarrier,
    /// Checks that the barrier is held and puts the marker.
    PublishMarker,
    /// Checks that the marker is there, and puts the barrier where it is absent or ours.
    FollowMarker,
}

/// The transaction of a transition: the plan from what was read to `next`, and what goes beside it.
pub fn transition(read: Option<&[u8]>, next: &Plan, beside: Beside) -> Result<Transaction> {
    let held = Condition::Equals(BARRIER_VALUE.to_vec());
    let barrier =
        |write: Write, condition: Condition| Action::v1(BARRIER_KEY, write, condition, Role::Barrier);
    let no_marker = || Action::v1(MARKER_KEY, Write::Check, Condition::Absent, Role::Record);
    let put_barrier = || Write::Put(BARRIER_VALUE.to_vec());
    let mut actions = vec![Action::record(plan::KEY, read, Write::Put(records::encode(next)?))];
    match beside {
        Beside::Nothing => {}
        Beside::NoMarker => actions.push(no_marker()),
        Beside::NotFinalizing => actions.extend([barrier(Write::Check, Condition::Absent), no_marker()]),
        Beside::TakeBarrier => actions.extend([barrier(put_barrier(), Condition::Absent), no_marker()]),
        Beside::AdoptBarrier => {
            let condition = Condition::AbsentOrEquals(BARRIER_VALUE.to_vec());
            actions.extend([barrier(put_barrier(), condition), no_marker()]);
        }
        Beside::ReleaseBarrier => actions.extend([barrier(Write::Delete, held), no_marker()]),
        Beside::FollowMarker => actions.extend([
            barrier(put_barrier(), Condition::AbsentOrEquals(BARRIER_VALUE.to_vec())),
            Action::v1(MARKER_KEY, Write::Check, Condition::Equals(MARKER_VALUE.to_vec()), Role::Record),
        ]),
        Beside::PublishMarker => actions.extend([
            barrier(Write::Check, held),
            Action::v1(
                MARKER_KEY,
                Write::Put(MARKER_VALUE.to_vec()),
                Condition::AbsentOrEquals(MARKER_VALUE.to_vec()),
                Role::Record,
            ),
        ]),
    }
    Ok(Transaction { actions })
}

/// Opening → open, once every segment record of the generation exists.
pub fn opened(plan: &Plan) -> Result<Plan> {
    from(plan, State::Opening, |next| next.state = State::Open)
}

/// Open → closing: the generation ends.
pub fn close_generation(plan: &Plan) -> Result<Plan> {
    from(plan, State::Open, |next| next.state = State::Closing)
}

/// What a generation may choose anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Segments of every walk: 1 to 256.
    pub segments: u32,
    /// Fingerprint of the layout.
    pub layout: String,
    /// Name of the companion table.
    pub companion: String,
}

/// Closing → opening the next generation, once every segment record of the old one is closed.
pub fn next_generation(plan: &Plan, chosen: Generation) -> Result<Plan> {
    from(plan, State::Closing, |next| {
        next.state = State::Opening;
        next.generation += 1;
        next.segments = chosen.segments;
        next.layout = chosen.layout;
        next.companion = Some(chosen.companion);
    })
}

/// The same plan, open, in the version of this software.
pub fn upgraded(plan: &Plan) -> Result<Plan> {
    from(plan, State::Open, |_| ())
}

/// Any state but final → takeover, since another migrator published the marker. A cutover of this plan ends with it.
pub fn take_over(plan: &Plan) -> Result<Plan> {
    if plan.state == State::Final {
        return Err(refused(plan, State::Takeover));
    }
    let mut next = plan.clone();
    next.version = VERSION;
    next.state = State::Takeover;
    if let Some(cutover) = next.cutover.take() {
        end_epoch(&mut next, &cutover.epoch);
    }
    Ok(next)
}

/// Takeover → final, once every record of a worker is closed.
pub fn taken_over(plan: &Plan, now: Timestamp) -> Result<Plan> {
    from(plan, State::Takeover, |next| {
        next.state = State::Final;
        next.taken_over_at = Some(now);
        next.ended_repair = next.repair_run.take().or(next.ended_repair.take());
    })
}

/// Final → final, with the first clean audit after the marker recorded.
pub fn audited(plan: &Plan, at: Timestamp, run: &str) -> Result<Plan> {
    from(plan, State::Final, |next| {
        next.audited = next.audited.take().or_else(|| Some(Audited { at, run: run.to_owned() }));
    })
}

/// Takes an epoch out of use before it began, so that a request to install its barrier that arrives late is refused.
/// `None` where it is out of use already. The plan's state stays as it is.
pub fn cancel_epoch(plan: &Plan, epoch: &str) -> Option<Plan> {
    if plan.has_ended(epoch) || plan.version < VERSION {
        return None;
    }
    let mut next = plan.clone();
    next.cutovers += 1;
    end_epoch(&mut next, epoch);
    Some(next)
}

fn end_epoch(plan: &mut Plan, epoch: &str) {
    plan.ended_epochs.retain(|ended| ended != epoch);
    plan.ended_epochs.push(epoch.to_owned());
    let surplus = plan.ended_epochs.len().saturating_sub(MAX_ENDED_EPOCHS);
    plan.ended_epochs.drain(..surplus);
}

/// Open → repairing. An id is used once.
pub fn begin_repair(plan: &Plan, run: &str) -> Result<Plan> {
    if plan.ended_repair.as_deref() == Some(run) {
        return Err(repair_has_ended(run));
    }
    from(plan, State::Open, |next| {
        next.state = State::Repairing;
        next.repair_run = Some(run.to_owned());
    })
}

/// Why an id of a repair is not used again.
pub fn repair_has_ended(run: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("repair {run} has ended; an id is used once"))
        .next("start the repair again with a fresh repairRun")
}

/// Repairing(run) → open, once its records are closed.
pub fn end_repair(plan: &Plan, run: &str) -> Result<Plan> {
    if plan.state == State::Repairing && plan.repair_run.as_deref() != Some(run) {
        return Err(refused(plan, State::Repairing));
    }
    from(plan, State::Repairing, |next| {
        next.state = State::Open;
        next.ended_repair = next.repair_run.take();
    })
}

/// The plan as a run saw it before its cutover. A cutover begins only on a plan that has not moved on since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The generation that the run copied and compared.
    pub generation: u64,
    /// The plan's number of cutovers.
    pub cutovers: u64,
}

impl Seen {
    /// What a run has to remember of a plan.
    pub fn of(plan: &Plan) -> Self {
        Self { generation: plan.generation, cutovers: plan.cutovers }
    }
}

/// Open → finalizing(epoch). An epoch is used once, and only on the plan that its run saw.
///
/// `InvalidInput` for an epoch that ended, `Superseded` where another generation or another cutover began since.
pub fn begin_cutover(plan: &Plan, cutover: Cutover, seen: Option<Seen>) -> Result<Plan> {
    if plan.has_ended(&cutover.epoch) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("epoch {} was released or cancelled; an epoch is used once", cutover.epoch),
        )
        .next("start the cutover again with a fresh epoch"));
    }
    let moved_on = |what: String| {
        Err(Error::new(ErrorKind::Superseded, what).next(
            "see metashift layout status; then run the cutover again, which copies and compares what is new",
        ))
    };
    match seen {
        Some(seen) if seen.generation != plan.generation => {
            return moved_on(format!(
                "another operator started generation {}; this run copied and compared generation {}",
                plan.generation, seen.generation
            ));
        }
        Some(seen) if seen.cutovers != plan.cutovers => {
            return moved_on("another cutover began or was cancelled after this run started".to_owned());
        }
        _ => {}
    }
    from(plan, State::Open, |next| {
        next.state = State::Finalizing;
        next.cutovers += 1;
        next.cutover = Some(cutover);
    })
}

/// Finalizing(epoch) → open.
pub fn release(plan: &Plan, epoch: &str) -> Result<Plan> {
    cutover_of(plan, epoch)?;
    from(plan, State::Finalizing, |next| {
        next.state = State::Open;
        next.released = next.cutover.take().map(|cutover| cutover.epoch);
        end_epoch(next, epoch);
    })
}

/// Finalizing(epoch) → final.
pub fn finalize(plan: &Plan, epoch: &str, verified: u64) -> Result<Plan> {
    cutover_of(plan, epoch)?;
    from(plan, State::Finalizing, |next| {
        next.state = State::Final;
        if let Some(cutover) = &mut next.cutover {
            cutover.verified = Some(verified);
        }
    })
}

/// The cutover of an epoch that holds the barrier; `Superseded` where another one or none does.
pub fn cutover_of<'a>(plan: &'a Plan, epoch: &str) -> Result<&'a Cutover> {
    if plan.state != State::Finalizing {
        return Err(refused(plan, State::Finalizing));
    }
    plan.cutover
        .as_ref()
        .filter(|cutover| cutover.epoch == epoch)
        .ok_or_else(|| refused(plan, State::Finalizing))
}

/// `CutoverExpired` once the deadline has passed.
pub fn check_deadline(cutover: &Cutover, now: Timestamp) -> Result<()> {
    if now < cutover.deadline {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::CutoverExpired,
        format!("the cutover {} ran past its deadline, {}", cutover.epoch, cutover.deadline),
    )
    .next("see metashift layout status, then finalize again, with a longer deadline if it is needed"))
}

fn from(plan: &Plan, state: State, change: impl FnOnce(&mut Plan)) -> Result<Plan> {
    if plan.state != state {
        return Err(refused(plan, state));
    }
    let mut next = plan.clone();
    if state == State::Open {
        next.version = VERSION;
    }
    change(&mut next);
    Ok(next)
}

/// Why the plan's state does not allow what needs `wanted`.
pub fn refused(plan: &Plan, wanted: State) -> Error {
    let error =
        |kind: ErrorKind, message: String, next: &str| Error::new(kind, message).next(next.to_owned());
    match plan.state {
        State::Final => error(
            ErrorKind::AlreadyFinalized,
            "the marker is published: the prefix layout is the authority".to_owned(),
            "nothing; restart pods so that they read it, see metashift layout status",
        ),
        State::Finalizing => {
            let epoch = plan.cutover.as_ref().map(|cutover| cutover.epoch.as_str()).unwrap_or_default();
            match plan.cutover.as_ref().filter(|cutover| cutover.on_failure == plan::OnFailure::Hold) {
                Some(held) => error(
                    ErrorKind::Superseded,
                    format!(
                        "the cutover {epoch} holds the write barrier, and keeps it if it fails or passes its \
                         deadline, {}",
                        held.deadline.strftime("%F %T UTC")
                    ),
                    "see metashift layout status; once it has failed, only metashift layout abort ends it",
                ),
                None => error(
                    ErrorKind::Superseded,
                    format!("the cutover {epoch} holds the write barrier"),
                    "wait for it (metashift layout status), or end it: metashift layout abort",
                ),
            }
        }
        State::Takeover => error(
            ErrorKind::Superseded,
            "another migrator published the marker, and the takeover of its table is not finished".to_owned(),
            "finish it: metashift layout run",
        ),
        State::Opening | State::Closing => error(
            ErrorKind::Superseded,
            format!("generation {} is being opened or closed", plan.generation),
            "run metashift layout run, which finishes that",
        ),
        State::Repairing => error(
            ErrorKind::PlanMismatch,
            format!("the repair {} is not finished", plan.repair_run.as_deref().unwrap_or_default()),
            "finish it: metashift layout repair",
        ),
        State::Open => error(
            ErrorKind::Superseded,
            match wanted {
                State::Finalizing => "no cutover of this epoch holds the barrier; it was released".to_owned(),
                State::Repairing => "no repair runs; it was ended".to_owned(),
                _ => "the plan is open; somebody else went on".to_owned(),
            },
            "see metashift layout status, then start again",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] = [
        State::Opening,
        State::Open,
        State::Closing,
        State::Repairing,
        State::Finalizing,
        State::Takeover,
        State::Final,
    ];

    fn cutover(epoch: &str) -> Cutover {
        Cutover {
            epoch: epoch.to_owned(),
            installed_at: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(900),
            on_failure: plan::OnFailure::Release,
            owner: "local:test".to_owned(),
            digest_key: "k".to_owned(),
            verified: None,
        }
    }

    fn in_state(state: State) -> Plan {
        Plan {
            state,
            repair_run: (state == State::Repairing).then(|| "r".to_owned()),
            cutover: matches!(state, State::Finalizing | State::Final).then(|| cutover("e")),
            ..Plan::first("f".to_owned(), 4)
        }
    }

    type Move = fn(&Plan) -> Result<Plan>;

    fn chosen() -> Generation {
        Generation { segments: 4, layout: "g".to_owned(), companion: "c".to_owned() }
    }

    #[test]
    fn each_transition_leaves_only_its_own_state() {
        let moves: [(&str, State, State, Move); 11] = [
            ("opened", State::Opening, State::Open, opened),
            ("close_generation", State::Open, State::Closing, close_generation),
            ("next_generation", State::Closing, State::Opening, |plan| next_generation(plan, chosen())),
            ("begin_repair", State::Open, State::Repairing, |plan| begin_repair(plan, "r")),
            ("end_repair", State::Repairing, State::Open, |plan| end_repair(plan, "r")),
            ("begin_cutover", State::Open, State::Finalizing, |plan| {
                begin_cutover(plan, cutover("e2"), None)
            }),
            ("upgraded", State::Open, State::Open, upgraded),
            ("taken_over", State::Takeover, State::Final, |plan| taken_over(plan, Timestamp::UNIX_EPOCH)),
            ("audited", State::Final, State::Final, |plan| audited(plan, Timestamp::UNIX_EPOCH, "a")),
            ("release", State::Finalizing, State::Open, |plan| release(plan, "e")),
            ("finalize", State::Finalizing, State::Final, |plan| finalize(plan, "e", 7)),
        ];
        for (name, source, target, go) in moves {
            for state in ALL {
                match go(&in_state(state)) {
                    Ok(next) => {
                        assert_eq!(state, source, "{name} left {state:?}");
                        assert_eq!(next.state, target, "{name}");
                    }
                    Err(error) => {
                        assert_ne!(state, source, "{name} refused {state:?}: {error}");
                        assert!(error.next_step().is_some(), "{name} from {state:?} names no next step");
                    }
                }
            }
        }
    }

    #[test]
    fn another_epoch_and_another_repair_are_refused() {
        let finalizing = in_state(State::Finalizing);
        assert_eq!(release(&finalizing, "other").unwrap_err().kind(), ErrorKind::Superseded);
        assert_eq!(finalize(&finalizing, "other", 1).unwrap_err().kind(), ErrorKind::Superseded);
        assert_eq!(end_repair(&in_state(State::Repairing), "s").unwrap_err().kind(), ErrorKind::PlanMismatch);
    }

    #[test]
    fn a_barrier_that_is_held_for_a_person_is_not_to_be_waited_for() {
        let mut plan = in_state(State::Finalizing);
        let next = |plan: &Plan| refused(plan, State::Open).next_step().map(str::to_owned).unwrap();
        assert!(next(&plan).contains("wait for it"));
        plan.cutover.as_mut().unwrap().on_failure = plan::OnFailure::Hold;
        assert!(next(&plan).contains("only metashift layout abort"));
    }

    #[test]
    fn a_released_epoch_is_never_used_again() {
        let released = release(&in_state(State::Finalizing), "e").unwrap();
        let begin = |plan: &Plan, epoch: &str| begin_cutover(plan, cutover(epoch), None);
        assert_eq!(begin(&released, "e").unwrap_err().kind(), ErrorKind::InvalidInput);
        // Nor after another one: e, released, e2, released, e.
        let again = release(&begin(&released, "e2").unwrap(), "e2").unwrap();
        assert_eq!(begin(&again, "e").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(begin(&again, "e3").is_ok());
    }

    #[test]
    fn a_cutover_begins_only_on_the_plan_that_its_run_saw() {
        let plan = in_state(State::Open);
        let seen = Some(Seen::of(&plan));
        let begin = |plan: &Plan, epoch: &str| begin_cutover(plan, cutover(epoch), seen);
        let finalizing = begin(&plan, "e2").unwrap();
        assert_eq!(finalizing.cutovers, 1);
        // Its barrier went meanwhile, however long ago: the number says so after the name is forgotten.
        let mut released = release(&finalizing, "e2").unwrap();
        released.ended_epochs.clear();
        released.released = None;
        assert_eq!(begin(&released, "e2").unwrap_err().kind(), ErrorKind::Superseded);
        // A run that failed before its barrier is cancelled, once.
        let cancelled = cancel_epoch(&plan, "e2").unwrap();
        assert_eq!(begin(&cancelled, "e2").unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(begin(&cancelled, "e3").unwrap_err().kind(), ErrorKind::Superseded);
        assert_eq!(cancel_epoch(&cancelled, "e2"), None);
        let next = Plan { generation: 1, ..plan };
        assert_eq!(begin(&next, "e2").unwrap_err().kind(), ErrorKind::Superseded);
    }

    #[test]
    fn the_ended_epochs_are_bounded_and_the_newest_are_kept() {
        let mut plan = in_state(State::Open);
        for n in 0..40 {
            plan = cancel_epoch(&plan, &format!("e{n}")).unwrap();
        }
        assert_eq!(plan.ended_epochs.len(), MAX_ENDED_EPOCHS);
        assert!(plan.has_ended("e39") && !plan.has_ended("e0"));
        assert_eq!(plan.cutovers, 40);
    }

    #[test]
    fn every_state_but_final_is_taken_over_and_its_cutover_ends() {
        for state in ALL {
            let taken = take_over(&in_state(state));
            if state == State::Final {
                assert_eq!(taken.unwrap_err().kind(), ErrorKind::AlreadyFinalized);
                continue;
            }
            let taken = taken.unwrap();
            assert_eq!((taken.state, taken.cutover.is_none()), (State::Takeover, true));
            assert_eq!(taken.has_ended("e"), state == State::Finalizing);
            let end = taken_over(&taken, Timestamp::UNIX_EPOCH).unwrap();
            assert_eq!(end.taken_over_at, Some(Timestamp::UNIX_EPOCH));
            assert_eq!(end.ended_repair.as_deref(), (state == State::Repairing).then_some("r"));
        }
    }

    #[test]
    fn a_plan_of_version_1_becomes_one_of_version_2_from_open_alone() {
        let old = |state: State| Plan { version: 1, ..in_state(state) };
        assert_eq!(upgraded(&old(State::Open)).unwrap().version, 2);
        assert_eq!(begin_repair(&old(State::Open), "r").unwrap().version, 2);
        assert_eq!(opened(&old(State::Opening)).unwrap().version, 1);
        assert_eq!(release(&old(State::Finalizing), "e").unwrap().version, 1);
        assert_eq!(cancel_epoch(&old(State::Open), "e"), None);
    }

    #[test]
    fn the_first_clean_audit_is_kept() {
        let at = |seconds: u64| Timestamp::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        let first = audited(&in_state(State::Final), at(1), "a").unwrap();
        assert_eq!(audited(&first, at(2), "b").unwrap().audited, first.audited);
    }

    #[test]
    fn what_goes_beside_the_plan_is_the_documented_row() {
        let plan = in_state(State::Open);
        let rows = |beside: Beside| {
            let transaction = transition(Some(b"read"), &plan, beside).unwrap();
            let mut rows = transaction.actions.into_iter();
            let own = rows.next().unwrap();
            assert_eq!((own.key.as_str(), own.condition), (plan::KEY, Condition::Equals(b"read".to_vec())));
            rows.map(|action| (action.key, action.write, action.condition)).collect::<Vec<_>>()
        };
        let barrier = || BARRIER_KEY.to_owned();
        let marker = || MARKER_KEY.to_owned();
        let put = || Write::Put(b"locked-v1".to_vec());
        let held = || Condition::Equals(b"locked-v1".to_vec());
        let no_marker = || (marker(), Write::Check, Condition::Absent);
        assert_eq!(rows(Beside::Nothing), []);
        assert_eq!(rows(Beside::NotFinalizing), [(barrier(), Write::Check, Condition::Absent), no_marker()]);
        assert_eq!(rows(Beside::TakeBarrier), [(barrier(), put(), Condition::Absent), no_marker()]);
        assert_eq!(
            rows(Beside::AdoptBarrier),
            [(barrier(), put(), Condition::AbsentOrEquals(b"locked-v1".to_vec())), no_marker()]
        );
        assert_eq!(rows(Beside::NoMarker), [no_marker()]);
        assert_eq!(rows(Beside::ReleaseBarrier), [(barrier(), Write::Delete, held()), no_marker()]);
        assert_eq!(
            rows(Beside::FollowMarker),
            [
                (barrier(), put(), Condition::AbsentOrEquals(b"locked-v1".to_vec())),
                (marker(), Write::Check, Condition::Equals(b"complete-v1".to_vec()))
            ]
        );
        assert_eq!(
            rows(Beside::PublishMarker),
            [
                (barrier(), Write::Check, held()),
                (
                    marker(),
                    Write::Put(b"complete-v1".to_vec()),
                    Condition::AbsentOrEquals(b"complete-v1".to_vec())
                )
            ]
        );
    }

    #[test]
    fn a_deadline_is_passed_when_it_is_reached() {
        let cutover = cutover("e");
        assert!(check_deadline(&cutover, Timestamp::UNIX_EPOCH).is_ok());
        let error = check_deadline(&cutover, cutover.deadline).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CutoverExpired);
    }
}
