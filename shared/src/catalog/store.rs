//! Opening a catalog's SlateDB database: looking without writing, then taking the writer's epoch.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use object_store::path::Path;
use slatedb::admin::AdminBuilder;
use slatedb::config::{
    CloseOptions, CompactionWorkerOptions, CompactorOptions, DbReaderOptions, FlushType, Settings,
};
use slatedb::{Db, DbReader, DbReaderMode, PrefixExtractor, PrefixTarget, VersionedManifest};

use super::deadline::{Deadline, classify};
use super::format::{SystemRecords, elsewhere, is_commit_log, options_key};
use super::key::{Key, System};
use super::location::Location;
use super::log::Log;
use super::log::tail::{Tail, has_ended, last_records};
use super::read::{Read, StoreReader};
use super::sound::{damaged, is_odd, sound};
use crate::{Error, ErrorKind, Result};

/// The segment extractor of every catalog store: the first byte of a key.
#[derive(Debug, Clone, Copy)]
pub struct TagExtractor;

/// The name that SlateDB keeps in the manifest; a store with another one is not a catalog.
pub const EXTRACTOR: &str = "moraine-tag-v1";

impl PrefixExtractor for TagExtractor {
    fn name(&self) -> &str {
        EXTRACTOR
    }

    fn prefix_len(&self, target: &PrefixTarget) -> Option<usize> {
        let (PrefixTarget::Point(bytes) | PrefixTarget::Prefix(bytes)) = target;
        (!bytes.is_empty()).then_some(1)
    }
}

const MIB: usize = 1024 * 1024;

/// Settings of the one writer that a migration is.
pub fn settings() -> Settings {
    Settings {
        // Long enough that one upload carries thousands of records, short enough that a crash loses little.
        flush_interval: Some(Duration::from_millis(100)),
        // What may wait in memory for an upload; with the tables below it bounds the process (512 MB Lambdas).
        max_unflushed_bytes: 64 * MIB,
        // Small tables reach the store early, so that memory is given back while the run goes on.
        l0_sst_size_bytes: 16 * MIB,
        // A run of many short invocations may add a table in each before a compaction catches up; at SlateDB's
        // own 8 it would stall.
        l0_max_ssts: 64,
        l0_max_ssts_per_key: 64,
        l0_flush_parallelism: 2,
        // A manifest that cannot be written within this is a store that does not answer; the step has to end typed.
        manifest_update_timeout: Duration::from_secs(20),
        compactor_options: Some(CompactorOptions {
            poll_interval: Duration::from_secs(2),
            manifest_update_timeout: Duration::from_secs(20),
            // One at a time, and read in small pieces: the migration needs the memory and the processor more.
            max_concurrent_compactions: 1,
            worker: Some(CompactionWorkerOptions {
                max_concurrent_compactions: 1,
                compactions_poll_interval: Duration::from_secs(2),
                max_sst_size: 32 * MIB,
                max_fetch_tasks: 2,
                bytes_to_fetch: MIB / 4,
                max_subcompactions: 1,
                ..CompactionWorkerOptions::default()
            }),
            ..CompactorOptions::default()
        }),
        // Old objects are the recovery of a migration; whoever owns the store removes them, not we.
        garbage_collector_options: None,
        ..Settings::default()
    }
}

/// How often a reader asks the object store again for what it did not get, over two seconds or so; the client below has
/// retries of its own for a server that is down. Without a bound, a truncated table would be asked for without end.
const READ_RETRIES: u32 = 4;

/// Options of every reader; `poll` is how often it looks for what is new.
pub(crate) fn reader_options(poll: Duration) -> DbReaderOptions {
    DbReaderOptions {
        manifest_poll_interval: poll,
        object_store_max_retries: Some(READ_RETRIES),
        ..DbReaderOptions::default()
    }
}

/// Options of a reader that looks at a store once.
pub(crate) fn looking() -> DbReaderOptions {
    reader_options(DbReaderOptions::default().manifest_poll_interval)
}

/// What a look at a store without a write found.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// The epoch of the last writer; `None` without a database.
    pub epoch: Option<u64>,
    /// The system records, those of slots that are not folded yet included; all absent without a catalog.
    pub records: SystemRecords,
    /// The log, of a catalog that is kept in one.
    pub log: Option<Logged>,
}

/// What a look at a commit log found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// `batch_seq` at which it began; `None` if nobody can say (format 10 without a slot).
    pub origin: Option<u64>,
    /// Slots that the index has not folded.
    pub unfolded: u64,
    /// Whether there is an index; a log can be had without one.
    pub indexed: bool,
}

