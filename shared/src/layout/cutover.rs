//! The cutover: rollout check, barrier, marker, release, and the first reads of the new layout.

use std::time::Duration;

use jiff::Timestamp;

use super::family::ROOT;
use super::generation::{self, Leftovers, backfill_segments, load_plan, no_plan};
use super::outcome::Reason;
use super::plan::{self, Beside, Seen, check_deadline, cutover_of, transition};
use super::records::plan::{Cutover, OnFailure, Plan, State};
use super::records::segment::{Segment, State as SegmentState, Walk};
use super::records::{BARRIER_KEY, Stored};
use super::store::{MetaStore, Mode};
use super::tables::Tables;
use super::transaction::Side;
use super::verify::{self, Summary};
use crate::crash;
use crate::environment::elapsed;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// How long a cutover may take where the input does not say.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(900);

/// Longest deadline that the input may ask for.
pub const LONGEST_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// How long past its deadline a cutover is left to whoever runs it: that one's clock may be behind.
pub const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// How long the barrier's transaction is tried against writers that check it.
const BARRIER_PATIENCE: Duration = Duration::from_secs(60);

/// A family with more items is read by its first page after the cutover, not whole.
const WHOLE_FAMILY: u64 = 20_000;

/// What a cutover is started with.
#[derive(Debug, Clone)]
pub struct Start {
    /// Its id: 1 to 80 letters, digits, `-`, `_` or `.`; used once.
    pub epoch: String,
    /// How long it may take: up to 24 hours.
    pub deadline: Duration,
    /// What happens to the barrier when it fails.
    pub on_failure: OnFailure,
    /// Admission of metadata writes is paused.
    pub writes_paused: bool,
    /// Writers stay, and are refused while the barrier stands.
    pub under_load: bool,
    /// Who runs it.
    pub owner: String,
    /// Takes over a barrier that another migrator left.
    pub adopt_foreign_barrier: bool,
    /// The plan as the run saw it when it copied and compared; `None` begins on any plan.
    pub seen: Option<Seen>,
}

/// A cutover that holds the barrier, or found the work done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// The barrier is held by this epoch.
    Held(Cutover),
    /// The marker is there already.
    Published,
}

/// Open → finalizing with a fresh epoch, and the barrier. The same epoch again is a no-op.
///
/// `BlockedByRejects`, `BlockedByDivergence`, `PlanMismatch` (backfill is not done), `Superseded` (another cutover, or the
/// plan is not as the run saw it), `InvalidInput` (the epoch has ended), `ForeignLeftovers`, `Contended` after 60 seconds
/// against busy writers with nothing changed.
pub async fn install_barrier(tables: &Tables, start: &Start) -> Result<Installed> {
    check_start(start)?;
    let tables = tables.patient(BARRIER_PATIENCE);
    loop {
        let stored = load_plan(&tables).await?.ok_or_else(no_plan)?;
        let plan = &stored.record;
        generation::check_plan(plan, &tables)?;
        match plan.state {
            State::Final => return Ok(Installed::Published),
            State::Finalizing => return Ok(Installed::Held(cutover_of(plan, &start.epoch)?.clone())),
            State::Open => {}
            State::Opening | State::Closing | State::Repairing | State::Takeover => {
                return Err(plan::refused(plan, State::Open));
            }
        }
        // A cursor that came back says that the migrator that was declared dead is alive.
        if Leftovers::load(&tables).await?.foreign_cursor.is_some() {
            return Err(Error::new(
                ErrorKind::ForeignLeftovers,
                "another migrator's cursor is here, so that migrator may be alive",
            )
            .next(
                "stop that migrator; then metashift layout run --discard-foreign-cursor removes its cursor",
            ));
        }
        check_ready(&tables, plan).await?;
        check_fresh(&tables, plan, &start.epoch).await?;
        // Everybody judges the deadline by the table's time; this machine's clock counts where the table does not say it.
        tables.time().await?;
        let now = tables.now();
        let next = plan::begin_cutover(
            plan,
            Cutover {
                epoch: start.epoch.clone(),
                installed_at: now,
                deadline: now.saturating_add(start.deadline).unwrap_or(now),
                on_failure: start.on_failure,
                owner: start.owner.clone(),
                digest_key: tables.environment().id(),
                verified: None,
            },
            start.seen,
        )?;
        let beside = if start.adopt_foreign_barrier { Beside::AdoptBarrier } else { Beside::TakeBarrier };
        let sent = tables
            .transact(&transition(Some(&stored.bytes), &next, beside)?, &tables.environment().id())
            .await?;
        match sent {
            Ok(()) => crash::reach("barrier-installed").await,
            Err(reasons) => {
                let failed = |index: usize| matches!(reasons.get(index), Some(Reason::ConditionFailed(_)));
                // Plan first: its new state is read in the next turn.
                if !failed(0) && failed(2) {
                    generation::follow_marker(&tables, false).await?;
                } else if !failed(0) && failed(1) && start.adopt_foreign_barrier {
                    return Err(Error::new(
                        ErrorKind::ForeignLeftovers,
                        "the write barrier has an unknown value",
                    )
                    .next("find out who wrote it; change nothing by hand"));
                } else if !failed(0) && failed(1) {
                    return Err(Error::new(ErrorKind::ForeignLeftovers, generation::FOREIGN_BARRIER)
                        .next(generation::REMOVE_FOREIGN_BARRIER));
                }
            }
        }
    }
}

