//! Making v2 follow v1, one differing key at a time, before the marker and only when asked.
//!
//! A node that was rolled back to v1 alone leaves copies in v2 that are stale or should be gone. Each write here is
//! conditional on exactly what was read of both copies, and moves the segment's cursor in the same transaction, so
//! live dual writers may run beside it and a late write of a repair that has ended fails.

use super::backfill::decide::movable;
use super::key::{MOST_V2_KEY_BYTES, is_internal};
use super::outcome::Reason;
use super::records::plan::{self, Plan, State as PlanState};
use super::records::segment::{Position, Segment, State as SegmentState, Walk};
use super::tables::{Content, Item, Page, Tables};
use super::transaction::{Action, Condition, Role, Side, Write, follow};
use super::verify::end_of;
use super::walk::{Origin, SegmentInput, Visitor, Walker};
use crate::step::{Budget, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Times that one key is judged anew because its copies changed, before it is left as it is.
const MOST_REFUSED: u32 = 100;

/// Repairs the rest of one segment of one table's walk; the record is made when the repair begins
/// ([`super::generation::begin_repair`]).
///
/// A key that kept changing is left and counted as diverged; the comparison that follows a repair says what became of
/// it. `Superseded` where another worker has taken the segment over or the repair has ended.
pub async fn repair_page(
    tables: &Tables,
    run: &str,
    side: Side,
    input: SegmentInput,
    budget: Budget,
) -> Result<StepOutput> {
    let tables = &tables.metered();
    let walk = Walk::Repair { run: run.to_owned(), side };
    if let Some(output) = closed(tables, &walk, run, &input).await? {
        return Ok(output);
    }
    let mut walker = Walker::load(tables, walk, input, budget, Origin::Exists).await?;
    let status = walker.run(&Repair { side }).await?;
    Ok(walker.output(status))
}

/// A segment that was closed while the plan still says repairing: everything was done, and whoever was ending the
/// repair stopped before the plan was opened.
async fn closed(tables: &Tables, walk: &Walk, run: &str, input: &SegmentInput) -> Result<Option<StepOutput>> {
    let record = tables.load::<Segment>(&walk.key(input.segment)).await?;
    let Some(segment) = record.filter(|stored| stored.record.state == SegmentState::Closed) else {
        return Ok(None);
    };
    let plan = tables.load::<Plan>(plan::KEY).await?;
    let ending = plan.is_some_and(|stored| {
        stored.record.state == PlanState::Repairing && stored.record.repair_run.as_deref() == Some(run)
    });
    Ok(ending.then(|| {
        let mut output = StepOutput::new(Status::Done);
        output.progress = super::walk::progress(&segment.record);
        output.with("segment", input.segment)
    }))
}

struct Repair {
    side: Side,
}

/// A page's items, the keys among them that seem to differ, and where the scan goes on.
struct Suspects {
    scanned: u64,
    differing: Vec<Suspect>,
    end: Option<Position>,
}

struct Suspect {
    item: Item,
    position: Position,
    scanned_before: u64,
}

/// What makes v2 follow v1 for one key, from both copies at one moment.
enum Mend {
    /// They are equal by now.
    Equal,
    /// v1 holds what v2 cannot, or v2's copy is no record; for a person.
    Impossible,
    /// Other writes kept winning.
    Busy,
    /// These actions.
    Actions(Vec<Action>),
}

impl Repair {
    async fn mend(&self, tables: &Tables, item: &Item) -> Result<Mend> {
        let layout = tables.layout();
        if self.is_misplaced(tables, item) {
            let Content::Value(value) = &item.content else { return Ok(Mend::Impossible) };
            let mut stray = Action::v2(
                layout,
                &item.key,
                Write::Delete,
                Condition::AbsentOrEquals(value.clone()),
                Role::Target,
            );
            stray.bucket.clone_from(&item.bucket);
            return Ok(Mend::Actions(vec![stray]));
        }
        let (v1, v2) = tables.get_settled(&item.key).await?;
        let wanted = match v1.as_ref().map(|v1| movable(layout, v1)) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(_)) => return Ok(Mend::Impossible),
        };
        let stale = match &v2 {
            None => None,
            Some(Item { content: Content::Value(value), .. }) => Some(value.as_slice()),
            Some(_) => return Ok(Mend::Impossible),
        };
        if wanted == stale {
            return Ok(Mend::Equal);
        }
        Ok(Mend::Actions(follow(layout, &item.key, wanted, stale).into()))
    }

    /// An item of v2 where no read looks for it, or a record of the migrator that was copied there by hand.
    fn is_misplaced(&self, tables: &Tables, item: &Item) -> bool {
        let bucket = item.bucket.as_deref();
        bucket.is_some_and(|bucket| bucket != tables.layout().bucket(&item.key))
            || (self.side == Side::V2 && is_internal(&item.key))
    }
}