/// The name of the newest object of a folder; the folder's own where it is empty.
pub(crate) async fn newest(location: &Location, folder: &str, deadline: &Deadline) -> Result<Path> {
    let folder = location.path.clone().join(folder);
    let list = location.store.list(Some(&folder)).map_ok(|object| object.location).try_collect();
    let names: Vec<Path> = deadline.object(&format!("listing {folder}"), list).await?.unwrap_or_default();
    Ok(names
        .into_iter()
        .filter(|name| name.filename().is_some_and(|name| name.len() > 20))
        .max()
        .unwrap_or(folder))
}

async fn read_manifest(location: &Location, deadline: &Deadline) -> Result<Option<VersionedManifest>> {
    let admin = AdminBuilder::new(location.path.clone(), location.guarded()).build();
    let what = format!("reading the manifest of {location}");
    match deadline.wait(&what, admin.read_manifest(None)).await {
        Err(error) if is_odd(&error) => {
            let name = newest(location, "manifest", deadline).await?;
            Err(damaged(&name, error.message()).because(error))
        }
        other => other,
    }
}

/// An object that only a database has.
async fn remains(location: &Location, deadline: &Deadline) -> Result<Option<Path>> {
    for folder in ["wal", "compacted"] {
        let name = newest(location, folder, deadline).await?;
        if name != location.path.clone().join(folder) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Reads the manifest and refuses a database that is no catalog, and with `Migration` one whose write-ahead log is elsewhere.
/// `Corruption` names a manifest that cannot be read, and tables or a write-ahead log without one.
pub(crate) async fn manifest(location: &Location, deadline: &Deadline) -> Result<Option<VersionedManifest>> {
    let mut manifest = read_manifest(location, deadline).await?;
    if manifest.is_none()
        && let Some(name) = remains(location, deadline).await?
    {
        // Somebody may have made the database since.
        manifest = read_manifest(location, deadline).await?;
        if manifest.is_none() {
            let folder = location.path.clone().join("manifest");
            return Err(damaged(&folder, &format!("there is none, and {name} is there")));
        }
    }
    let Some(manifest) = manifest.filter(VersionedManifest::initialized) else { return Ok(None) };
    if manifest.wal_object_store_uri().is_some() {
        return Err(elsewhere("its manifest names it"));
    }
    match manifest.segment_extractor_name() {
        Some(EXTRACTOR) => Ok(Some(manifest)),
        other => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{location} is no catalog store: its segment extractor is {}, not {EXTRACTOR}",
                other.unwrap_or("absent")
            ),
        )),
    }
}

/// Looks at a store without writing to it or fencing anybody. `Corruption` also for an index that is an old copy, and for a
/// lost one of a catalog whose log has ended.
pub async fn look(location: &Location, deadline: &Deadline) -> Result<Sighting> {
    let mut failed_on = None;
    loop {
        let looked = look_once(location, deadline).await;
        if let Err(error) = &looked
            && error.kind() == ErrorKind::Corruption
        {
            // A garbage collector may have removed what the manifest named; on the newest one, twice is damage.
            let newest = manifest(location, deadline).await?.map(|manifest| manifest.id());
            if failed_on != Some(newest) {
                failed_on = Some(newest);
                continue;
            }
        }
        return explained(location, looked, deadline).await;
    }
}

/// An error of a read, or the damage that explains it: SlateDB names no object and asks for some of them without end.
pub(crate) async fn explained<T>(location: &Location, result: Result<T>, deadline: &Deadline) -> Result<T> {
    let Err(error) = &result else { return result };
    let suspicious = is_odd(error) || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
    if suspicious
        && let Err(damage) = sound(location, deadline).await
        && damage.kind() == ErrorKind::Corruption
    {
        return Err(damage);
    }
    result
}

async fn look_once(location: &Location, deadline: &Deadline) -> Result<Sighting> {
    let log = Log::of(location, deadline);
    let (epoch, records) = match manifest(location, deadline).await? {
        None => (None, SystemRecords::default()),
        Some(manifest) => {
            let reader = open_reader(location, DbReaderMode::FollowLatest, looking(), deadline).await?;
            let index = StoreReader::following(Arc::clone(&reader), deadline.clone());
            let records = system_records(&index).await;
            deadline.wait("closing the reader", reader.close()).await?;
            (Some(manifest.writer_epoch()), records?)
        }
    };
    records.whole()?;
    log.refuse_foreign(&records).await?;
    let indexed = records.format.is_some();
    let origin = match &records.format {
        None => Some(0),
        Some(format) if is_commit_log(format) => log.origin(&records, None).await?,
        Some(_) => return Ok(Sighting { epoch, records, log: None }),
    };
    let Some(origin) = origin else {
        let log = Some(Logged { origin, unfolded: 0, indexed });
        return Ok(Sighting { epoch, records, log });
    };
    let position = records.head.unwrap_or_default().batch_seq.saturating_sub(origin);
    let Some((records, unfolded)) = last_records(&log, records, origin).await? else {
        return Err(index_behind(position));
    };
    records.whole()?;
    if !indexed && has_ended(&records) {
        return Err(Error::new(
            ErrorKind::Corruption,
            "there is no index, and its commit log ended when the catalog became native: what came after was in the index alone",
        )
        .next("bring back a copy of the SlateDB store"));
    }
    let log = (indexed || unfolded > 0).then_some(Logged { origin: Some(origin), unfolded, indexed });
    Ok(Sighting { epoch, records, log })
}