/// `InvalidInput` for a cutover that cannot be started as it is.
pub fn check_start(start: &Start) -> Result<()> {
    let invalid = |message: &str, next: &str| Err(Error::new(ErrorKind::InvalidInput, message).next(next));
    if !start.writes_paused && !start.under_load {
        return invalid(
            "a cutover needs writers to be paused",
            "pause admission and say --writes-paused, or accept refused writes with --under-load",
        );
    }
    check_id("epoch", &start.epoch)?;
    if start.deadline.is_zero() || start.deadline > LONGEST_DEADLINE {
        return invalid("the deadline is not between 1 second and 24 hours", "leave it out for 15 minutes");
    }
    Ok(())
}

/// `InvalidInput` for an id that is not 1 to 80 letters, digits, `-`, `_` or `.`.
pub fn check_id(what: &str, id: &str) -> Result<()> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=80).contains(&id.len()) && id.chars().all(valid) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("{what} {id:?}: 1 to 80 letters, digits, -, _ or . are possible"),
    ))
}

/// Every segment done, no rejects, no diverged keys.
async fn check_ready(tables: &Tables, plan: &Plan) -> Result<()> {
    let segments = backfill_segments(tables, plan).await?;
    let done = segments.iter().filter(|segment| segment.state == SegmentState::Done).count();
    if done < plan.segments as usize {
        return Err(Error::new(
            ErrorKind::PlanMismatch,
            format!("backfill is not done: {done} of {} segments are", plan.segments),
        )
        .next("finish it: metashift layout run"));
    }
    check_unblocked(&segments)
}

/// `BlockedByRejects` or `BlockedByDivergence` where keys stand in the way of finalization.
pub fn check_unblocked(segments: &[Segment]) -> Result<()> {
    let rejected: u64 = segments.iter().map(|segment| segment.rejected).sum();
    let diverged: u64 = segments.iter().map(|segment| segment.diverged).sum();
    if rejected > 0 {
        return Err(Error::new(ErrorKind::BlockedByRejects, format!("{rejected} keys cannot move")).next(
            "list them with metashift layout rejects, mend or delete them, then metashift layout run",
        ));
    }
    if diverged > 0 {
        return Err(Error::new(
            ErrorKind::BlockedByDivergence,
            format!("{diverged} keys differ between the tables"),
        )
        .next("list them with metashift layout rejects, mend them with metashift layout repair"));
    }
    Ok(())
}

/// An epoch that has verify records was used before.
async fn check_fresh(tables: &Tables, plan: &Plan, epoch: &str) -> Result<()> {
    let keys: Vec<_> = [Side::V1, Side::V2]
        .into_iter()
        .flat_map(|side| {
            let walk = Walk::Verify { epoch: epoch.to_owned(), side };
            (0..plan.segments).map(move |segment| walk.key(segment))
        })
        .collect();
    if tables.load_many::<Segment>(&keys).await?.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, format!("epoch {epoch} was used before; an epoch is used once"))
        .next("start the cutover again with a fresh epoch"))
}

/// How a publish ended, where it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The marker is there; so many items were found equal.
    Marker {
        /// Items verified.
        verified: u64,
    },
    /// The tables differ and not every key was compared: verify both directions exactly, then publish again.
    VerifyExactly,
}

