//! What a metadata node links: reads and conditional writes of logical keys, whichever table is the authority.
//!
//! ```no_run
//! # async fn example(tables: metashift::layout::Tables) -> metashift::Result<()> {
//! use metashift::layout::{MetaStore, Mode, Mutation};
//!
//! let store = MetaStore::open(tables, Mode::Dual).await?;
//! match store.cas("tbl/ns/video", None, Some(b"v1")).await? {
//!     Mutation::Applied => {}
//!     Mutation::Conflict { current } => println!("somebody else wrote {current:?}"),
//!     Mutation::GuardLost => unreachable!("no guard was named"),
//! }
//! // Once a minute, as a line of the log: CloudWatch makes the metric WriterMode of it.
//! println!("{}", store.writer_mode_record());
//! # Ok(())
//! # }
//! ```
//!
//! The example `metadata_node` keeps writing through a cutover, and says what to do about each error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};

use super::cursor::{PageCursor, family_of_prefix};
use super::family::bucket_of_shard;
use super::key::{MOST_ITEM_BYTES, check_v1_key, check_v2_item, is_internal, v1_item_bytes};
use super::outcome::{Reason, Refusal, refusal};
use super::records::plan::{self, Plan, State};
use super::records::segment::Position;
use super::records::{BARRIER_KEY, BARRIER_VALUE, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE};
use super::tables::{Content, Item, Page, Tables, Usage};
use super::transaction::{Change, Side, Transaction, after_marker, dual_before_marker, v1_only};
use crate::environment::Moment;
use crate::telemetry::{self, WRITER_MODE};
use crate::{Error, ErrorKind, Result};

/// A node that sees v1 as the authority reads the marker again after this time.
pub const AUTHORITY_REFRESH: Duration = Duration::from_secs(30);

/// Signaled mutations of one signal key that get through in a second: its item is locked for about 10 ms by each.
///
/// Simulated with locks of that length: at 50 a second half of the attempts meet another one and try again, at 100 a
/// second one mutation in 25 is given up as `Contended`.
pub const SIGNALS_A_SECOND: u32 = 50;

/// Items that one request of a whole-prefix read evaluates at most.
const DRAIN_PAGE: u32 = 1000;

/// Shards of a prefix read at once.
const SHARDS_IN_FLIGHT: usize = 64;

/// Times that a whole-prefix read starts again because the authority moved; it moves once.
const MOST_RESTARTS: usize = 2;

/// Which tables a node writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// v1 alone: for a rollback before the marker. Refuses to work once the marker is there.
    V1Only,
    /// Both tables in one transaction; switches its authority when it sees the marker.
    Dual,
    /// v2 alone: safe once no node can still read v1. Refuses to open before the marker.
    V2Only,
}

/// The table that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// Before the marker.
    V1,
    /// After it, for good.
    V2,
}

/// How a mutation ended, where it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// It is committed.
    Applied,
    /// The key is not as expected; nothing was changed.
    Conflict {
        /// Its value in the authority; `None`: it does not exist.
        current: Option<Vec<u8>>,
    },
    /// The guard is not as expected; nothing was changed.
    GuardLost,
}

/// A logical key and its value.
pub type Entry = (String, Vec<u8>);

/// One page of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixPage {
    /// In key order within the page; pages of different shards are not in key order.
    pub entries: Vec<Entry>,
    /// Where it goes on; `None` at the end. A page may be empty and still go on.
    pub cursor: Option<String>,
}

/// The metadata store of one node.
#[derive(Debug)]
pub struct MetaStore {
    tables: Tables,
    mode: Mode,
    published: AtomicBool,
    checked_at: Mutex<Moment>,
    warning: Mutex<Option<Error>>,
    refused: OnceLock<Error>,
}

