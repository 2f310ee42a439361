//! The commit log: immutable slots `commits/<20-digit sequence>` beside a catalog's SlateDB store.
//!
//! For a catalog kept in a log the slots are the truth, and the SlateDB store is an index folded from them. Whoever
//! creates a slot first has committed; nobody else is asked.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as ObjectError, GetOptions, ObjectStore, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use tokio::time::Instant;

use super::deadline::{Deadline, classify_object};
use super::format::{LEGACY_COMMIT_LOG, SystemRecords, is_commit_log};
use super::location::Location;
use crate::environment::Environment;
use crate::{Error, ErrorKind, Result};

pub mod floor;
pub mod lifecycle;
pub mod slot;
pub mod tail;

use floor::Floor;
use slot::{CommitSlot, corrupt};

/// Slots of one fetch: what is held in memory of a long tail at a time.
const FETCH: usize = 64;
/// Slots asked for at once.
const AT_ONCE: usize = 8;
/// Longest wait for the answer to one create before it is sent again.
const CREATE: Duration = Duration::from_secs(10);
/// Longest pause before the second create of the same slot; it doubles each time, up to a second.
const PAUSE: Duration = Duration::from_millis(20);

/// What lies behind a folded position.
#[derive(Debug)]
pub enum Beyond {
    /// The next slots, in order; none at the end of the log.
    Slots(Vec<(u64, CommitSlot)>),
    /// The next slot is at or below the floor: the state that was folded so far is too old.
    Truncated,
}

/// What became of a slot that somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Won {
    /// It is theirs.
    Mine,
    /// Somebody else has it.
    Lost,
}

/// The log of one catalog. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Log {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    deadline: Deadline,
}

impl Log {
    /// The log beside a store.
    pub fn of(location: &Location, deadline: &Deadline) -> Self {
        Self {
            store: Arc::clone(&location.store),
            folder: location.path.clone().join("commits"),
            deadline: deadline.clone(),
        }
    }

    /// Where a slot is.
    pub fn path(&self, sequence: u64) -> Path {
        self.folder.clone().join(format!("{sequence:020}"))
    }

    fn floor_path(&self) -> Path {
        self.folder.clone().join("floor")
    }

    /// Sequences of slots behind `after`, ascending, also of those that the floor has made void, of at most `most` objects;
    /// and whether a floor was among these.
    async fn listed(&self, after: u64, most: usize) -> Result<(Vec<u64>, bool)> {
        let list = self.store.list_with_offset(Some(&self.folder), &self.path(after)).take(most);
        let names: Vec<_> = self
            .deadline
            .object("listing the commit log", list.map_ok(|object| object.location).try_collect())
            .await?
            .unwrap_or_default();
        let names: Vec<_> = names.iter().filter_map(Path::filename).collect();
        let mut sequences: Vec<u64> = names
            .iter()
            .filter(|name| name.len() == 20 && name.bytes().all(|digit| digit.is_ascii_digit()))
            .filter_map(|name| name.parse().ok())
            .filter(|sequence| *sequence > after)
            .collect();
        sequences.sort_unstable();
        Ok((sequences, names.contains(&"floor")))
    }

    /// An object of the log's folder, if there is any.
    pub(crate) async fn any(&self) -> Result<Option<Path>> {
        let list = self.store.list(Some(&self.folder)).take(1);
        let names: Vec<_> = self
            .deadline
            .object("listing the commit log", list.map_ok(|object| object.location).try_collect())
            .await?
            .unwrap_or_default();
        Ok(names.into_iter().next())
    }