/// Re-reads all verify records of the epoch and publishes the marker.
///
/// `VerificationFailed` names the differences; `CutoverExpired` past the deadline; `Superseded` where the epoch's
/// barrier is gone; `PlanMismatch` where the verification is not complete.
pub async fn publish_marker(tables: &Tables, epoch: &str) -> Result<Published> {
    loop {
        let stored = load_plan(tables).await?.ok_or_else(no_plan)?;
        let plan = &stored.record;
        if verify::is_final(plan) {
            let verified = plan.cutover.as_ref().and_then(|cutover| cutover.verified).unwrap_or_default();
            return Ok(Published::Marker { verified });
        }
        check_deadline(cutover_of(plan, epoch)?, tables.now())?;
        let summary = summary_of(tables, plan, epoch).await?;
        if !summary.is_complete() {
            return Err(Error::new(
                ErrorKind::PlanMismatch,
                format!("verification is not complete: {} of {} segments", summary.done, summary.segments),
            )
            .next("verify every segment in both directions, then publish again"));
        }
        if !summary.is_equal() {
            return if summary.exact { Err(verify::failed(&summary)) } else { Ok(Published::VerifyExactly) };
        }
        let next = plan::finalize(plan, epoch, summary.v1_items)?;
        let transaction = transition(Some(&stored.bytes), &next, Beside::PublishMarker)?;
        match tables.transact(&transaction, &tables.environment().id()).await {
            Ok(Ok(())) => {
                crash::reach("marker-published").await;
                return Ok(Published::Marker { verified: summary.v1_items });
            }
            Ok(Err(reasons)) => {
                let failed = |index: usize| matches!(reasons.get(index), Some(Reason::ConditionFailed(_)));
                if !failed(0) {
                    return Err(Error::new(
                        ErrorKind::ForeignLeftovers,
                        "the plan is ours, but somebody else changed the barrier or the marker",
                    )
                    .next("see metashift layout status; stop the other migrator"));
                }
            }
            // Whether it landed is in the plan, which only this epoch's publish makes final.
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                if load_plan(tables).await?.is_none_or(|stored| !verify::is_final(&stored.record)) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// What the verification of an epoch says.
pub async fn summary_of(tables: &Tables, plan: &Plan, epoch: &str) -> Result<Summary> {
    Summary::load(tables, plan, |side| Walk::Verify { epoch: epoch.to_owned(), side }).await
}

/// Why a barrier is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The run failed.
    Failure,
    /// A person says so; the only reason that a held cutover gives way to.
    Abort,
    /// The execution that owns the cutover ended without releasing it.
    OwnerEnded,
    /// The deadline may have passed.
    Deadline,
}

/// How a release ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// The barrier is gone; writers go on under v1.
    Released(Cutover),
    /// The marker is there: the run goes on as a success.
    Published,
    /// This epoch does not hold the barrier.
    NotHeld,
    /// The cutover asked to be held for a person.
    Held(Cutover),
    /// The deadline, or the minute after it, is still ahead by the table's time.
    NotYet(Duration),
}

/// Takes the barrier away, before the marker; `epoch` names the cutover, `None` whichever holds it.
///
/// An epoch that does not hold the barrier is taken out of use, so that a request to install it that arrives late begins no
/// cutover that nothing watches.
pub async fn release_barrier(tables: &Tables, epoch: Option<&str>, why: Why) -> Result<Released> {
    let tables = tables.patient(BARRIER_PATIENCE);
    loop {
        match generation::follow_marker(&tables, false).await {
            Ok(false) => {}
            Ok(true) => return Ok(Released::Published),
            // The marker decides, whatever layout and companion this call names.
            Err(error) if matches!(error.kind(), ErrorKind::LayoutMismatch | ErrorKind::PlanMismatch) => {
                return Ok(Released::Published);
            }
            Err(error) => return Err(error),
        }
        let Some(stored) = load_plan(&tables).await? else {
            return Ok(Released::NotHeld);
        };
        let plan = &stored.record;
        match plan.state {
            State::Final => return Ok(Released::Published),
            State::Finalizing => {}
            // The marker was not there, and the takeover rests on it: the next look finds it.
            State::Takeover => continue,
            State::Opening | State::Open | State::Closing | State::Repairing => {
                let Some(next) = epoch.and_then(|epoch| plan::cancel_epoch(plan, epoch)) else {
                    return Ok(Released::NotHeld);
                };
                let transaction = transition(Some(&stored.bytes), &next, Beside::NoMarker)?;
                if tables.transact(&transaction, &tables.environment().id()).await?.is_ok() {
                    crash::reach("epoch-cancelled").await;
                    return Ok(Released::NotHeld);
                }
                continue;
            }
        }
        let Some(cutover) =
            plan.cutover.clone().filter(|cutover| epoch.is_none_or(|epoch| cutover.epoch == epoch))
        else {
            return Ok(Released::NotHeld);
        };
        if cutover.on_failure == OnFailure::Hold && why != Why::Abort {
            return Ok(Released::Held(cutover));
        }
        if why == Why::Deadline {
            let due = cutover.deadline.saturating_add(EXPIRY_MARGIN).unwrap_or(Timestamp::MAX);
            match tables.time().await? {
                Some(now) if now >= due => {}
                Some(now) => return Ok(Released::NotYet(elapsed(now, due))),
                // A table that does not say its time: what cannot be found out ends nothing.
                None => return Ok(Released::NotYet(EXPIRY_MARGIN)),
            }
        }
        let next = plan::release(plan, &cutover.epoch)?;
        let transaction = transition(Some(&stored.bytes), &next, Beside::ReleaseBarrier)?;
        let Err(reasons) = tables.transact(&transaction, &tables.environment().id()).await? else {
            crash::reach("barrier-released").await;
            return Ok(Released::Released(cutover));
        };
        let failed = |index: usize| matches!(reasons.get(index), Some(Reason::ConditionFailed(_)));
        if !failed(0) && !failed(2) && failed(1) {
            return self_heal(&tables, &stored, &next, cutover).await;
        }
    }
}

/// The plan says finalizing and the barrier is not there, or not ours: somebody removed it by hand.
async fn self_heal(
    tables: &Tables,
    stored: &Stored<Plan>,
    next: &Plan,
    cutover: Cutover,
) -> Result<Released> {
    if tables.get(Side::V1, BARRIER_KEY).await?.is_some() {
        return Err(Error::new(ErrorKind::ForeignLeftovers, "the write barrier has an unknown value")
            .next("find out who wrote it; change nothing by hand"));
    }
    let transaction = transition(Some(&stored.bytes), next, Beside::NotFinalizing)?;
    match tables.transact(&transaction, &tables.environment().id()).await? {
        Ok(()) => Ok(Released::Released(cutover)),
        Err(_) => {
            Err(Error::new(ErrorKind::Contended, "the cutover changed while it was released")
                .next("try again"))
        }
    }
}

/// Releases a cutover whose deadline has passed by a minute of the table's time, unless it is held: what a dead run left is ended
/// by the next verb that changes things, and never by looking.
pub async fn release_expired(tables: &Tables) -> Result<Option<Cutover>> {
    // A server that does not answer is an error soon; only a release is patient.
    if load_plan(tables).await?.is_none_or(|stored| stored.record.state != State::Finalizing) {
        return Ok(None);
    }
    match release_barrier(tables, None, Why::Deadline).await? {
        Released::Released(cutover) => Ok(Some(cutover)),
        _ => Ok(None),
    }
}

/// Evidence that every writer is dual-capable.
#[derive(Debug, Clone, PartialEq)]
pub enum Evidence {
    /// A person says so.
    Acknowledged(bool),
    /// The metric `WriterMode` as CloudWatch has it, by minute.
    Metric {
        /// Minutes that have a value.
        minutes: Vec<Minute>,
        /// Reporters that there must be at least.
        minimum: u32,
        /// Only minutes that began within this time count.
        window: Duration,
    },
}

/// What `WriterMode` was within one minute. A node reports once a minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Minute {
    /// When the minute began.
    pub at: Timestamp,
    /// The largest value: above 0 where any reporter is v1-only.
    pub maximum: f64,
    /// How many reports there were.
    pub reports: f64,
}

