//! The engine of every step that walks a segment of a table: load its record, read pages ahead, and move data and
//! cursor in one transaction, on exactly the record that this worker last read.
//!
//! A worker that was replaced is fenced at the write itself: whatever it sends late fails on the record.

use std::future::Future;
use std::time::Duration;

use super::outcome::Reason;
use super::records::control::{self, Control};
use super::records::segment::{Position, Segment, State, Walk};
use super::records::{self, Stored};
use super::tables::{Page, Tables};
use super::transaction::{Action, Condition, Role, Side, Transaction, Write};
use crate::step::{Budget, Progress, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Items of one Scan where the input does not say: one page of 250-byte items is about 0.25 MB.
pub const DEFAULT_PAGE_SIZE: u32 = 1000;

/// Largest page that the input may ask for; a Scan ends at 1 MB anyway.
pub const MOST_PAGE_SIZE: u32 = 10_000;

/// How long one request is tried again within a step that is ended from outside: less than what a step leaves unused
/// before its deadline. All that waits in a step, one request after another, is bounded by the deadline itself
/// ([`Tables::until`]).
const STEP_PATIENCE: Duration = Duration::from_secs(8);

/// Detail of an output: what this invocation alone did, while the progress is the segment's running total.
pub const STEP: &str = "step";

/// How soon a paused run is worth another look.
pub const PAUSED_RETRY_SECONDS: u32 = 30;

/// Pauses shorter than this, for the write rate, are waited for inside the step.
const LONGEST_RATE_PAUSE: Duration = Duration::from_secs(20);

/// Seconds of a worker's write rate that one transaction of small items takes at most.
const RATE_GROUP_SECONDS: f64 = 5.0;

/// Write units of a small item's copy: 2 for the check on v1 and 2 for the put in v2.
const UNITS_A_KEY: f64 = 4.0;

/// One segment of a walk, and how far this invocation may go.
#[derive(Debug, Clone)]
pub struct SegmentInput {
    /// The segment: from 0.
    pub segment: u32,
    /// Segments of the walk: 1 to 256.
    pub segments: u32,
    /// Items of one Scan: 1 to 10,000.
    pub page_size: u32,
}

/// What a kind of walk does with pages.
pub(super) trait Visitor: Sync {
    /// A page with everything that was read for it.
    type Prepared: Send;

    /// Reads what is needed to judge a page; runs while the page before it is applied.
    fn prepare(&self, tables: &Tables, page: Page) -> impl Future<Output = Result<Self::Prepared>> + Send;

    /// Applies a page; `Some` ends the step with that status before the page is through.
    fn apply(
        &self,
        walker: &mut Walker,
        prepared: Self::Prepared,
    ) -> impl Future<Output = Result<Option<Status>>> + Send;

    /// Called once the scan has ended, before the segment is done; `Some` ends the step with that status.
    fn finish(&self, walker: &mut Walker) -> impl Future<Output = Result<Option<Status>>> + Send;

    /// Refuses to go on, once a page: a deadline, an epoch.
    fn check(&self, tables: &Tables) -> impl Future<Output = Result<()>> + Send;

    /// Crash point after a segment is done.
    fn done(&self) -> &'static str;
}

/// A worker on one segment.
#[derive(Debug)]
pub(super) struct Walker {
    /// The tables, metered for this step alone.
    pub(super) tables: Tables,
    /// The walk.
    pub(super) walk: Walk,
    /// The segment and its page size.
    pub(super) input: SegmentInput,
    /// How far this invocation may go.
    pub(super) budget: Budget,
    /// Most keys of one transaction now; shrinks under contention, grows back.
    pub(super) group_keys: usize,
    key: String,
    stored: Stored<Segment>,
    writer: String,
    writes: u64,
    units_before: (f64, f64),
    conflicts_before: u64,
    progress_before: Progress,
    control: Control,
    share: u32,
    units_paced: f64,
    owed: Duration,
    pages: u64,
}

/// Where a worker's record comes from.
pub(super) enum Origin<'a> {
    /// The plan's transition made it; none there means that somebody else went on.
    Exists,
    /// The first page makes it, while the plan is exactly this; the plan's generation.
    UnderPlan(&'a [u8], u64),
    /// The first page makes it.
    FirstPage {
        /// The plan's generation, for a walk that has one.
        generation: Option<u64>,
        /// The plan was final when it was read.
        after_marker: bool,
    },
}

impl Walker {
    /// Loads or makes the segment's record; `tables` are metered for this step alone.
    pub(super) async fn load(
        tables: &Tables,
        walk: Walk,
        input: SegmentInput,
        budget: Budget,
        origin: Origin<'_>,
    ) -> Result<Self> {
        check_input(&input)?;
        let mut tables = tables.clone();
        if budget.has_deadline() {
            tables = tables.patient(STEP_PATIENCE).until(&budget);
        }
        let key = walk.key(input.segment);
        let writer = tables.environment().id();
        let (plan, generation, after_marker) = match origin {
            Origin::Exists => (None, None, false),
            Origin::UnderPlan(plan, generation) => (Some(plan), Some(generation), false),
            Origin::FirstPage { generation, after_marker } => (None, generation, after_marker),
        };
        let made = matches!(origin, Origin::Exists);
        let stored = match tables.load::<Segment>(&key).await? {
            Some(stored) => stored,
            None if made => return Err(superseded(&key, "its record is not there")),
            None => {
                let first = Segment { after_marker, ..Segment::of_walk(input.segments, generation) };
                create(&tables, &key, &writer, first, plan).await?
            }
        };
        // A record that was made with the plan has the plan's generation in its key or in its id; one of an earlier version
        // does not say how many segments there are.
        let record = &stored.record;
        let same = match made {
            true => record.total == input.segments || record.total == 0,
            false => record.is_of(input.segments, generation),
        };
        if !same {
            return Err(Error::new(
                ErrorKind::PlanMismatch,
                format!(
                    "record {key} is of a walk over {} segments in generation {:?}; this walk has {} in {generation:?}",
                    record.total, record.generation, input.segments
                ),
            )
            .next("start the walk again under a fresh id"));
        }
        if stored.record.state == State::Closed {
            return Err(superseded(&key, "it was closed"));
        }
        let units_before = (stored.record.read_units, stored.record.write_units);
        let conflicts_before = stored.record.conflicts;
        let progress_before = progress(&stored.record);
        let mut walker = Self {
            tables,
            walk,
            input,
            budget,
            group_keys: usize::MAX,
            key,
            stored,
            writer,
            writes: 0,
            units_before,
            conflicts_before,
            progress_before,
            control: Control::default(),
            share: 1,
            units_paced: 0.0,
            owed: Duration::ZERO,
            pages: 0,
        };
        walker.read_control().await?;
        Ok(walker)
    }

    /// What this invocation reports begins with what the record says now.
    pub(super) fn count_from_here(&mut self) {
        self.progress_before = progress(&self.stored.record);
    }

    /// The segment's record as this worker last read or wrote it.
    pub(super) fn segment(&self) -> &Segment {
        &self.stored.record
    }

    /// Walks until the segment is done, the budget is spent or the run is paused.
    pub(super) async fn run<V: Visitor>(&mut self, visitor: &V) -> Result<Status> {
        if self.segment().state == State::Done {
            return Ok(Status::Done);
        }
        if self.control.paused {
            return Ok(Status::Paused);
        }
        if self.budget.is_spent() {
            return Ok(Status::Continue);
        }
        let tables = self.tables.clone();
        let mut upcoming = Some(self.read(&tables, visitor, self.segment().cursor.clone()).await?);
        while let Some((prepared, next, work)) = upcoming.take() {
            if self.control.paused {
                return Ok(Status::Paused);
            }
            if self.budget.is_spent() {
                return Ok(Status::Continue);
            }
            // Nobody would work on a page behind the last one of this invocation.
            let stops_here = self.budget.is_last_page() && next.is_some();
            let next = next.filter(|_| !stops_here);
            let (input, walk) = (self.input.clone(), self.walk.clone());
            let ahead = async {
                match next {
                    Some(position) => read(&tables, visitor, &walk, &input, Some(position)).await.map(Some),
                    None => Ok(None),
                }
            };
            let (ended, ahead, control, allowed) = futures::join!(
                visitor.apply(self, prepared),
                ahead,
                tables.load::<Control>(control::KEY),
                visitor.check(&tables)
            );
            if let Some(status) = ended? {
                return Ok(status);
            }
            allowed?;
            // The end of a segment that was scanned before is no page: what is left to finish has the whole budget.
            if work {
                self.budget.take_page();
            }
            self.pages += 1;
            self.take_control(control?).await?;
            upcoming = ahead?;
            if stops_here {
                return Ok(Status::Continue);
            }
        }
        if let Some(status) = visitor.finish(self).await? {
            return Ok(status);
        }
        let done = self
            .commit(Vec::new(), |segment| {
                segment.state = State::Done;
                segment.cursor = None;
                segment.rechecked = 0;
            })
            .await?;
        if let Err(reasons) = done {
            return Err(Error::new(ErrorKind::Internal, format!("{}: refused: {reasons:?}", self.key)));
        }
        crate::crash::reach(visitor.done()).await;
        Ok(Status::Done)
    }

    async fn read<V: Visitor>(
        &self,
        tables: &Tables,
        visitor: &V,
        after: Option<Position>,
    ) -> Result<(V::Prepared, Option<Position>, bool)> {
        visitor.check(tables).await?;
        read(tables, visitor, &self.walk, &self.input, after).await
    }

    /// Sends `actions` and the segment's record after `change` in one transaction.
    ///
    /// `Ok(Err(reasons))`: conditions of `actions` failed (the reasons are by their index) and nothing was written.
    /// `Superseded`: the record is not as this worker last read it.
    pub(super) async fn commit(
        &mut self,
        mut actions: Vec<Action>,
        change: impl FnOnce(&mut Segment),
    ) -> Result<Result<(), Vec<Reason>>> {
        let usage = self.tables.usage();
        let mut next = self.segment().clone();
        change(&mut next);
        self.writes += 1;
        next.writer = Some(format!("{}:{}", self.writer, self.writes));
        let now = self.tables.environment().now();
        next.started_at = next.started_at.or(Some(now));
        next.updated_at = Some(now);
        next.read_units = self.units_before.0 + usage.consumed.read_units;
        next.conflicts = self.conflicts_before + usage.conflicts;
        // This very transaction is charged after it is written; what it will be is known.
        let layout = self.tables.layout();
        let own_units = 2.0 + actions.iter().map(|action| action.write_units(layout)).sum::<f64>();
        next.write_units = self.units_before.1 + usage.consumed.write_units + own_units;
        let bytes = records::encode(&next)?;
        let own = actions.len();
        actions.push(Action::record(&self.key, Some(&self.stored.bytes), Write::Put(bytes.clone())));
        let token = self.tables.environment().id();
        let sent = self.tables.transact(&Transaction { actions }, &token).await;
        let lost = match &sent {
            Ok(Ok(())) => false,
            Ok(Err(reasons)) => matches!(reasons.get(own), Some(Reason::ConditionFailed(_))),
            Err(error) => error.kind() == ErrorKind::OutcomeUnknown,
        };
        if lost {
            // Nobody else writes these bytes: if they are there, the transaction landed and only its answer was lost.
            let there = self.tables.get(Side::V1, &self.key).await?;
            if there.as_ref().and_then(|item| item.value()) != Some(&bytes[..]) {
                sent?.ok();
                return Err(superseded(&self.key, "another worker moved it on"));
            }
        } else if let Err(reasons) = sent? {
            return Ok(Err(reasons));
        }
        self.stored = Stored { record: next, bytes };
        Ok(Ok(()))
    }

    /// Waits so that this worker keeps its share of the run's write rate; `Some` where that takes too long: the rest
    /// of the wait is in the step's answer.
    pub(super) async fn pace(&mut self) -> Option<Status> {
        let spent = self.tables.usage().consumed.write_units - self.units_paced;
        self.units_paced += spent;
        let pause = Duration::try_from_secs_f64(spent / self.rate()?).unwrap_or(LONGEST_RATE_PAUSE);
        let longest = self.budget.time_left().map_or(LONGEST_RATE_PAUSE, |left| left.min(LONGEST_RATE_PAUSE));
        tokio::time::sleep(pause.min(longest)).await;
        self.owed = pause.saturating_sub(longest);
        (pause > longest).then_some(Status::Continue)
    }

    /// This worker's share of the run's write rate, in units a second.
    fn rate(&self) -> Option<f64> {
        let rate = f64::from(self.control.write_units?) / f64::from(self.share.max(1));
        Some(rate.max(0.001))
    }

    /// Most keys of one transaction: as many as contention allows, and as the write rate pays for in a few seconds.
    pub(super) fn most_keys(&self) -> usize {
        let paid = self.rate().map_or(f64::MAX, |rate| rate * RATE_GROUP_SECONDS / UNITS_A_KEY);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, which is meant"
        )]
        let paid = paid as usize;
        self.group_keys.min(paid).max(1)
    }

    async fn read_control(&mut self) -> Result<()> {
        let control = self.tables.load::<Control>(control::KEY).await?;
        self.take_control(control).await
    }

    async fn take_control(&mut self, control: Option<Stored<Control>>) -> Result<()> {
        self.control = control.map(|stored| stored.record).unwrap_or_default();
        if self.control.write_units.is_some() {
            let keys: Vec<_> = (0..self.input.segments).map(|segment| self.walk.key(segment)).collect();
            let segments = self.tables.load_many::<Segment>(&keys).await?;
            let open = segments.values().filter(|stored| stored.record.state == State::Open).count();
            self.share = u32::try_from(open).unwrap_or(u32::MAX).max(1);
        }
        Ok(())
    }

    /// The answer of a step that ended with `status`.
    pub(super) fn output(&self, status: Status) -> StepOutput {
        let mut output = StepOutput::new(status);
        output.progress = progress(self.segment());
        let usage = self.tables.usage();
        output.consumed = usage.consumed;
        output.retry_after_seconds = match status {
            Status::Paused => Some(PAUSED_RETRY_SECONDS),
            Status::Continue if !self.owed.is_zero() => {
                Some(u32::try_from(self.owed.as_secs()).unwrap_or(u32::MAX).saturating_add(1))
            }
            _ => None,
        };
        let (now, before) = (output.progress, self.progress_before);
        output.with("segment", self.input.segment).with(
            STEP,
            serde_json::json!({
                "scanned": now.scanned.saturating_sub(before.scanned),
                "copied": now.copied.saturating_sub(before.copied),
                "alreadyLive": now.already_live.saturating_sub(before.already_live),
                "throttled": usage.throttled,
                "conflicts": usage.conflicts,
                "pages": self.pages,
            }),
        )
    }
}