impl MetaStore {
    /// Opens the store: reads the marker, then the plan and the barrier.
    ///
    /// A node whose layout or companion is not the plan's looks for keys, after the marker, where they are not: it is
    /// refused with `LayoutMismatch`. Before the marker v1 decides, and an operator's slip must stop no fleet: the node
    /// goes on, with a [`Self::warning`].
    ///
    /// `AlreadyFinalized` for [`Mode::V1Only`] after the marker. [`Mode::V2Only`]: `AuthorityChanged` before the marker;
    /// after it `ForeignLeftovers` while another migrator may be at work or the plan is not final.
    pub async fn open(tables: Tables, mode: Mode) -> Result<Self> {
        let checked_at = Mutex::new(tables.environment().moment());
        let published = AtomicBool::new(false);
        let (warning, refused) = (Mutex::default(), OnceLock::new());
        let store = Self { tables, mode, published, checked_at, warning, refused };
        let authority = store.refresh().await?;
        if mode == Mode::V2Only && authority == Authority::V1 {
            return Err(Error::new(
                ErrorKind::AuthorityChanged,
                "a v2-only node cannot work before the marker is published",
            )
            .next("run the node in dual mode until metashift layout status says final"));
        }
        if mode == Mode::V2Only {
            store.check_v2_only().await?;
        }
        Ok(store)
    }

    /// What of the plan or the barrier does not fit this node, which goes on all the same: before the marker, its layout
    /// or companion, or a plan or barrier that it cannot read. The node's log says it too.
    pub fn warning(&self) -> Option<Error> {
        let known = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone().filter(|_| self.authority() == Authority::V1)
    }

    /// The authority as this node sees it; never goes back to v1.
    pub fn authority(&self) -> Authority {
        if self.published.load(Ordering::Acquire) { Authority::V2 } else { Authority::V1 }
    }

    /// What this node's requests were charged.
    pub fn usage(&self) -> Usage {
        self.tables.usage()
    }

    /// One metric record (`WriterMode`: 1 for a v1-only node, else 0) in the embedded metric format. A node prints
    /// it as a line of its log every 60 seconds; the rollout check and an alarm read it.
    pub fn writer_mode_record(&self) -> String {
        let mode = if self.mode == Mode::V1Only { 1.0 } else { 0.0 };
        telemetry::record(
            self.tables.environment(),
            &[("migration", "layout"), ("phase", "serve")],
            &[(WRITER_MODE, mode)],
            serde_json::Map::new(),
        )
    }

    /// Reads the marker and gives the authority; before the marker the plan and the barrier too. Three strongly consistent
    /// reads of one unit each before the marker, none after it.
    ///
    /// `AlreadyFinalized` for a v1-only node after the marker, `LayoutMismatch` for another one whose layout or companion
    /// is not the plan's then, `Corruption` for a marker of another form.
    pub async fn refresh(&self) -> Result<Authority> {
        let authority = self.look_for_marker().await?;
        if authority == Authority::V1 && self.mode != Mode::V1Only {
            let warning = Box::pin(self.misfit_before_marker()).await;
            let mut known = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(warning) = &warning
                && known.as_ref().is_none_or(|known| known.to_string() != warning.to_string())
            {
                tracing::warn!("{warning}");
            }
            *known = warning;
        }
        Ok(authority)
    }

    /// Reads the marker; one strongly consistent read of one unit before it is there, none after.
    async fn look_for_marker(&self) -> Result<Authority> {
        if let Some(refused) = self.refused.get() {
            return Err(refused.clone());
        }
        if self.authority() == Authority::V1 {
            let asked_at = self.tables.environment().moment();
            if let Some(item) = self.tables.get(Side::V1, MARKER_KEY).await? {
                if item.value() != Some(MARKER_VALUE) {
                    return Err(Error::new(
                        ErrorKind::Corruption,
                        "the authority marker has an unknown value",
                    )
                    .next("use the version that wrote it; change nothing by hand"));
                }
                Box::pin(self.check_fit()).await?;
                self.published.store(true, Ordering::Release);
            }
            *self.checked_at.lock().unwrap_or_else(PoisonError::into_inner) = asked_at;
        }
        let authority = self.authority();
        if self.mode == Mode::V1Only && authority == Authority::V2 {
            return Err(Error::new(
                ErrorKind::AlreadyFinalized,
                "the prefix layout is the authority; a v1-only node would lose writes",
            )
            .next("run the node in dual mode"));
        }
        Ok(authority)
    }

