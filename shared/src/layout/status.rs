//! Reading where a migration is: plan, segments, control, barrier, rejects. All but [`throttle`] and [`change_control`] only
//! read.
//!
//! `NewerRecord` and `Corruption` where a record is not one of this version.

use super::generation::{Leftovers, backfill_segments, load_plan};
use super::records::control::{self, Control};
use super::records::plan::{Plan, State};
use super::records::reject::{self, Reject};
use super::records::segment::{Segment, Walk};
use super::tables::Tables;
use super::transaction::Side;
use super::verify::Summary;
use super::walk;
use crate::step::Progress;
use crate::{Error, ErrorKind, Result};

/// Where a migration is.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The plan; `None` before the first run.
    pub plan: Option<Plan>,
    /// Barrier, marker, another migrator's cursor.
    pub leftovers: Leftovers,
    /// What an operator set.
    pub control: Control,
    /// The generation's segments, in order.
    pub segments: Vec<Segment>,
    /// The running or last cutover's verification.
    pub verification: Option<Summary>,
}

impl Overview {
    /// Reads everything; a few requests.
    pub async fn load(tables: &Tables) -> Result<Self> {
        let plan = load_plan(tables).await?.map(|stored| stored.record);
        let leftovers = Leftovers::load(tables).await?;
        let control = load_control(tables).await?;
        let mut segments = Vec::new();
        let mut verification = None;
        if let Some(plan) = &plan {
            segments = backfill_segments(tables, plan).await?;
            let epoch = plan.cutover.as_ref().map(|cutover| &cutover.epoch).or(plan.released.as_ref());
            if let Some(epoch) = epoch {
                verification = Some(super::cutover::summary_of(tables, plan, epoch).await?);
            }
        }
        Ok(Self { plan, leftovers, control, segments, verification })
    }

    /// All segments' totals together.
    pub fn progress(&self) -> Progress {
        let mut total = Progress::default();
        for segment in &self.segments {
            total += walk::progress(segment);
        }
        total
    }

    /// One word for a person: not started, opening, backfill, repairing, finalizing, takeover, final.
    pub fn phase(&self) -> &'static str {
        match self.plan.as_ref().map(|plan| plan.state) {
            None => "not started",
            Some(State::Opening | State::Closing) => "opening",
            Some(State::Open) => "backfill",
            Some(State::Repairing) => "repairing",
            Some(State::Finalizing) => "finalizing",
            Some(State::Takeover) => "takeover",
            Some(State::Final) => "final",
        }
    }
}

/// What an operator set; the default where nothing is.
pub async fn load_control(tables: &Tables) -> Result<Control> {
    Ok(tables.load::<Control>(control::KEY).await?.map(|stored| stored.record).unwrap_or_default())
}

/// Changes what an operator sets; takes effect at each worker's next page.
///
/// It is written also where nothing changes: an earlier write that is late, as of a command that was killed, is over then.
pub async fn change_control(tables: &Tables, change: impl Fn(&mut Control)) -> Result<Control> {
    loop {
        let stored = tables.load::<Control>(control::KEY).await?;
        let mut next = stored.as_ref().map(|stored| stored.record.clone()).unwrap_or_default();
        change(&mut next);
        next.write = tables.environment().id();
        if tables.put_record(control::KEY, stored.as_ref().map(|stored| &stored.bytes[..]), &next).await? {
            return Ok(next);
        }
    }
}

/// Sets the write request units a second of the whole run; `None`: unlimited.
pub async fn throttle(tables: &Tables, write_units: Option<u32>) -> Result<Control> {
    if write_units == Some(0) {
        return Err(Error::new(ErrorKind::InvalidInput, "a rate of 0 write units would never end")
            .next("stop a run with metashift layout pause"));
    }
    change_control(tables, |control| control.write_units = write_units).await
}

/// Every recorded reject of the plan's generation, in order of segments.
pub async fn rejects(tables: &Tables, plan: &Plan) -> Result<Vec<Reject>> {
    let segments = backfill_segments(tables, plan).await?;
    let keys: Vec<_> = (0_u32..)
        .zip(&segments)
        .filter(|(_, segment)| segment.rejected + segment.diverged > 0)
        .flat_map(|(number, segment)| {
            (0..segment.rejects_recorded).map(move |n| reject::key(plan.generation, number, n))
        })
        .collect();
    let mut found = tables.load_many::<Reject>(&keys).await?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).map(|stored| stored.record).collect())
}

/// What a survey, a rehearsal or a repair counted, all segments of one direction.
pub async fn walk_segments(tables: &Tables, segments: u32, walk: &Walk) -> Result<Vec<Segment>> {
    let keys: Vec<_> = (0..segments).map(|segment| walk.key(segment)).collect();
    let mut found = tables.load_many::<Segment>(&keys).await?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).map(|stored| stored.record).collect())
}

/// What a rehearsal found.
pub async fn rehearsal(tables: &Tables, plan: &Plan, run: &str) -> Result<Summary> {
    Summary::load(tables, plan, |side: Side| Walk::Rehearse { run: run.to_owned(), side }).await
}
