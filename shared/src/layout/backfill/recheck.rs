//! Looking again at keys that could not move, once the scan has ended or the run is started again.

use super::super::outcome::Reason;
use super::super::records::reject::{self, Reject};
use super::super::records::segment::Segment;
use super::super::records::{self, Stored};
use super::super::transaction::{Action, Write, copy};
use super::super::walk::Walker;
use super::{Verdict, settle};
use crate::step::Status;
use crate::{Error, ErrorKind, Result};

/// Reject records read at once.
const BATCH: u64 = 100;

/// Re-reads each recorded reject; one that is gone or moves now is cleared in the transaction that moves it.
///
/// `Some(Continue)`: the budget is spent; the next invocation goes on where this one stopped.
pub(super) async fn recheck(walker: &mut Walker, generation: u64) -> Result<Option<Status>> {
    let outstanding = |segment: &Segment| segment.rejected + segment.diverged > 0;
    while outstanding(walker.segment()) && walker.segment().rechecked < walker.segment().rejects_recorded {
        if walker.budget.is_spent() {
            return Ok(Some(Status::Continue));
        }
        let from = walker.segment().rechecked;
        let to = walker.segment().rejects_recorded.min(from + BATCH);
        let keys: Vec<_> = (from..to).map(|n| reject::key(generation, walker.input.segment, n)).collect();
        let rejects = walker.tables.load_many::<Reject>(&keys).await?;
        for key in &keys {
            if let Some(stored) = rejects.get(key) {
                recheck_one(walker, key, stored).await?;
            }
        }
        super::commit_alone(walker, |segment| segment.rechecked = to).await?;
        crate::crash::reach("backfill-rechecked").await;
        if let Some(status) = walker.pace().await {
            return Ok(Some(status));
        }
    }
    Ok(None)
}

/// A key that other writes keep busy stays recorded, for the next look.
async fn recheck_one(walker: &mut Walker, record: &str, stored: &Stored<Reject>) -> Result<()> {
    let old = &stored.record;
    for _ in 0..super::MOST_REFUSED {
        let verdict = settle(&walker.tables, &old.key).await?;
        let mut actions = Vec::new();
        match &verdict {
            Verdict::Reject(new) if new == old => return Ok(()),
            Verdict::Reject(new) => {
                actions.push(Action::record(record, Some(&stored.bytes), Write::Put(records::encode(new)?)));
            }
            Verdict::Copy(value) => {
                actions.extend(copy(walker.tables.layout(), &old.key, value));
                actions.push(Action::record(record, Some(&stored.bytes), Write::Delete));
            }
            Verdict::AlreadyLive(_) | Verdict::Gone => {
                actions.push(Action::record(record, Some(&stored.bytes), Write::Delete));
            }
            Verdict::Internal | Verdict::Differs => {
                return Err(Error::new(ErrorKind::Internal, format!("{record}: {verdict:?}")));
            }
        }
        let copying = matches!(verdict, Verdict::Copy(_));
        let sent = walker
            .commit(actions, |segment| {
                if old.reason == reject::Reason::Diverged {
                    segment.diverged = segment.diverged.saturating_sub(1);
                } else {
                    segment.rejected = segment.rejected.saturating_sub(1);
                }
                match &verdict {
                    Verdict::Copy(_) => segment.copied += 1,
                    Verdict::AlreadyLive(_) => segment.already_live += 1,
                    Verdict::Reject(new) if new.reason == reject::Reason::Diverged => segment.diverged += 1,
                    Verdict::Reject(_) => segment.rejected += 1,
                    _ => {}
                }
            })
            .await;
        match sent {
            Ok(Ok(())) => return Ok(()),
            Err(error) if copying && error.kind() == ErrorKind::Contended => return Ok(()),
            Err(error) => return Err(error),
            // A live writer moved the key in between: judge it again.
            Ok(Err(reasons)) if reasons.iter().any(|reason| matches!(reason, Reason::ConditionFailed(_))) => {
            }
            Ok(Err(reasons)) => {
                return Err(Error::new(ErrorKind::Internal, format!("{record}: {reasons:?}")));
            }
        }
    }
    Ok(())
}