    /// After the marker: the plan's layout and companion are this node's. One that they are not sees no more of v1 either.
    async fn check_fit(&self) -> Result<()> {
        if self.mode == Mode::V1Only {
            return Ok(());
        }
        // Read after the marker, so never older than it.
        let plan = self.tables.load::<Plan>(plan::KEY).await?;
        match plan.and_then(|plan| misfit(&plan.record, &self.tables)) {
            None => Ok(()),
            Some(misfit) => Err(self.refused.get_or_init(|| misfit).clone()),
        }
    }

    async fn misfit_before_marker(&self) -> Option<Error> {
        let (plan, barrier) =
            futures::join!(self.tables.load::<Plan>(plan::KEY), self.tables.get(Side::V1, BARRIER_KEY));
        let plan = plan.map(|plan| plan.and_then(|plan| misfit(&plan.record, &self.tables)));
        // By its value: the plan may be newer, or another migrator's barrier have none.
        let barrier = barrier.map(|item| {
            let unknown = item.filter(|item| item.value() != Some(BARRIER_VALUE))?;
            Some(
                Error::new(
                    ErrorKind::NewerRecord,
                    format!("the write barrier {} has a value that this version does not know", unknown.key),
                )
                .next("its writes are refused while it is there; run the version that put it"),
            )
        });
        match (plan, barrier) {
            (Err(error) | Ok(Some(error)), _) | (Ok(None), Err(error) | Ok(Some(error))) => Some(error),
            (Ok(None), Ok(None)) => None,
        }
    }

    /// A v2-only node leaves no trace in v1, so that whoever still reads or writes there must be gone: every other
    /// migrator, ours included.
    async fn check_v2_only(&self) -> Result<()> {
        let plan = self.tables.load::<Plan>(plan::KEY).await?.map(|plan| plan.record);
        let Some(plan) = plan.filter(|plan| plan.state == State::Final) else {
            return Err(Error::new(
                ErrorKind::ForeignLeftovers,
                "another migrator published the marker, and no plan of ours is final: a worker of ours may be alive that \
                 would bring back what a v2-only node deletes",
            )
            .next("run the node in dual mode; metashift layout run finishes the takeover, then metashift layout audit"));
        };
        if self.tables.get(Side::V1, FOREIGN_CURSOR_KEY).await?.is_some() {
            return Err(Error::new(
                ErrorKind::ForeignLeftovers,
                "another migrator's cursor is there: its backfill, alive or stopped, would bring back what a v2-only node \
                 deletes",
            )
            .next(
                "run the node in dual mode; make sure that every other migrator is dead, then metashift layout run \
                 --discard-foreign-cursor",
            ));
        }
        if plan.audited.is_none() {
            return Err(Error::new(
                ErrorKind::RolloutNotReady,
                "no clean audit after the marker is recorded: v1 may hold keys that v2 has not",
            )
            .next("run the node in dual mode until metashift layout audit has found both tables equal"));
        }
        Ok(())
    }

    async fn current_authority(&self) -> Result<Authority> {
        let checked_at = *self.checked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if self.authority() == Authority::V1
            && self.tables.environment().since(checked_at) >= AUTHORITY_REFRESH
        {
            return self.refresh().await;
        }
        match self.refused.get() {
            Some(refused) => Err(refused.clone()),
            None => Ok(self.authority()),
        }
    }