/// `RolloutNotReady` unless the evidence shows that no writer is v1-only. Silence shows nothing.
pub fn check_rollout(evidence: &Evidence, now: Timestamp) -> Result<()> {
    let not_ready =
        |message: String, next: &str| Err(Error::new(ErrorKind::RolloutNotReady, message).next(next));
    match evidence {
        Evidence::Acknowledged(true) => Ok(()),
        Evidence::Acknowledged(false) => not_ready(
            "nobody has said that every metadata node runs in dual mode".to_owned(),
            "check the nodes, then say --rollout-acknowledged",
        ),
        Evidence::Metric { minutes, minimum, window } => {
            let fresh: Vec<_> = minutes.iter().filter(|minute| elapsed(minute.at, now) <= *window).collect();
            if fresh.iter().any(|minute| minute.maximum > 0.0) {
                return not_ready(
                    format!("a node wrote v1 only within the last {} s", window.as_secs()),
                    "roll every node to dual mode, then finalize again",
                );
            }
            let most = fresh.iter().map(|minute| minute.reports).fold(0.0, f64::max);
            if most < f64::from(*minimum) {
                return not_ready(
                    format!("{most} of at least {minimum} nodes reported within {} s", window.as_secs()),
                    "find the silent nodes; silence is not zero",
                );
            }
            Ok(())
        }
    }
}