impl Visitor for Repair {
    type Prepared = Suspects;

    fn done(&self) -> &'static str {
        "repair-done"
    }

    async fn prepare(&self, tables: &Tables, page: Page) -> Result<Suspects> {
        let end = end_of(&page);
        let items: Vec<_> =
            page.items.into_iter().filter(|item| self.side == Side::V2 || !is_internal(&item.key)).collect();
        let other = if self.side == Side::V1 { Side::V2 } else { Side::V1 };
        let keys: Vec<_> = items
            .iter()
            .map(|item| item.key.as_str())
            .filter(|key| key.len() <= MOST_V2_KEY_BYTES && !is_internal(key))
            .collect();
        let others = tables.get_many(other, &keys).await?;
        let mut suspects = Suspects { scanned: 0, differing: Vec::new(), end };
        for item in items {
            let placed =
                item.bucket.as_deref().is_none_or(|bucket| bucket == tables.layout().bucket(&item.key));
            let equal = item.value().is_some()
                && others.get(&item.key).is_some_and(|other| other.value() == item.value());
            if !(placed && equal) {
                let position = Position { bucket: item.bucket.clone(), pk: item.key.clone() };
                suspects.differing.push(Suspect { item, position, scanned_before: suspects.scanned });
            }
            suspects.scanned += 1;
        }
        Ok(suspects)
    }

    async fn apply(&self, walker: &mut Walker, suspects: Suspects) -> Result<Option<Status>> {
        let mut counted = 0;
        for suspect in suspects.differing {
            let mut refused = 0;
            loop {
                if walker.budget.is_spent() {
                    return Ok(Some(Status::Continue));
                }
                let mend = if refused < MOST_REFUSED {
                    self.mend(&walker.tables, &suspect.item).await?
                } else {
                    Mend::Busy
                };
                let count = |segment: &mut Segment| {
                    segment.scanned += suspect.scanned_before + 1 - counted;
                    segment.cursor = Some(suspect.position.clone());
                };
                let (actions, changing) = match mend {
                    Mend::Equal => break,
                    Mend::Impossible | Mend::Busy => (Vec::new(), false),
                    Mend::Actions(actions) => (actions, true),
                };
                let sent = walker
                    .commit(actions, |segment| {
                        count(segment);
                        match refused {
                            _ if changing => segment.copied += 1,
                            MOST_REFUSED => segment.diverged += 1,
                            _ => segment.rejected += 1,
                        }
                    })
                    .await;
                match sent {
                    Ok(Ok(())) => {
                        counted = suspect.scanned_before + 1;
                        crate::crash::reach("repair-group").await;
                        if let Some(status) = walker.pace().await {
                            return Ok(Some(status));
                        }
                        break;
                    }
                    // A live writer moved the key in between: read both copies again. A stray copy is not read again.
                    Ok(Err(reasons))
                        if reasons.iter().any(|one| matches!(one, Reason::ConditionFailed(_))) =>
                    {
                        refused = if self.is_misplaced(&walker.tables, &suspect.item) {
                            MOST_REFUSED
                        } else {
                            refused + 1
                        };
                    }
                    Ok(Err(reasons)) => {
                        return Err(Error::new(
                            ErrorKind::Internal,
                            format!("repair of {:?} was refused: {reasons:?}", suspect.item.key),
                        ));
                    }
                    // One key that is written all the time ends no walk.
                    Err(error) if changing && error.kind() == ErrorKind::Contended => refused = MOST_REFUSED,
                    Err(error) => return Err(error),
                }
            }
        }
        let rest = suspects.scanned - counted;
        let sent = walker
            .commit(Vec::new(), |segment| {
                segment.scanned += rest;
                if suspects.end.is_some() {
                    segment.cursor = suspects.end;
                }
            })
            .await?;
        sent.map_err(|reasons| {
            Error::new(ErrorKind::Internal, format!("a record alone was refused: {reasons:?}"))
        })?;
        Ok(None)
    }

    async fn finish(&self, _walker: &mut Walker) -> Result<Option<Status>> {
        Ok(None)
    }

    async fn check(&self, _tables: &Tables) -> Result<()> {
        Ok(())
    }
}
