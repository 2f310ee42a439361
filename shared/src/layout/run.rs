//! The whole migration in one process: the steps in the order that the state machine gives them in AWS.
//!
//! Any run can be dropped at any moment and started again. Beside the errors of its steps a run ends with `Superseded`
//! where its segments stay in another worker's hands, or where it is paused under the barrier.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::backfill::backfill_page;
use super::cutover::{
    self, Evidence, FamilyRead, Installed, Published, Released, Start, Why, check_rollout, check_unblocked,
};
use super::generation::{self, PlanWish, backfill_segments, load_plan, no_plan};
use super::plan::{Seen, cutover_of, refused};
use super::preflight::{Accepted, preflight};
use super::records::plan::{Plan, State};
use super::repair::repair_page;
use super::status;
use super::survey::survey;
use super::tables::Tables;
use super::transaction::Side;
use super::verify::{self, Summary, rehearse, verify};
use super::walk::{SegmentInput, check_page_size};
use crate::step::{Budget, Consumed, Progress, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Times that a segment, on average, may be found in another worker's hands before the run ends.
const MOST_SUPERSEDED: u32 = 3;

/// Longest pause before a segment that was in another worker's hands is looked at again.
const SUPERSEDED_PAUSE: Duration = Duration::from_secs(2);

/// The phases under the barrier.
const VERIFY: &str = "verify";
const VERIFY_EXACTLY: &str = "verify exactly";

/// How often a paused run looks whether it may go on.
const PAUSED_POLL: Duration = Duration::from_secs(1);

/// What a run tells whoever watches it.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A phase begins, with so many segments.
    Phase {
        /// Its name.
        name: &'static str,
        /// Its segments, both directions together.
        segments: u32,
    },
    /// A segment has got on.
    Segment {
        /// The phase.
        name: &'static str,
        /// The segment's number within the phase.
        segment: u32,
        /// Its totals so far.
        progress: Progress,
        /// What this invocation was charged.
        consumed: Consumed,
        /// True once it is done.
        done: bool,
    },
    /// Something that a person should know.
    Note(String),
}

/// Called for each [`Event`].
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// How a run works.
#[derive(Clone)]
pub struct Run {
    /// Both tables.
    pub tables: Tables,
    /// What the plan should be like.
    pub wish: PlanWish,
    /// What a person accepts.
    pub accepted: Accepted,
    /// Items of one Scan.
    pub page_size: u32,
    /// Pages of one step before it reports.
    pub pages_per_step: u32,
    /// Who watches.
    pub observer: Observer,
}

/// What a phase did.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Total {
    /// Totals of the walk, from its start, earlier runs included.
    pub progress: Progress,
    /// What this run was charged.
    pub consumed: Consumed,
}

/// A finished cutover.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Items that the verification found equal.
    pub verified: u64,
    /// How long the barrier was held before the marker; `None` where the marker was there already.
    pub barrier_held: Option<Duration>,
    /// The first reads of the new layout.
    pub families: Vec<FamilyRead>,
    /// What the verification was charged.
    pub consumed: Consumed,
}

impl Run {
    fn note(&self, text: impl Into<String>) {
        (self.observer)(Event::Note(text.into()));
    }

    fn input(&self, segment: u32, segments: u32) -> SegmentInput {
        SegmentInput { segment, segments, page_size: self.page_size }
    }

    fn budget(&self) -> Budget {
        Budget::unbounded(self.tables.environment().clone()).with_pages(Some(self.pages_per_step.max(1)))
    }

    /// Preflight; what the run itself settles is no obstacle to it.
    async fn look(&self) -> Result<()> {
        let report = preflight(&self.tables, self.accepted, None).await?;
        let settled = |blocker: &&Error| is_settled_by_a_run(blocker, self.wish.new_generation);
        report
            .blockers
            .iter()
            .find(|blocker| !settled(blocker))
            .map_or(Ok(()), |blocker| Err(blocker.clone()))?;
        if generation::follow_marker(&self.tables, self.wish.new_generation).await? {
            let plan = load_plan(&self.tables).await?.ok_or_else(no_plan)?.record;
            if plan.taken_over_at.is_some() {
                self.note("the marker was published by another migrator; the plan is final and its workers are fenced");
            }
        }
        Ok(())
    }

