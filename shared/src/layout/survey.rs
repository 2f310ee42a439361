//! Reading the whole of v1 once, one segment a step, for exact counts and everything that cannot move.
//!
//! Eventually consistent, at half the price: exact for a table that is still. Writes nothing but its own record.

use super::backfill::decide::movable;
use super::key::is_internal;
use super::outcome::Reason;
use super::records::reject;
use super::records::segment::{Mismatch, MismatchKind, Position, Walk};
use super::tables::{Page, Tables};
use super::verify::end_of;
use super::walk::{Origin, SegmentInput, Visitor, Walker};
use crate::step::{Budget, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Surveys the rest of one segment; `run` is the survey's id.
///
/// `Superseded` where another worker has taken the segment over; `InvalidInput` for a segment or page size out of range.
pub async fn survey(tables: &Tables, run: &str, input: SegmentInput, budget: Budget) -> Result<StepOutput> {
    let walk = Walk::Survey { run: run.to_owned() };
    let mut walker = Walker::load(
        &tables.metered(),
        walk,
        input,
        budget,
        Origin::FirstPage { generation: None, after_marker: false },
    )
    .await?;
    let status = walker.run(&Survey).await?;
    let bytes = walker.segment().bytes;
    Ok(walker.output(status).with("bytes", bytes))
}

struct Survey;

struct Counted {
    scanned: u64,
    bytes: u64,
    rejects: Vec<Mismatch>,
    end: Option<Position>,
}

impl Visitor for Survey {
    type Prepared = Counted;

    fn done(&self) -> &'static str {
        "survey-done"
    }

    async fn prepare(&self, tables: &Tables, page: Page) -> Result<Counted> {
        let mut counted = Counted { scanned: 0, bytes: 0, rejects: Vec::new(), end: end_of(&page) };
        for item in page.items.iter().filter(|item| !is_internal(&item.key)) {
            counted.scanned += 1;
            counted.bytes += (item.key.len() + item.value().map_or(0, <[u8]>::len)) as u64;
            if let Err(reject) = movable(tables.layout(), item) {
                let kind = match reject.reason {
                    reject::Reason::KeyTooLong => MismatchKind::KeyTooLong,
                    reject::Reason::ItemTooLarge => MismatchKind::ItemTooLarge,
                    _ => MismatchKind::UnsupportedItem,
                };
                counted.rejects.push(Mismatch { key: item.key.clone(), kind });
            }
        }
        Ok(counted)
    }

    async fn apply(&self, walker: &mut Walker, counted: Counted) -> Result<Option<Status>> {
        let sent: Result<(), Vec<Reason>> = walker
            .commit(Vec::new(), |segment| {
                segment.scanned += counted.scanned;
                segment.bytes += counted.bytes;
                segment.rejected += counted.rejects.len() as u64;
                for reject in counted.rejects {
                    segment.add_mismatch(reject);
                }
                if counted.end.is_some() {
                    segment.cursor = counted.end;
                }
            })
            .await?;
        sent.map_err(|reasons| {
            Error::new(ErrorKind::Internal, format!("a record alone was refused: {reasons:?}"))
        })?;
        Ok(walker.pace().await)
    }

    async fn finish(&self, _walker: &mut Walker) -> Result<Option<Status>> {
        Ok(None)
    }

    async fn check(&self, _tables: &Tables) -> Result<()> {
        Ok(())
    }
}
