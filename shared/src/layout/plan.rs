//! The plan's transitions: who may do what from which state, and the one transaction that does it.
//!
//! Pure: each function takes the plan as read and gives the next one, or says why not. A transition is written on
//! exactly the bytes that were read ([`transition`]), so two that were decided on the same plan cannot both land.
//!
//! A function that starts from another state than the plan's answers with [`refused`]: `AlreadyFinalized` once the marker
//! is published, `PlanMismatch` while a repair is not finished, else `Superseded`. An id that was used before is
//! `InvalidInput`.

use jiff::Timestamp;

use super::records::plan::{Cutover, Plan, State};
use super::records::{self, BARRIER_KEY, BARRIER_VALUE, MARKER_KEY, MARKER_VALUE, plan};
use super::transaction::{Action, Condition, Role, Transaction, Write};
use crate::{Error, ErrorKind, Result};

/// What a transition does to barrier and marker beside the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
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
        Beside::NotFinalizing => actions.extend([barrier(Write::Check, Condition::Absent), no_marker()]),
        Beside::TakeBarrier => actions.extend([barrier(put_barrier(), Condition::Absent), no_marker()]),
        Beside::AdoptBarrier => {
            let condition = Condition::AbsentOrEquals(BARRIER_VALUE.to_vec());
            actions.extend([barrier(put_barrier(), condition), no_marker()]);
        }
        Beside::ReleaseBarrier => actions.extend([barrier(Write::Delete, held), no_marker()]),
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

/// Closing → opening the next generation, once every segment record of the old one is closed.
pub fn next_generation(plan: &Plan, segments: u32) -> Result<Plan> {
    from(plan, State::Closing, |next| {
        next.state = State::Opening;
        next.generation += 1;
        next.segments = segments;
    })
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

/// Open → finalizing(epoch). An epoch is used once.
pub fn begin_cutover(plan: &Plan, cutover: Cutover) -> Result<Plan> {
    if plan.released.as_deref() == Some(&cutover.epoch) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("epoch {} was released; an epoch is used once", cutover.epoch),
        )
        .next("start the cutover again with a fresh epoch"));
    }
    from(plan, State::Open, |next| {
        next.state = State::Finalizing;
        next.cutover = Some(cutover);
    })
}

/// Finalizing(epoch) → open.
pub fn release(plan: &Plan, epoch: &str) -> Result<Plan> {
    cutover_of(plan, epoch)?;
    from(plan, State::Finalizing, |next| {
        next.state = State::Open;
        next.released = next.cutover.take().map(|cutover| cutover.epoch);
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

    const ALL: [State; 6] =
        [State::Opening, State::Open, State::Closing, State::Repairing, State::Finalizing, State::Final];

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

    #[test]
    fn each_transition_leaves_only_its_own_state() {
        let moves: [(&str, State, State, Move); 8] = [
            ("opened", State::Opening, State::Open, opened),
            ("close_generation", State::Open, State::Closing, close_generation),
            ("next_generation", State::Closing, State::Opening, |plan| next_generation(plan, 4)),
            ("begin_repair", State::Open, State::Repairing, |plan| begin_repair(plan, "r")),
            ("end_repair", State::Repairing, State::Open, |plan| end_repair(plan, "r")),
            ("begin_cutover", State::Open, State::Finalizing, |plan| begin_cutover(plan, cutover("e2"))),
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
        assert_eq!(begin_cutover(&released, cutover("e")).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(begin_cutover(&released, cutover("e2")).is_ok());
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
        assert_eq!(rows(Beside::ReleaseBarrier), [(barrier(), Write::Delete, held()), no_marker()]);
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