    /// `ForeignLeftovers` for a catalog of a format that has no commit log of ours and beside which there are objects of one:
    /// other software may keep the catalog in them, and whoever reads the store alone skips what they hold.
    pub(crate) async fn refuse_foreign(&self, records: &SystemRecords) -> Result<()> {
        let version = records.format.as_ref().map(|format| format.format_version);
        if version.is_none_or(|version| version >= LEGACY_COMMIT_LOG) {
            return Ok(());
        }
        match self.any().await? {
            None => Ok(()),
            Some(found) => Err(Error::new(
                ErrorKind::ForeignLeftovers,
                format!(
                    "{found} is there, and a catalog of format {} has no commit log that this version knows; commits may be in it alone",
                    version.unwrap_or_default()
                ),
            )
            .next("fold the log with the software that writes it, or move commits/ away if you know that nothing of it is needed")),
        }
    }

    async fn object(&self, what: &str, path: &Path) -> Result<Option<(Bytes, UpdateVersion)>> {
        let get = async {
            let got = self.store.get_opts(path, GetOptions::default()).await?;
            let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
            Ok((got.bytes().await?, version))
        };
        self.deadline.object(what, get).await
    }

    /// A slot; `Corruption` for one that no sender writes.
    pub async fn slot(&self, sequence: u64) -> Result<Option<CommitSlot>> {
        let found = self.object(&format!("reading slot {sequence}"), &self.path(sequence)).await?;
        found.map(|(bytes, _)| CommitSlot::decode(sequence, &bytes)).transpose()
    }

    /// The floor; at 0 where nobody has raised one, `Corruption` for one that nobody writes.
    pub async fn floor(&self) -> Result<Floor> {
        Ok(self.versioned_floor().await?.0)
    }

    async fn versioned_floor(&self) -> Result<(Floor, Option<UpdateVersion>)> {
        match self.object("reading the floor of the commit log", &self.floor_path()).await? {
            Some((bytes, version)) => Ok((Floor::decode(&bytes)?, Some(version))),
            None => Ok((Floor::default(), None)),
        }
    }

    /// The sequence of the last slot, or the floor if that is higher; 0 for a log that never was.
    pub async fn last(&self) -> Result<u64> {
        let (sequences, _) = self.listed(0, usize::MAX).await?;
        Ok(sequences.last().copied().unwrap_or(0).max(self.floor().await?.sequence))
    }

    /// The next slots behind a folded position. A missing slot above the floor is `Corruption`.
    pub async fn beyond(&self, folded: u64) -> Result<Beyond> {
        // Some of them are enough: below any of these there is no gap.
        let (sequences, floored) = self.listed(folded, FETCH).await?;
        let last = sequences.last().map_or(folded, |last| (*last).min(folded.saturating_add(FETCH as u64)));
        let slots: Vec<_> = futures::stream::iter(folded + 1..=last)
            .map(|sequence| async move { Ok::<_, Error>((sequence, self.slot(sequence).await?)) })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        // After the reads: a slot that was deleted, and one that came in its place, were below the floor by then.
        if (floored || last > folded) && self.floor().await?.sequence > folded {
            return Ok(Beyond::Truncated);
        }
        let missing = |sequence| corrupt(sequence, "it is missing, and later ones are there");
        let there =
            slots.into_iter().map(|(sequence, slot)| Ok((sequence, slot.ok_or_else(|| missing(sequence))?)));
        there.collect::<Result<_>>().map(Beyond::Slots)
    }