    /// The value of a key, strongly consistent; `None` where it does not exist.
    ///
    /// `KeyTooLong` under v2 authority for a key that v2 cannot hold.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        check_v1_key(key)?;
        let side = side(self.current_authority().await?);
        if side == Side::V2 {
            check_v2_item(self.tables.layout(), key, 0)?;
        }
        self.tables.get(side, key).await?.map(entry).transpose().map(|found| found.map(|(_, value)| value))
    }

    /// Changes a key from `expected` to `new`; `None` is absence, so that `(None, Some)` creates and `(Some, None)`
    /// deletes.
    ///
    /// Errors: `KeyTooLong` and `ItemTooLarge` before anything is sent, `BarrierHeld` while a cutover pauses writers,
    /// `Divergence` where the copies differ, `Contended`, `Throttled`, `Unavailable` where nothing was applied,
    /// `OutcomeUnknown` where it may have been.
    pub async fn cas(&self, key: &str, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<Mutation> {
        self.mutate(&Change::new(key, expected, new)).await
    }

    /// Deletes a key that has exactly this value; errors as those of [`Self::cas`].
    pub async fn delete(&self, key: &str, expected: &[u8]) -> Result<Mutation> {
        self.cas(key, Some(expected), None).await
    }

    /// [`Self::cas`] that also needs the guard key to have exactly this value; [`Mutation::GuardLost`] where it has not.
    ///
    /// Errors as those of [`Self::cas`], and `InvalidInput` where guard and key are the same.
    pub async fn guarded_mutate(
        &self,
        (guard, guard_value): (&str, &[u8]),
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Mutation> {
        self.mutate(&Change { guard: Some((guard, guard_value)), ..Change::new(key, expected, new) }).await
    }

    /// [`Self::cas`], with a guard or without, that puts a signal key in the same transaction, whatever its value was.
    ///
    /// The signal follows the target: it is put where the target is written, and not at all where that is refused.
    /// Writers of one signal key wait for each other: about [`SIGNALS_A_SECOND`] of them a second get through.
    ///
    /// Errors as those of [`Self::guarded_mutate`], `InvalidInput` also where the signal is the key or the guard, and the
    /// limits of keys and items for the signal too.
    pub async fn signaled_mutate(
        &self,
        signal: (&str, &[u8]),
        guard: Option<(&str, &[u8])>,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Mutation> {
        self.mutate(&Change { guard, signal: Some(signal), ..Change::new(key, expected, new) }).await
    }

    async fn mutate(&self, change: &Change<'_>) -> Result<Mutation> {
        self.check(change)?;
        let mut authority = self.current_authority().await?;
        loop {
            let transaction = self.build(change, authority);
            let token = self.tables.environment().id();
            let Err(reasons) = self.tables.transact(&transaction, &token).await? else {
                return Ok(Mutation::Applied);
            };
            // A refusal may only say that this node's view is old: look, and try once more under v2.
            if authority == Authority::V1 && self.look_for_marker().await? == Authority::V2 {
                authority = Authority::V2;
                continue;
            }
            return refused(change, &transaction, &reasons, authority);
        }
    }

    fn build(&self, change: &Change<'_>, authority: Authority) -> Transaction {
        let layout = self.tables.layout();
        match (self.mode, authority) {
            (Mode::V1Only, _) => v1_only(change),
            (Mode::Dual, Authority::V1) => dual_before_marker(layout, change),
            (Mode::Dual, Authority::V2) => after_marker(layout, change, true),
            (Mode::V2Only, _) => after_marker(layout, change, false),
        }
    }

    fn check(&self, change: &Change<'_>) -> Result<()> {
        self.check_item(change.key, change.new.map_or(0, <[u8]>::len))?;
        if change.expected.is_none() && change.new.is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, "from absent to absent is no change"));
        }
        if let Some((guard, guard_value)) = change.guard {
            if self.mode == Mode::V1Only {
                check_v1_key(guard)?;
            } else {
                check_v2_item(self.tables.layout(), guard, guard_value.len())?;
            }
            if guard == change.key {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("{guard:?} is both the guard and the key to change"),
                )
                .next("name the value with cas alone"));
            }
        }
        if let Some((signal, value)) = change.signal {
            self.check_item(signal, value.len())?;
            let guard = change.guard.map(|(guard, _)| guard);
            if signal == change.key || Some(signal) == guard {
                let other = if signal == change.key { "the key to change" } else { "the guard" };
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("{signal:?} is both the signal and {other}"),
                )
                .next("name a signal key of its own"));
            }
        }
        Ok(())
    }

    /// Refuses an item that this node's tables cannot hold.
    fn check_item(&self, key: &str, value_bytes: usize) -> Result<()> {
        if self.mode != Mode::V1Only {
            return check_v2_item(self.tables.layout(), key, value_bytes);
        }
        check_v1_key(key)?;
        if v1_item_bytes(key, value_bytes) <= MOST_ITEM_BYTES {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ItemTooLarge,
            format!("{key:?}: an item has at most {MOST_ITEM_BYTES} bytes"),
        )
        .next("shrink the value"))
    }

    /// One page of a prefix: one request that evaluates at most `limit` items (1 or more).
    ///
    /// The prefix contains a `/`. `AuthorityChanged`: the cursor is of a v1 page and v2 is the authority now; start
    /// again without it.
    pub async fn prefix_page(&self, prefix: &str, limit: u32, cursor: Option<&str>) -> Result<PrefixPage> {
        let family = family_of_prefix(prefix)?;
        if limit == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "a page evaluates at least one item"));
        }
        let layout = self.tables.layout();
        let cursor = cursor.map(|text| PageCursor::decode(text, prefix, layout)).transpose()?;
        let mut authority = self.current_authority().await?;
        if authority == Authority::V1 && cursor.as_ref().is_some_and(|cursor| cursor.shard.is_some()) {
            authority = self.refresh().await?;
        }
        match authority {
            Authority::V1 => {
                let after = match cursor {
                    Some(PageCursor { shard: None, last_key: Some(pk) }) => {
                        Some(Position { bucket: None, pk })
                    }
                    None => None,
                    Some(_) => {
                        return Err(Error::new(
                            ErrorKind::InvalidCursor,
                            "no node has given out such a cursor yet",
                        )
                        .next("start the prefix again without a cursor"));
                    }
                };
                let page = self.tables.scan_prefix(prefix, limit, after.as_ref()).await?;
                let cursor = page
                    .next
                    .as_ref()
                    .map(|next| PageCursor { shard: None, last_key: Some(next.pk.clone()) }.encode(prefix));
                Ok(PrefixPage { entries: entries(page)?, cursor })
            }
            Authority::V2 => {
                let (shard, after) = match cursor {
                    None => (0, None),
                    Some(PageCursor { shard: Some(shard), last_key }) => (shard, last_key),
                    Some(_) => return Err(authority_changed(prefix)),
                };
                let bucket = bucket_of_shard(family, shard);
                let page = self.tables.query(&bucket, prefix, limit, after.as_deref()).await?;
                let next = match &page.next {
                    Some(next) => Some(PageCursor { shard: Some(shard), last_key: Some(next.pk.clone()) }),
                    None if shard + 1 < layout.shards(family) => {
                        Some(PageCursor { shard: Some(shard + 1), last_key: None })
                    }
                    None => None,
                };
                Ok(PrefixPage { entries: entries(page)?, cursor: next.map(|next| next.encode(prefix)) })
            }
        }
    }

    /// Every key of a prefix, in key order; costs and errors as those of [`Self::scan_prefix`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.scan_prefix(prefix).await?.into_iter().map(|(key, _)| key).collect())
    }

    /// Every key and value of a prefix, in key order.
    ///
    /// Under v2 authority the family's shards are read concurrently: about one round trip a page of the fullest
    /// shard. Under v1 it scans the table.
    ///
    /// `InvalidPrefix` for one without `/` or an internal one; `AuthorityChanged` where the authority moved during every
    /// attempt.
    pub async fn scan_prefix(&self, prefix: &str) -> Result<Vec<Entry>> {
        for _ in 0..MOST_RESTARTS {
            let drained = match self.current_authority().await? {
                Authority::V1 => self.drain_v1(prefix).await,
                Authority::V2 => self.drain_v2(prefix).await,
            };
            match drained {
                Err(error) if error.kind() == ErrorKind::AuthorityChanged => {}
                drained => return drained,
            }
        }
        Err(authority_changed(prefix))
    }

    async fn drain_v1(&self, prefix: &str) -> Result<Vec<Entry>> {
        family_of_prefix(prefix)?;
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.tables.scan_prefix(prefix, DRAIN_PAGE, after.as_ref()).await?;
            after.clone_from(&page.next);
            found.extend(entries(page)?);
            // What v1 showed before the marker and what it shows after it must not be mixed.
            if self.current_authority().await? == Authority::V2 {
                return Err(authority_changed(prefix));
            }
            if after.is_none() {
                found.sort_unstable();
                return Ok(found);
            }
        }
    }

    async fn drain_v2(&self, prefix: &str) -> Result<Vec<Entry>> {
        let family = family_of_prefix(prefix)?;
        let buckets: Vec<_> = self.tables.layout().buckets(family).collect();
        let shards: Vec<Vec<Entry>> =
            stream::iter(buckets.into_iter().map(|bucket| self.drain_bucket(bucket, prefix)))
                .buffered(SHARDS_IN_FLIGHT)
                .try_collect()
                .await?;
        let mut found: Vec<_> = shards.into_iter().flatten().collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn drain_bucket(&self, bucket: String, prefix: &str) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.tables.query(&bucket, prefix, DRAIN_PAGE, after.as_deref()).await?;
            after = page.next.as_ref().map(|next| next.pk.clone());
            found.extend(entries(page)?);
            if after.is_none() {
                return Ok(found);
            }
        }
    }
}