/// A segment's totals as progress.
pub(super) fn progress(segment: &Segment) -> Progress {
    Progress {
        scanned: segment.scanned,
        copied: segment.copied,
        already_live: segment.already_live,
        rejected: segment.rejected,
        diverged: segment.diverged,
        estimated_total: None,
    }
}

async fn read<V: Visitor>(
    tables: &Tables,
    visitor: &V,
    walk: &Walk,
    input: &SegmentInput,
    after: Option<Position>,
) -> Result<(V::Prepared, Option<Position>, bool)> {
    let place = (input.segment, input.segments);
    // A survey decides nothing: it reads at half price.
    let consistent = !matches!(walk, Walk::Survey { .. });
    let page = tables.scan(walk.side(), place, input.page_size, after.as_ref(), consistent).await?;
    let next = page.next.clone();
    let work = next.is_some() || !page.items.is_empty();
    Ok((visitor.prepare(tables, page).await?, next, work))
}

async fn create(
    tables: &Tables,
    key: &str,
    writer: &str,
    first: Segment,
    plan: Option<&[u8]>,
) -> Result<Stored<Segment>> {
    let record = Segment { writer: Some(format!("{writer}:0")), ..first };
    let bytes = records::encode(&record)?;
    let mut actions = vec![Action::record(key, None, Write::Put(bytes.clone()))];
    if let Some(plan) = plan {
        let condition = Condition::Equals(plan.to_vec());
        actions.push(Action::v1(records::plan::KEY, Write::Check, condition, Role::Record));
    }
    let sent = tables.transact(&Transaction { actions }, &tables.environment().id()).await?;
    match (sent, tables.load::<Segment>(key).await?) {
        (Ok(()), _) => Ok(Stored { record, bytes }),
        (Err(_), Some(stored)) => Ok(stored),
        (Err(_), None) => Err(superseded(key, "the plan has changed")),
    }
}

pub(super) fn check_input(input: &SegmentInput) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
    if !(1..=records::plan::MOST_SEGMENTS).contains(&input.segments) {
        return invalid(format!(
            "{} segments; 1 to {} are possible",
            input.segments,
            records::plan::MOST_SEGMENTS
        ));
    }
    if input.segment >= input.segments {
        return invalid(format!("segment {} of {}; they count from 0", input.segment, input.segments));
    }
    check_page_size(input.page_size)
}

/// `InvalidInput` for a page of no items or of more than a Scan returns.
pub fn check_page_size(page_size: u32) -> Result<()> {
    if (1..=MOST_PAGE_SIZE).contains(&page_size) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("a page of {page_size} items; 1 to {MOST_PAGE_SIZE} are possible"),
    ))
}

pub(super) fn superseded(key: &str, why: &str) -> Error {
    Error::new(ErrorKind::Superseded, format!("segment {key}: {why}"))
        .next("nothing, if another run is at work; else see metashift layout status and run again")
}