    /// `batch_seq` at which the log of a catalog with these records began; `None` for a native catalog, and for one of
    /// format 10 that has never said it and whose log is empty. `asked` is what the operator says, and has to agree.
    ///
    /// `InvalidInput` where `asked` is contradicted, `Corruption` where the log began after the index.
    pub async fn origin(&self, records: &SystemRecords, asked: Option<u64>) -> Result<Option<u64>> {
        let Some(format) = &records.format else { return Ok(None) };
        if !is_commit_log(format) {
            return Ok(None);
        }
        let batch_seq = records.head.unwrap_or_default().batch_seq;
        let known = match format.commit_log_batch_origin {
            Some(origin) => Some(origin),
            None => self.origin_of_first_slot().await?,
        };
        if let (None, Some(asked)) = (known, asked) {
            // An empty log has nothing but what the floor has passed, and all of it is in the index.
            let expected = batch_seq.saturating_sub(self.floor().await?.sequence);
            if asked != expected {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("the index is at batch {batch_seq} and no slot is left: its commit log did not begin at {asked}"),
                )
                .next(format!("if the index is whole, --commit-log-origin {expected}; if it is an old copy, bring back the newest")));
            }
        }
        agreed(known, asked, batch_seq)
    }

    async fn origin_of_first_slot(&self) -> Result<Option<u64>> {
        let floor = self.floor().await?.sequence;
        let (sequences, _) = self.listed(floor, usize::MAX).await?;
        let Some(first) = sequences.first().copied() else { return Ok(None) };
        let Some(slot) = self.slot(first).await? else { return Ok(None) };
        let origin = slot.base_batch_seq.checked_add(1).and_then(|next| next.checked_sub(first));
        origin.map(Some).ok_or_else(|| corrupt(first, "it is older than the catalog"))
    }

    /// Creates a slot, and finds out whose it is. A create without an answer is sent again with the same bytes until
    /// there is a slot; only the deadline ends that, with `OutcomeUnknown`, since an absent slot may still arrive.
    ///
    /// `AccessDenied` and `InvalidInput` where the first create was rejected.
    pub async fn win(&self, sequence: u64, slot: &CommitSlot, environment: &Environment) -> Result<Won> {
        let bytes = slot.encode();
        let end = Instant::now() + self.deadline.left();
        let (mut pause, mut patience) = (PAUSE, CREATE);
        let mut why = self.create(sequence, &bytes, patience).await?;
        loop {
            match self.whose(sequence, slot).await {
                Ok(Some(won)) => return Ok(won),
                Ok(None) => {}
                // What is there is not ours, or nobody can say any more: another try changes neither.
                Err(error) if matches!(error.kind(), ErrorKind::Corruption | ErrorKind::OutcomeUnknown) => {
                    return Err(error);
                }
                // Whatever it is, the slot may be there.
                Err(error) => why = Some(error),
            }
            if Instant::now() + pause >= end {
                let why = why.map_or_else(String::new, |error| format!(" ({})", error.message()));
                return Err(unknown(sequence, &why));
            }
            tokio::time::sleep(environment.jitter(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
            patience = (patience * 2).min(self.deadline.left());
            if let Ok(Some(error)) | Err(error) = self.create(sequence, &bytes, patience).await {
                why = Some(error);
            }
        }
    }

    /// Sends a create: an error if it was rejected, else why there was no answer.
    async fn create(&self, sequence: u64, bytes: &Bytes, patience: Duration) -> Result<Option<Error>> {
        let path = self.path(sequence);
        let what = format!("creating slot {sequence}");
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let create = self.store.put_opts(&path, PutPayload::from(bytes.clone()), options);
        match tokio::time::timeout(patience.min(self.deadline.left()), create).await {
            Ok(Ok(_) | Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. })) => Ok(None),
            Ok(Err(error)) => {
                let error = classify_object(&what, error);
                match error.kind() {
                    ErrorKind::AccessDenied | ErrorKind::InvalidInput => Err(error),
                    _ => Ok(Some(error)),
                }
            }
            Err(_) => Ok(Some(Error::new(ErrorKind::Unavailable, format!("{what}: no answer")))),
        }
    }

    /// Whose a slot is; `None` while it is absent.
    async fn whose(&self, sequence: u64, slot: &CommitSlot) -> Result<Option<Won>> {
        let mine = self.slot(sequence).await?.map(|there| there.transaction_id == slot.transaction_id);
        // A slot at or below the floor was deleted before, and whoever creates it again has lost.
        let floor = self.floor().await?;
        let mine =
            if floor.sequence < sequence {
                mine
            } else {
                let folded = floor.remembers(sequence, &slot.transaction_id);
                Some(folded.ok_or_else(|| {
                    unknown(sequence, "; it is further below the floor than that remembers")
                })?)
            };
        Ok(mine.map(|mine| if mine { Won::Mine } else { Won::Lost }))
    }

    /// Raises the floor; one that is higher already stays. Everything up to it has to be in a flushed index.
    ///
    /// `Contended` where somebody else lowered it.
    pub async fn raise(&self, floor: Floor) -> Result<Floor> {
        let (present, version) = self.versioned_floor().await?;
        if present.sequence >= floor.sequence {
            return Ok(present);
        }
        let mode = match version {
            None => PutMode::Create,
            Some(version) => PutMode::Update(version),
        };
        let path = self.floor_path();
        let put = |mode| {
            let options = PutOptions { mode, ..PutOptions::default() };
            self.store.put_opts(&path, PutPayload::from(floor.encode()), options)
        };
        let raised = async {
            match put(mode).await {
                // Local files know no conditional update; only the one folder comes here, and on one machine.
                Err(ObjectError::NotImplemented { .. }) => put(PutMode::Overwrite).await,
                other => other,
            }
        };
        let raised = self.deadline.object("raising the floor of the commit log", raised).await;
        // Whatever the answer: what is there now has to be at least as high before anything is deleted.
        let there = self.floor().await?;
        match raised {
            _ if there.sequence >= floor.sequence => Ok(there),
            Err(error) => Err(error),
            Ok(_) => {
                Err(Error::new(ErrorKind::Contended, "somebody else lowered the floor of the commit log")
                    .next("run the same command again"))
            }
        }
    }

    /// Deletes slots up to the floor, and says how many.
    pub async fn clear(&self) -> Result<u64> {
        let floor = self.floor().await?.sequence;
        let (sequences, _) = self.listed(0, usize::MAX).await?;
        let gone: Vec<_> = sequences.into_iter().filter(|sequence| *sequence <= floor).collect();
        let paths: Vec<_> = gone.iter().map(|sequence| Ok(self.path(*sequence))).collect();
        let paths = futures::stream::iter(paths).boxed();
        let deleted = self.store.delete_stream(paths).try_collect::<Vec<_>>();
        self.deadline.object("deleting slots below the floor", deleted).await?;
        Ok(gone.len() as u64)
    }
}

