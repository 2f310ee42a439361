//! The steps of one unit: bounded batches, cursor in the batch, no wait for durability between them.

use std::sync::Arc;

use bytes::Bytes;

use super::check::Claims;
use super::{Migrator, Outcome};
use crate::catalog::authority::{Commit, CommitAuthority};
use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::key::System;
use crate::catalog::read::{Fetch, Read, Rows};
use crate::catalog::units::{STEP_KEY_BYTES, STEP_RECORDS, Unit};
use crate::catalog::value::Migration;
use crate::{Result, crash};

/// One step's records, staged.
struct Staged {
    batch: Batch,
    records: u64,
    last: Bytes,
}

impl Migrator<'_> {
    /// Runs steps from the marker's cursor to the end of the source range, or until the budget is spent.
    pub(super) async fn steps(
        &mut self,
        unit: &dyn Unit,
        mut anchor: Anchor,
        marker: &Migration,
    ) -> Result<Outcome> {
        let mut source = Source::default();
        let mut looks = 0;
        loop {
            if self.must_stop() {
                self.authority.settle().await?;
                crash::reach("catalog-flushed").await;
                return Ok(Outcome::Stopped);
            }
            let cursor = anchor.marker.as_ref().map_or(&marker.cursor, |marker| &marker.cursor);
            let staged = match source.stage(self.authority, unit, cursor).await {
                Ok(staged) => staged,
                Err(error) => {
                    // What was staged of this step is not committed: it is read again behind the cursor.
                    looks += 1;
                    self.look_again(looks, error).await?;
                    source.state = None;
                    continue;
                }
            };
            looks = 0;
            let Some(staged) = staged else { break };
            let next = anchor.advanced(Some(Migration { cursor: staged.last, ..marker.clone() }));
            let mut batch = staged.batch;
            let bytes = batch.bytes();
            if let Some(marker) = &next.marker {
                batch.put_system(System::Migration, marker);
            }
            batch.put_system(System::Head, &next.head);
            self.checked.forget(&batch);
            match self.authority.commit(&anchor, batch).await? {
                Commit::Committed => self.checked.follow(&anchor),
                Commit::Lost => return Ok(Outcome::Lost),
            }
            anchor = next;
            self.moved(staged.records, bytes);
            crash::reach("catalog-stepped").await;
        }
        self.authority.settle().await?;
        crash::reach("catalog-flushed").await;
        Ok(Outcome::Reached)
    }
}

/// The source range of a unit on a pinned state, and the entries that are claimed.
#[derive(Default)]
struct Source {
    claims: Option<Claims>,
    state: Option<(Arc<dyn Read>, Rows)>,
}

impl Source {
    /// The next step's records behind a cursor; pins a state first where there is none.
    async fn stage(
        &mut self,
        authority: &dyn CommitAuthority,
        unit: &dyn Unit,
        cursor: &[u8],
    ) -> Result<Option<Staged>> {
        let (state, rows) = match &mut self.state {
            Some(state) => state,
            none => {
                let state = authority.pin().await?;
                if self.claims.is_none() {
                    self.claims = Some(Claims::of(state.as_ref(), unit).await?);
                }
                let rows = state.scan(unit.source().after(cursor), Fetch::Ahead).await?;
                none.insert((state, rows))
            }
        };
        stage(state.as_ref(), unit, self.claims.get_or_insert_default(), rows).await
    }
}

/// Stages records until one of the bounds is passed; `None` at the end of the range. One source record is decoded at
/// a time and only what it became is kept.
async fn stage(
    state: &dyn Read,
    unit: &dyn Unit,
    claims: &mut Claims,
    rows: &mut Rows,
) -> Result<Option<Staged>> {
    let mut staged = Staged { batch: Batch::default(), records: 0, last: Bytes::new() };
    let mut key_bytes = 0;
    for _ in 0..STEP_RECORDS {
        let Some((key, value)) = rows.next().await? else { break };
        let translation = unit.translate(&key, &value)?;
        if let (Some(claim), Some(directory)) = (&translation.claim, unit.directory()) {
            claims.settle(state, unit, directory, &key, claim).await?;
        }
        key_bytes += translation.batch.puts.iter().map(|(key, _)| key.len()).sum::<usize>();
        staged.batch.puts.extend(translation.batch.puts);
        staged.batch.deletes.extend(translation.batch.deletes);
        staged.records += 1;
        staged.last = key;
        if key_bytes >= STEP_KEY_BYTES {
            break;
        }
    }
    Ok((staged.records > 0).then_some(staged))
}