/// What the first reads of the new layout showed of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyRead {
    /// The family.
    pub family: String,
    /// Items that the verification counted.
    pub verified: u64,
    /// Items read; of a family with more than 20,000, its first page.
    pub read: u64,
    /// True where every item was read.
    pub whole: bool,
}

/// The first reads of the new layout, as far as one call's budget goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixReads {
    /// Families read by this call, in order.
    pub families: Vec<FamilyRead>,
    /// The family to go on after; `None` once every family is read.
    pub after: Option<String>,
}

/// Families that one call reads at most; its result lists them all, in less than 32 KB.
pub const MAX_FAMILIES_READ: usize = 50;

/// Reads the families behind `after` by their prefixes, from v2 alone, and counts. Fails if any read scanned v1.
///
/// Stops after [`MAX_FAMILIES_READ`] families or when the budget is spent, and says where to go on. Writers may be at work
/// again, so that counts may have moved on. A table that was taken over has no verification: nothing is read.
pub async fn verify_prefix_reads(
    tables: &Tables,
    after: Option<&str>,
    budget: &Budget,
) -> Result<PrefixReads> {
    let tables = tables.metered();
    let stored = load_plan(&tables).await?.ok_or_else(no_plan)?;
    if !verify::is_final(&stored.record) {
        return Err(plan::refused(&stored.record, State::Final));
    }
    let Some(cutover) = &stored.record.cutover else { return Ok(PrefixReads::default()) };
    let summary = summary_of(&tables, &stored.record, &cutover.epoch).await?;
    // A dual node reads v2 alone once it has seen the marker, as a v2-only node does.
    let store = MetaStore::open(tables.clone(), Mode::Dual).await?;
    let mut reads = PrefixReads::default();
    for (family, verified) in &summary.families {
        // Keys without a / have no prefix to be read by; the rest of a long tail is counted together.
        if family.is_empty() || family == ROOT || after.is_some_and(|after| family.as_str() <= after) {
            continue;
        }
        if reads.families.len() == MAX_FAMILIES_READ || (budget.is_spent() && !reads.families.is_empty()) {
            reads.after = reads.families.last().map(|last: &FamilyRead| last.family.clone());
            break;
        }
        let prefix = format!("{family}/");
        let whole = *verified <= WHOLE_FAMILY;
        let read = if whole {
            store.list(&prefix).await?.len() as u64
        } else {
            let page = store.prefix_page(&prefix, 1000, None).await?;
            page.entries.len() as u64
        };
        reads.families.push(FamilyRead { family: family.clone(), verified: *verified, read, whole });
    }
    if store.usage().requests.contains_key("Scan v1") {
        return Err(Error::new(ErrorKind::Internal, "a prefix read of the new layout scanned the old table"));
    }
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_not_zero() {
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(1000);
        let kind = |minutes: &[(u64, f64, f64)]| {
            let minute = |&(age, maximum, reports): &(u64, f64, f64)| Minute {
                at: now - Duration::from_secs(age),
                maximum,
                reports,
            };
            let minutes = minutes.iter().map(minute).collect();
            let evidence = Evidence::Metric { minutes, minimum: 2, window: Duration::from_secs(300) };
            check_rollout(&evidence, now).err().map(|error| error.kind())
        };
        assert_eq!(kind(&[(60, 0.0, 2.0), (120, 0.0, 2.0)]), None);
        assert_eq!(kind(&[]), Some(ErrorKind::RolloutNotReady));
        assert_eq!(kind(&[(60, 0.0, 1.0), (120, 0.0, 1.0)]), Some(ErrorKind::RolloutNotReady));
        assert_eq!(kind(&[(301, 0.0, 9.0)]), Some(ErrorKind::RolloutNotReady));
        assert_eq!(kind(&[(60, 0.0, 9.0), (120, 1.0, 9.0)]), Some(ErrorKind::RolloutNotReady));
        assert!(check_rollout(&Evidence::Acknowledged(false), now).is_err());
        assert!(check_rollout(&Evidence::Acknowledged(true), now).is_ok());
    }

    #[test]
    fn an_id_is_short_and_plain() {
        assert!(check_id("epoch", "run-1_a.B").is_ok());
        for id in ["", "a/b", "a b", &"x".repeat(81)] {
            assert!(check_id("epoch", id).is_err(), "{id}");
        }
    }
}