fn unknown(sequence: u64, why: &str) -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        format!("slot {sequence} was sent, and whether it counts is not known{why}"),
    )
    .next("look at the catalog: what has landed is there; then run the same command again")
}

/// The origin that is known, or else asked for; both have to agree, and to lie before the index.
pub(super) fn agreed(known: Option<u64>, asked: Option<u64>, batch_seq: u64) -> Result<Option<u64>> {
    let origin = match (known, asked) {
        (Some(known), Some(asked)) if known != asked => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the commit log began at batch {known}, not at {asked}"),
            )
            .next(format!("--commit-log-origin {known}, or leave it out")));
        }
        (known, asked) => known.or(asked),
    };
    match origin {
        Some(origin) if origin > batch_seq => Err(Error::new(
            if known.is_some() { ErrorKind::Corruption } else { ErrorKind::InvalidInput },
            format!("the index is at batch {batch_seq}, before {origin} where its commit log began"),
        )),
        origin => Ok(origin),
    }
}

/// The refusal of whoever goes on with a log that has ended.
pub(super) fn ended() -> Error {
    Error::new(
        ErrorKind::AuthorityChanged,
        "the catalog is no longer kept in the commit log that was opened; nothing more was written",
    )
    .next("run the same command again, or open the catalog again")
}

/// The refusal of a catalog of format 10 that nobody can say the origin of.
pub fn origin_unknown() -> Error {
    Error::new(
        ErrorKind::Migration,
        format!(
            "the catalog has format {LEGACY_COMMIT_LOG} and an empty commit log, and does not say at which batch the log began"
        ),
    )
    .next(
        "metashift catalog run --commit-log-origin N, with the number of batches (batches so far of status) that the \
         catalog had when its log began",
    )
}