/// Why this node's layout or companion is not the plan's.
fn misfit(plan: &Plan, tables: &Tables) -> Option<Error> {
    let (own, named) = (tables.layout().fingerprint(), tables.name(Side::V2));
    let message = if plan.layout != own {
        format!("the plan was made with layout {}, this node has {own}", plan.layout)
    } else {
        let planned = plan.companion.as_deref().filter(|planned| *planned != named)?;
        format!("the plan copies to {planned}, this node names {named}")
    };
    let next = "start the node with the plan's layout and companion; if the plan is the one that is wrong, make a new \
                generation with the right ones before the marker is published";
    Some(Error::new(ErrorKind::LayoutMismatch, message).next(next))
}

fn refused(
    change: &Change<'_>,
    transaction: &Transaction,
    reasons: &[Reason],
    authority: Authority,
) -> Result<Mutation> {
    match refusal(transaction, reasons, side(authority)) {
        Some(Refusal::Conflict(current)) => Ok(Mutation::Conflict { current }),
        Some(Refusal::GuardLost) => Ok(Mutation::GuardLost),
        Some(Refusal::BarrierHeld) => Err(Error::new(
            ErrorKind::BarrierHeld,
            format!("{:?} was not written: a cutover pauses writers", change.key),
        )
        .next("try again in a few seconds; metashift layout status shows the cutover")),
        Some(Refusal::Divergence(key)) => Err(Error::new(
            ErrorKind::Divergence,
            format!("the copies of {key:?} differ between the tables; nothing was written"),
        )
        .next("metashift layout repair makes the new table follow the old one")),
        None => Err(Error::new(
            ErrorKind::Internal,
            format!("{:?} was refused without a failed condition: {reasons:?}", change.key),
        )),
    }
}

fn side(authority: Authority) -> Side {
    match authority {
        Authority::V1 => Side::V1,
        Authority::V2 => Side::V2,
    }
}

fn authority_changed(prefix: &str) -> Error {
    Error::new(ErrorKind::AuthorityChanged, format!("the authority moved while {prefix:?} was read"))
        .next("start the prefix again without a cursor")
}

fn entry(item: Item) -> Result<Entry> {
    match item.content {
        Content::Value(value) => Ok((item.key, value)),
        Content::Unsupported(detail) => Err(Error::new(
            ErrorKind::UnsupportedItem,
            format!("{:?} is no metadata record: {detail}", item.key),
        )),
    }
}

fn entries(page: Page) -> Result<Vec<Entry>> {
    let mut entries: Vec<_> =
        page.items.into_iter().filter(|item| !is_internal(&item.key)).map(entry).collect::<Result<_>>()?;
    entries.sort_unstable();
    Ok(entries)
}
