//! Copying v1 to v2, one segment a step.
//!
//! For each group of scanned keys one transaction checks that v1 still holds what was scanned, puts the missing
//! copies where v2 has none, records what cannot move, and advances the segment's cursor. Nothing is ever put
//! unconditionally: a key that was deleted or changed since the scan fails its check, is read again and left to
//! what its writer did.

pub mod decide;
mod recheck;

use decide::{Entry, Verdict};

use super::key::{MOST_V2_KEY_BYTES, is_internal};
use super::outcome::Reason;
use super::records::reject::{self, Reject};
use super::records::segment::{Position, Segment, State, Walk};
use super::records::{self};
use super::tables::{Page, Tables};
use super::transaction::{Action, MOST_BYTES, Side, Write, copy};
use super::walk::{Origin, SegmentInput, Visitor, Walker};
use crate::step::{Budget, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Most keys of one group: 49 × (check and put) + the segment's record = 99 of DynamoDB's 100 actions.
pub const MOST_GROUP_KEYS: usize = 49;

/// Most rejects recorded in one group, each an action of up to about 2.5 KB.
const MOST_GROUP_REJECTS: usize = 25;

/// Most actions of one group beside the segment's record.
const MOST_GROUP_ACTIONS: usize = 98;

/// Times that the keys of one group are judged anew because they changed, before those that still do are left for
/// later.
const MOST_REFUSED: u32 = 100;

/// Bytes of one group: DynamoDB's 4 MB less the largest segment record.
const MOST_GROUP_BYTES: usize = MOST_BYTES - 64 * 1024;

/// Copies the rest of one segment, as far as the budget goes.
///
/// The segment's record is made by [`super::generation::open_plan`]. A segment that is done is looked at again only for
/// keys that could not move: those that can now, do.
///
/// `Superseded` where another worker has taken the segment over, or it was closed or never opened; `InvalidInput` for a
/// segment or page size out of range. A key that cannot move is counted and recorded, and no error; so is one that other
/// writes keep this walk from copying, as diverged. Recorded keys are looked at again at the segment's end.
pub async fn backfill_page(
    tables: &Tables,
    generation: u64,
    input: SegmentInput,
    budget: Budget,
) -> Result<StepOutput> {
    let mut walker =
        Walker::load(&tables.metered(), Walk::Backfill { generation }, input, budget, Origin::Exists).await?;
    walker.group_keys = MOST_GROUP_KEYS;
    let visitor = Backfill { generation };
    let status = if walker.segment().state == State::Done {
        let ended = recheck::recheck(&mut walker, generation).await?;
        if ended.is_none() && walker.segment().rechecked > 0 {
            commit_alone(&mut walker, |segment| segment.rechecked = 0).await?;
        }
        ended.unwrap_or(Status::Done)
    } else {
        walker.run(&visitor).await?
    };
    Ok(walker.output(status))
}

async fn commit_alone(walker: &mut Walker, change: impl FnOnce(&mut Segment)) -> Result<()> {
    match walker.commit(Vec::new(), change).await? {
        Ok(()) => Ok(()),
        Err(reasons) => {
            Err(Error::new(ErrorKind::Internal, format!("a record alone was refused: {reasons:?}")))
        }
    }
}

struct Backfill {
    generation: u64,
}

impl Visitor for Backfill {
    type Prepared = (Vec<Entry>, Option<Position>);

    fn done(&self) -> &'static str {
        "backfill-done"
    }

    async fn prepare(&self, tables: &Tables, page: Page) -> Result<Self::Prepared> {
        let keys = page.items.iter().map(|item| item.key.as_str());
        let keys: Vec<_> = keys.filter(|key| !is_internal(key) && key.len() <= MOST_V2_KEY_BYTES).collect();
        let copies = tables.get_many(Side::V2, &keys).await?;
        let mut entries = Vec::with_capacity(page.items.len());
        for item in page.items {
            let position = Position { bucket: None, pk: item.key.clone() };
            let verdict = if is_internal(&item.key) {
                Verdict::Internal
            } else {
                let verdict = decide::first(tables.layout(), &item, copies.get(&item.key));
                if verdict == Verdict::Differs { settle(tables, &item.key).await? } else { verdict }
            };
            entries.push(Entry { position, verdict });
        }
        Ok((entries, page.next))
    }

    async fn apply(&self, walker: &mut Walker, prepared: Self::Prepared) -> Result<Option<Status>> {
        let (mut entries, next) = prepared;
        if entries.is_empty() {
            if let Some(position) = next {
                commit_alone(walker, |segment| segment.cursor = Some(position)).await?;
            }
            return Ok(None);
        }
        while !entries.is_empty() {
            if walker.budget.is_spent() {
                return Ok(Some(Status::Continue));
            }
            let size = group_size(walker, &entries);
            let rest = entries.split_off(size);
            let mut group = std::mem::replace(&mut entries, rest);
            // The end of the page may lie behind its last item.
            let end = if entries.is_empty() { next.clone() } else { None };
            if !self.commit_group(walker, &mut group, end).await? {
                entries.splice(0..0, group);
                continue;
            }
            crate::crash::reach("backfill-group").await;
            if let Some(status) = walker.pace().await {
                return Ok(Some(status));
            }
        }
        Ok(None)
    }

    async fn finish(&self, walker: &mut Walker) -> Result<Option<Status>> {
        recheck::recheck(walker, self.generation).await
    }

    async fn check(&self, _tables: &Tables) -> Result<()> {
        Ok(())
    }
}