/// The slots behind an index that was just opened.
pub(crate) async fn behind(log: &Log, records: SystemRecords, origin: u64) -> Result<Tail> {
    let mut tail = Tail::new(records, origin)?;
    if tail.advance(log).await? {
        return Ok(tail);
    }
    Err(index_behind(tail.position()?))
}

/// An index that lacks slots which are deleted already.
pub(crate) fn index_behind(position: u64) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("the index has folded slot {position} of the commit log, and the next ones are deleted"),
    )
    .next("this is an old copy of the index: bring back the newest one, or one from the checkpoint metashift-log-base")
}

/// The system records of one state; errors as those of [`SystemRecords::decode`].
pub async fn system_records(state: &dyn Read) -> Result<SystemRecords> {
    let format = state.get(&Key::System(System::Format).encode()).await?;
    let head = state.get(&Key::System(System::Head).encode()).await?;
    let marker = state.get(&Key::System(System::Migration).encode()).await?;
    let options = state.get(&options_key()).await?;
    SystemRecords::decode(format.as_deref(), head.as_deref(), marker.as_deref(), options.as_deref())
}

/// Opens a reader. `FollowLatest` and `Checkpoint` write nothing.
pub(crate) async fn open_reader(
    location: &Location,
    mode: DbReaderMode,
    options: DbReaderOptions,
    deadline: &Deadline,
) -> Result<Arc<DbReader>> {
    let build = DbReader::builder(location.path.clone(), location.guarded())
        .with_reader_mode(mode)
        .with_options(options)
        .with_segment_extractor(Arc::new(TagExtractor))
        .build();
    // The future is large; on the heap it does not weigh on the stack of every caller.
    deadline.wait(&format!("opening {location} for reading"), Box::pin(build)).await.map(Arc::new)
}

/// Opens the writer, taking the epoch after the one that was seen; ends `Fenced` if somebody took it meanwhile. With it comes
/// the deadline of its waits, which also end with a write that no retry helps.
pub(crate) async fn open_writer(
    location: &Location,
    epoch: u64,
    deadline: &Deadline,
) -> Result<(Db, Deadline)> {
    let guard = location.guarded();
    let deadline = deadline.ending_with(guard.failure());
    let build = Db::builder(location.path.clone(), guard)
        .with_settings(settings())
        .with_segment_extractor(Arc::new(TagExtractor))
        .with_expected_epoch(epoch)
        .build();
    let db = deadline.wait(&format!("opening {location} for writing"), Box::pin(build)).await?;
    Ok((db, deadline))
}

/// How a writer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything goes to sorted tables, for whoever opens next.
    Complete,
    /// Only the write-ahead log is flushed: a short invocation then adds no table.
    Resumable,
    /// Nothing more is written.
    Abandoned,
}

/// Closes the writer.
pub(crate) async fn close_writer(db: &Db, ending: Ending, deadline: &Deadline) -> Result<()> {
    let flush = match ending {
        Ending::Complete => Some(FlushType::MemTable),
        Ending::Resumable => Some(FlushType::Wal),
        Ending::Abandoned => None,
    };
    let close = Box::pin(db.close_with_options(CloseOptions::default().with_flush_type(flush)));
    if ending == Ending::Abandoned {
        // The run has failed already; its own error is the answer, and a store that hangs must not hide it.
        match tokio::time::timeout(Duration::from_secs(1), close).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "closing a failed writer"),
            Err(_) => tracing::debug!("a failed writer does not close; its epoch keeps it harmless"),
        }
        return Ok(());
    }
    deadline.wait("closing the writer", close).await
}

/// Maps an error of a call that does not wait.
pub(crate) fn failed(what: &str) -> impl Fn(slatedb::Error) -> Error + '_ {
    move |error| classify(what, error)
}