    /// Preflight, then the plan in a state that backfill may run in.
    async fn open(&self) -> Result<Plan> {
        check_page_size(self.page_size)?;
        self.look().await?;
        // After the look at the tables: a table of another kind has no plan to read.
        if let Some(cutover) = cutover::release_expired(&self.tables).await? {
            self.note(format!("released the barrier of the expired cutover {}", cutover.epoch));
        }
        let accepted = self.accepted;
        generation::check_leftovers(
            &self.tables,
            accepted.discard_foreign_cursor,
            accepted.adopt_foreign_barrier,
        )
        .await?;
        Ok(generation::open_plan(&self.tables, self.wish).await?.record)
    }

    /// Copies everything that can move. Ends with `BlockedByRejects` or `BlockedByDivergence` where keys cannot.
    pub async fn backfill(&self) -> Result<Total> {
        Ok(self.copy().await?.1)
    }

    /// [`Self::backfill`], and the plan that it copied under.
    async fn copy(&self) -> Result<(Plan, Total)> {
        let plan = self.open().await?;
        if plan.state != State::Open {
            return Err(refused(&plan, State::Open));
        }
        let total = self
            .walk("backfill", plan.segments, |segment| {
                let input = self.input(segment, plan.segments);
                backfill_page(&self.tables, plan.generation, input, self.budget())
            })
            .await?;
        check_unblocked(&backfill_segments(&self.tables, &plan).await?)?;
        Ok((plan, total))
    }

    /// Compares the tables online; `VerificationFailed` where they differ.
    pub async fn rehearse(&self) -> Result<(Summary, Total)> {
        let (summary, total) = self.compare().await?;
        if summary.mismatched > 0 {
            let failed = verify::failed(&summary);
            return Err(failed.next(if summary.is_for_a_person() {
                "metashift layout repair --local --dry-run lists them; rewrite or delete what is keyTooLong, itemTooLarge or \
                 unsupportedItem, in either table; metashift layout repair --local makes v2 follow v1 for the others"
            } else {
                "metashift layout repair --local --dry-run lists them; metashift layout repair --local makes v2 follow v1"
            }));
        }
        Ok((summary, total))
    }

    /// Compares the tables online and gives what differs.
    pub async fn compare(&self) -> Result<(Summary, Total)> {
        self.compare_as(&self.tables.environment().id()).await
    }

    /// As [`Self::compare`], under an id: a comparison of the same id goes on where it stopped.
    ///
    /// `Superseded` where another operator started a generation meanwhile: segments of two plans do not make one table.
    pub async fn compare_as(&self, run: &str) -> Result<(Summary, Total)> {
        let plan = load_plan(&self.tables).await?.ok_or_else(no_plan)?.record;
        generation::check_plan(&plan, &self.tables)?;
        let walked = self
            .walk("rehearse", plan.segments * 2, |number| {
                let (side, segment) = direction(number, plan.segments);
                let input = self.input(segment, plan.segments);
                rehearse(&self.tables, run, side, input, self.budget())
            })
            .await;
        let now = load_plan(&self.tables).await?.ok_or_else(no_plan)?.record;
        if (now.generation, now.segments) != (plan.generation, plan.segments) {
            return Err(Error::new(
                ErrorKind::Superseded,
                format!(
                    "another operator started generation {} while generation {} was compared",
                    now.generation, plan.generation
                ),
            )
            .next("see metashift layout status, then start again"));
        }
        let total = walked?;
        Ok((status::rehearsal(&self.tables, &plan, run).await?, total))
    }

    /// Makes v2 follow v1 wherever they differ, then compares everything.
    pub async fn repair(&self) -> Result<(Total, Summary)> {
        check_page_size(self.page_size)?;
        self.look().await?;
        if let Some(cutover) = cutover::release_expired(&self.tables).await? {
            self.note(format!("released the barrier of the expired cutover {}", cutover.epoch));
        }
        let wanted = self.tables.environment().id();
        let (run, segments) = generation::begin_repair(&self.tables, &wanted).await?;
        if run != wanted {
            self.note(format!("going on with the repair {run}"));
        }
        let total = self
            .walk("repair", segments * 2, |number| {
                let (side, segment) = direction(number, segments);
                repair_page(&self.tables, &run, side, self.input(segment, segments), self.budget())
            })
            .await?;
        generation::finish_repair(&self.tables, &run).await?;
        let (summary, _) = self.compare().await?;
        Ok((total, summary))
    }