impl Backfill {
    /// Commits a group; `false`: it is too large by now, or for the contention it met, and all of it is still to do.
    async fn commit_group(
        &self,
        walker: &mut Walker,
        group: &mut [Entry],
        end: Option<Position>,
    ) -> Result<bool> {
        let mut refused = 0;
        loop {
            let (actions, owners) = self.actions(walker, group)?;
            let Some(last) = group.last() else { return Ok(true) };
            let cursor = end.clone().unwrap_or_else(|| last.position.clone());
            let sent = walker
                .commit(actions, |segment| {
                    for entry in group.iter() {
                        entry.verdict.count(&entry.position.pk, segment);
                    }
                    segment.cursor = Some(cursor);
                })
                .await;
            match sent {
                Ok(Ok(())) => {
                    walker.group_keys = (walker.group_keys + 8).min(MOST_GROUP_KEYS);
                    return Ok(true);
                }
                Ok(Err(reasons)) => {
                    // Each key whose condition failed is judged anew from both copies at one moment.
                    let mut moved: Vec<usize> = reasons
                        .iter()
                        .zip(&owners)
                        .filter(|(reason, _)| matches!(reason, Reason::ConditionFailed(_)))
                        .map(|(_, owner)| *owner)
                        .collect();
                    moved.dedup();
                    for owner in moved {
                        if let Some(entry) = group.get_mut(owner) {
                            entry.verdict = settle(&walker.tables, &entry.position.pk).await?;
                            if refused >= MOST_REFUSED {
                                leave_for_later(entry);
                            }
                        }
                    }
                    refused += 1;
                    // A value that grew may take the group over a transaction's limit.
                    if group_size(walker, group) < group.len() {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Contended && group.len() > 1 => {
                    walker.group_keys = (walker.group_keys / 2).max(1);
                    return Ok(false);
                }
                // One key that is written all the time ends no walk.
                Err(error)
                    if error.kind() == ErrorKind::Contended
                        && group.first_mut().is_some_and(leave_for_later) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The group's actions, and for each the index of the entry that it belongs to.
    fn actions(&self, walker: &Walker, group: &[Entry]) -> Result<(Vec<Action>, Vec<usize>)> {
        let layout = walker.tables.layout();
        let mut recorded = walker.segment().rejects_recorded;
        let mut actions = Vec::new();
        let mut owners = Vec::new();
        for (owner, entry) in group.iter().enumerate() {
            let before = actions.len();
            match &entry.verdict {
                Verdict::Copy(value) => actions.extend(copy(layout, &entry.position.pk, value)),
                Verdict::Reject(reject) => {
                    actions.push(record_reject(self.generation, walker.input.segment, recorded, reject)?);
                    recorded += 1;
                }
                Verdict::Internal | Verdict::AlreadyLive(_) | Verdict::Gone | Verdict::Differs => {}
            }
            owners.extend(std::iter::repeat_n(owner, actions.len() - before));
        }
        Ok((actions, owners))
    }
}

/// Records a key that was to be copied, and that other writes keep busy, as diverged; `false`: it was not to be copied.
fn leave_for_later(entry: &mut Entry) -> bool {
    let copied = matches!(entry.verdict, Verdict::Copy(_));
    if copied {
        let detail = "other writes kept winning while it was copied";
        entry.verdict = Verdict::Reject(Reject::new(&entry.position.pk, reject::Reason::Diverged, detail));
    }
    copied
}

fn record_reject(generation: u64, segment: u32, n: u64, reject: &Reject) -> Result<Action> {
    let bytes = records::encode(reject)?;
    Ok(Action::record(&reject::key(generation, segment, n), None, Write::Put(bytes)))
}

/// How many of the entries fit one transaction.
fn group_size(walker: &Walker, entries: &[Entry]) -> usize {
    let layout = walker.tables.layout();
    let most_keys = walker.most_keys();
    let (mut keys, mut rejects, mut actions, mut bytes) = (0, 0, 0, 0);
    for (index, entry) in entries.iter().enumerate() {
        match &entry.verdict {
            Verdict::Copy(value) => {
                keys += 1;
                actions += 2;
                bytes += copy(layout, &entry.position.pk, value)
                    .iter()
                    .map(|one| one.bytes(layout))
                    .sum::<usize>();
            }
            Verdict::Reject(reject) => {
                rejects += 1;
                actions += 1;
                bytes += 2 * reject.key.len() + reject.detail.len() + 256;
            }
            Verdict::Internal | Verdict::AlreadyLive(_) | Verdict::Gone | Verdict::Differs => {}
        }
        if keys > most_keys
            || rejects > MOST_GROUP_REJECTS
            || actions > MOST_GROUP_ACTIONS
            || bytes > MOST_GROUP_BYTES
        {
            return index.max(1);
        }
    }
    entries.len()
}

/// Reads both copies, at one moment where that can be, and judges the key anew.
async fn settle(tables: &Tables, key: &str) -> Result<Verdict> {
    let (v1, v2) = tables.get_settled(key).await?;
    Ok(decide::settled(tables.layout(), key, v1.as_ref(), v2.as_ref()))
}