    /// Counts v1 exactly and finds what cannot move; a survey of the same id goes on where it stopped.
    pub async fn survey(&self, id: &str, segments: u32) -> Result<Total> {
        check_page_size(self.page_size)?;
        generation::check_segments(segments)?;
        self.walk("survey", segments, |segment| {
            survey(&self.tables, id, self.input(segment, segments), self.budget())
        })
        .await
    }

    /// Backfill, rehearsal, rollout check, barrier, verification, marker, first reads.
    ///
    /// Whatever fails after the barrier releases it, unless the cutover is to be held.
    pub async fn finalize(&self, start: &Start, evidence: &Evidence) -> Result<Finished> {
        // What a person left out is said before hours of work, not after.
        cutover::check_start(start)?;
        check_rollout(evidence, self.tables.environment().now())?;
        let plan = self.open().await?;
        let seen = match plan.state {
            State::Final => return self.finished(start, None, Consumed::default()).await,
            State::Finalizing => None,
            _ => {
                // The generation that was asked for is open by now.
                let wish = PlanWish { new_generation: false, ..self.wish };
                let (copied, _) = Self { wish, ..self.clone() }.copy().await?;
                self.rehearse().await?;
                Some(Seen::of(&copied))
            }
        };
        check_rollout(evidence, self.tables.environment().now())?;
        // What was copied and compared is what is to be published: another operator may have changed the plan since.
        let start = &Start { seen: start.seen.or(seen), ..start.clone() };
        let cutover = match cutover::install_barrier(&self.tables, start).await {
            Ok(Installed::Published) => return self.finished(start, None, Consumed::default()).await,
            Ok(Installed::Held(cutover)) => cutover,
            // An answer that was lost may have left the barrier standing.
            Err(error) => return self.released_after(start, error).await,
        };
        self.note(format!(
            "writers are paused until {} at the latest",
            cutover.deadline.strftime("%F %T UTC")
        ));
        match self.publish(&start.epoch).await {
            Ok(consumed) => {
                let held = crate::environment::elapsed(cutover.installed_at, self.tables.now());
                self.finished(start, Some(held), consumed).await
            }
            Err(error) => self.released_after(start, error).await,
        }
    }

    /// Ends a cutover that failed with `error`; a marker that is there after all makes it a success.
    async fn released_after(&self, start: &Start, error: Error) -> Result<Finished> {
        match self.release(&start.epoch).await {
            Some(Released::Published) => self.finished(start, None, Consumed::default()).await,
            // What mends it is refused while the barrier stands.
            Some(Released::Held(_)) => Err(match error.next_step().map(str::to_owned) {
                Some(then) => error.next(format!("metashift layout abort first; then {then}")),
                None => error.next("metashift layout abort"),
            }),
            _ => Err(error),
        }
    }

    /// Takes the barrier of a cutover of this run away, unless it is to be held, and says what happened.
    pub async fn release(&self, epoch: &str) -> Option<Released> {
        match cutover::release_barrier(&self.tables, Some(epoch), Why::Failure).await {
            Ok(released) => {
                match &released {
                    Released::Released(_) => self.note("the barrier is released; writers go on under v1"),
                    Released::Held(_) => {
                        self.note("the barrier is held, as asked; end it with metashift layout abort");
                    }
                    Released::Published => self.note("the marker is published: the cutover is done"),
                    Released::NotHeld | Released::NotYet(_) => {}
                }
                Some(released)
            }
            Err(failed) => {
                self.note(format!(
                    "the barrier was not released ({failed}); end it now with metashift layout abort; a minute after its \
                     deadline metashift layout run does it too"
                ));
                None
            }
        }
    }

    async fn publish(&self, epoch: &str) -> Result<Consumed> {
        let mut consumed = self.verify(VERIFY, epoch, false).await?.consumed;
        if cutover::publish_marker(&self.tables, epoch).await? == Published::VerifyExactly {
            self.note("the tables differ: comparing every key, so that each difference is named");
            let named = self.verify(VERIFY_EXACTLY, epoch, true).await;
            consumed += named.map_err(|error| verify::not_named(&error))?.consumed;
            if cutover::publish_marker(&self.tables, epoch).await? == Published::VerifyExactly {
                return Err(Error::new(ErrorKind::Internal, "an exact verification asks for an exact one"));
            }
        }
        Ok(consumed)
    }

    /// Compares under the barrier, by the plan as it is under the barrier.
    async fn verify(&self, name: &'static str, epoch: &str, exact: bool) -> Result<Total> {
        let plan = load_plan(&self.tables).await?.ok_or_else(no_plan)?.record;
        cutover_of(&plan, epoch)?;
        self.walk(name, plan.segments * 2, |number| {
            let (side, segment) = direction(number, plan.segments);
            verify(&self.tables, epoch, side, exact, self.input(segment, plan.segments), self.budget())
        })
        .await
    }

    async fn finished(
        &self,
        start: &Start,
        barrier_held: Option<Duration>,
        consumed: Consumed,
    ) -> Result<Finished> {
        let Published::Marker { verified } = cutover::publish_marker(&self.tables, "").await? else {
            return Err(Error::new(ErrorKind::Internal, "the plan was final and is not"));
        };
        let mut families = Vec::new();
        let mut after = None;
        loop {
            let read = cutover::verify_prefix_reads(&self.tables, after.as_deref(), &self.budget()).await?;
            families.extend(read.families);
            after = read.after;
            if after.is_none() {
                break;
            }
        }
        // Writers that stayed may have deleted since.
        for one in families.iter().filter(|one| !start.under_load && one.whole && one.read < one.verified) {
            self.note(format!(
                "{}/ shows {} keys where {} were verified; right only if writers have deleted since",
                one.family, one.read, one.verified
            ));
        }
        Ok(Finished { verified, barrier_held, families, consumed })
    }

    /// Runs `step` on every segment, all at once, until each is done.
    async fn walk<F, Fut>(&self, name: &'static str, segments: u32, step: F) -> Result<Total>
    where
        F: Fn(u32) -> Fut,
        Fut: Future<Output = Result<StepOutput>>,
    {
        (self.observer)(Event::Phase { name, segments });
        let mut total = Total::default();
        let step = &step;
        let turn = |number: u32, delay: Duration| async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            (number, step(number).await)
        };
        let under_barrier = matches!(name, VERIFY | VERIFY_EXACTLY);
        let mut paused = false;
        let mut superseded = 0;
        let mut running: FuturesUnordered<_> =
            (0..segments).map(|number| turn(number, Duration::ZERO)).collect();
        while let Some((number, ended)) = running.next().await {
            let output = match ended {
                // A ghost of a killed run, or another run beside this one: look again, but not for ever.
                Err(error)
                    if error.kind() == ErrorKind::Superseded && superseded < MOST_SUPERSEDED * segments =>
                {
                    superseded += 1;
                    running.push(turn(number, self.tables.environment().jitter(SUPERSEDED_PAUSE)));
                    continue;
                }
                ended => ended?,
            };
            total.consumed += output.consumed;
            (self.observer)(Event::Segment {
                name,
                segment: number,
                progress: output.progress,
                consumed: output.consumed,
                done: output.status == Status::Done,
            });
            match output.status {
                Status::Done => total.progress += output.progress,
                Status::Continue => {
                    let after = Duration::from_secs(output.retry_after_seconds.unwrap_or_default().into());
                    running.push(turn(number, after));
                }
                // Writers must not wait for whoever paused it.
                Status::Paused if under_barrier => {
                    return Err(Error::new(ErrorKind::Superseded, "the run was paused during its cutover")
                        .next("metashift layout resume, then finalize again"));
                }
                Status::Paused => {
                    if !std::mem::replace(&mut paused, true) {
                        self.note("paused; metashift layout resume lets it go on, Ctrl-C stops it for later");
                    }
                    running.push(turn(number, PAUSED_POLL));
                }
                Status::Blocked => {
                    return Err(Error::new(ErrorKind::Internal, format!("segment {number} is blocked")));
                }
            }
        }
        Ok(total)
    }
}

/// True for a blocker of the preflight that the run which follows settles: keys that a backfill or a repair looks at again, a
/// marker that it follows, a layout that a new generation replaces.
pub(super) fn is_settled_by_a_run(blocker: &Error, new_generation: bool) -> bool {
    match blocker.kind() {
        ErrorKind::BlockedByRejects | ErrorKind::BlockedByDivergence | ErrorKind::AlreadyFinalized => true,
        ErrorKind::LayoutMismatch | ErrorKind::PlanMismatch => new_generation,
        _ => false,
    }
}

fn direction(number: u32, segments: u32) -> (Side, u32) {
    if number < segments { (Side::V1, number) } else { (Side::V2, number - segments) }
}
