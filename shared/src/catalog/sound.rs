//! Whether every object that a store rests on is there and whole, found in a request an object and without reading the data.
//!
//! Before a unit that cannot be taken back this is looked at: a migration reads the ranges that it moves and no others, a
//! reader takes a missing write-ahead log object for the log's end, and SlateDB asks again without end for bytes that a
//! truncated table does not have.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange};
use slatedb::admin::AdminBuilder;
use slatedb::{PathResolver, VersionedManifest};

use super::deadline::{Deadline, object_cause};
use super::driver::ATTEMPTS;
use super::guard::lasting;
use super::location::Location;
use super::store::{manifest, newest};
use crate::{Error, ErrorKind, Result};

/// Objects looked at at once.
const AT_ONCE: usize = 16;
/// What is read of an object's end: the footer of nearly every table fits.
const TAIL: u64 = 4096;
/// The longest footer: first and last key of 64 KiB each, and as much again for everything else.
const LONGEST_TAIL: u64 = 256 * 1024;
/// A table ends with the offset of its description (8 bytes) and the version of its encoding (2 bytes); the description ends
/// with a CRC-32 of itself.
const ENDING: u64 = 10;
const CHECKSUM: u64 = 4;

/// What an object has to be.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// A table whose blocks, by the manifest, end there.
    Table(u64),
    /// An object of the write-ahead log; an empty one is a fence.
    Log,
}

/// `Corruption` naming the first object that is missing, truncated or unreadable: a table of the newest manifest, an object
/// of the write-ahead log that is not folded into tables, the list of compactions. What is found is looked at a second time
/// where the store has moved meanwhile.
///
/// `Unavailable` where it moved during each of [`ATTEMPTS`] looks. A place without a database is sound.
pub async fn sound(location: &Location, deadline: &Deadline) -> Result<()> {
    let mut held = manifest(location, deadline).await?;
    for _ in 0..ATTEMPTS {
        let Some(found) = held else { return Ok(()) };
        let damage = match rests_on(location, &found, deadline).await {
            Err(error) if error.kind() == ErrorKind::Corruption => error,
            other => return other,
        };
        // A compactor and a collector of another process remove what only an older manifest names.
        held = manifest(location, deadline).await?;
        if held.as_ref().map(VersionedManifest::id) == Some(found.id()) {
            return Err(damage);
        }
    }
    Err(Error::new(ErrorKind::Unavailable, format!("{location} moved during each of {ATTEMPTS} looks"))
        .next("run the same command again"))
}

async fn rests_on(location: &Location, manifest: &VersionedManifest, deadline: &Deadline) -> Result<()> {
    compactions(location, deadline).await?;
    let paths = PathResolver::new(location.path.clone(), manifest);
    let mut wanted: BTreeMap<Path, Wanted> = BTreeMap::new();
    for view in manifest.all_sst_views() {
        let info = &view.sst.info;
        let parts = [
            (info.index_offset, info.index_len),
            (info.filter_offset, info.filter_len),
            (info.stats_offset, info.stats_len),
        ];
        let end =
            parts.into_iter().map(|(offset, length)| offset.saturating_add(length)).max().unwrap_or_default();
        wanted.insert(paths.sst_path(&view.sst.id), Wanted::Table(end));
    }
    wanted
        .extend(log_objects(location, manifest, deadline).await?.into_iter().map(|path| (path, Wanted::Log)));
    futures::stream::iter(wanted)
        .map(|(path, wanted)| whole(location, path, wanted, deadline))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Objects of the write-ahead log behind what the tables hold; one that is missing between others is `Corruption`.
async fn log_objects(
    location: &Location,
    manifest: &VersionedManifest,
    deadline: &Deadline,
) -> Result<Vec<Path>> {
    let folder = location.path.clone().join("wal");
    let named = |number: u64| folder.clone().join(format!("{number:020}.sst"));
    let folded = manifest.replay_after_wal_id();
    let list = location.store.list_with_offset(Some(&folder), &named(folded));
    let objects: Vec<_> = deadline
        .object("listing the write-ahead log", list.map_ok(|object| object.location).try_collect())
        .await?
        .unwrap_or_default();
    let number = |path: &Path| path.filename()?.strip_suffix(".sst")?.parse::<u64>().ok();
    let mut there: Vec<u64> = objects.iter().filter_map(number).filter(|number| *number > folded).collect();
    there.sort_unstable();
    let expected = (folded + 1..).zip(&there).find(|(expected, there)| expected != *there);
    if let Some((missing, later)) = expected {
        return Err(damaged(
            &named(missing),
            &format!("it is missing from the write-ahead log, and {later} is there"),
        ));
    }
    Ok(there.into_iter().map(named).collect())
}

/// The list of compactions that a writer goes on from.
async fn compactions(location: &Location, deadline: &Deadline) -> Result<()> {
    let admin = AdminBuilder::new(location.path.clone(), location.guarded()).build();
    let what = "reading the compactions";
    match deadline.wait(what, admin.read_compactions(None)).await {
        Ok(_) => Ok(()),
        Err(error) if is_odd(&error) => {
            let name = newest(location, "compactions", deadline).await?;
            Err(damaged(&name, error.message()).because(error))
        }
        Err(error) => Err(error),
    }
}

/// Whether an error says something about the bytes that were read, not about reading them.
pub(crate) fn is_odd(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Internal | ErrorKind::InvalidInput)
        && object_cause(error).and_then(lasting).is_none()
}

pub(crate) fn damaged(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("{path}: {why}"))
        .next("bring this object back from a copy of the store (versions of the bucket), or go back to a checkpoint; change nothing by hand")
}

/// Looks at the end of one object.
async fn whole(location: &Location, path: Path, wanted: Wanted, deadline: &Deadline) -> Result<()> {
    let mut length = TAIL;
    loop {
        let Some((size, tail)) = end_of(location, &path, length, deadline).await? else {
            return Err(damaged(&path, "it is missing"));
        };
        if size == 0 && matches!(wanted, Wanted::Log) {
            return Ok(());
        }
        match footer(size, &tail) {
            Footer::At(offset) => {
                let end = if let Wanted::Table(end) = wanted { end } else { 0 };
                let short = format!("its blocks end at {offset}; the manifest says {end}");
                return if offset < end { Err(damaged(&path, &short)) } else { Ok(()) };
            }
            Footer::Longer(needed) if length < needed => length = needed,
            Footer::Longer(_) | Footer::None => {
                return Err(damaged(
                    &path,
                    &format!("it is truncated or overwritten ({size} bytes, without an ending of its own)"),
                ));
            }
        }
    }
}

/// The size of an object and at most its last `length` bytes; `None` for one that is not there.
async fn end_of(
    location: &Location,
    path: &Path,
    length: u64,
    deadline: &Deadline,
) -> Result<Option<(u64, Bytes)>> {
    let what = format!("reading the end of {path}");
    let head = async {
        let options = GetOptions { head: true, ..GetOptions::default() };
        Ok(location.store.get_opts(path, options).await?.meta.size)
    };
    let tail = async {
        let options = GetOptions { range: Some(GetRange::Suffix(length)), ..GetOptions::default() };
        let got = location.store.get_opts(path, options).await?;
        Ok((got.meta.size, got.bytes().await?))
    };
    match deadline.object(&what, tail).await {
        Ok(found) => Ok(found),
        // A range of an empty object is an error of its own on every store.
        Err(error) => match deadline.object(&what, head).await? {
            Some(0) => Ok(Some((0, Bytes::new()))),
            Some(_) => Err(error),
            None => Ok(None),
        },
    }
}

/// What the last bytes of a table say.
#[derive(Debug, PartialEq, Eq)]
enum Footer {
    /// Its description is there, and begins at this offset.
    At(u64),
    /// Its description begins before these bytes: as many are needed.
    Longer(u64),
    /// They are not the end of a table.
    None,
}

fn footer(size: u64, tail: &[u8]) -> Footer {
    let Some((rest, ending)) = tail.len().checked_sub(10).and_then(|at| tail.split_at_checked(at)) else {
        return Footer::None;
    };
    let Some(offset) = ending.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
        return Footer::None;
    };
    let Some(needed) =
        size.checked_sub(offset).filter(|needed| (ENDING + CHECKSUM + 1..=LONGEST_TAIL).contains(needed))
    else {
        return Footer::None;
    };
    let Some(described) =
        usize::try_from(needed - ENDING).ok().and_then(|length| rest.len().checked_sub(length))
    else {
        return Footer::Longer(needed);
    };
    let Some((_, described)) = rest.split_at_checked(described) else { return Footer::None };
    match described.split_last_chunk::<4>() {
        Some((described, checksum)) if crc32fast::hash(described) == u32::from_be_bytes(*checksum) => {
            Footer::At(offset)
        }
        _ => Footer::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(blocks: usize, description: &[u8]) -> Vec<u8> {
        let mut bytes = vec![7; blocks];
        bytes.extend(description);
        bytes.extend(crc32fast::hash(description).to_be_bytes());
        bytes.extend((blocks as u64).to_be_bytes());
        bytes.extend([0, 2]);
        bytes
    }

    #[test]
    fn a_table_that_lost_any_number_of_bytes_at_its_end_has_no_footer() {
        let whole = table(300, b"a description");
        let size = whole.len();
        assert_eq!(footer(size as u64, &whole), Footer::At(300));
        for kept in 0..size {
            assert_eq!(footer(kept as u64, &whole[..kept]), Footer::None, "{kept} bytes");
        }
        for at in 300..size - 2 {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_ne!(footer(size as u64, &changed), Footer::At(300), "byte {at}");
        }
    }

    #[test]
    fn a_long_description_is_asked_for_as_a_whole() {
        let whole = table(300, &[9; 6000]);
        let size = whole.len() as u64;
        let tail = &whole[whole.len() - 4096..];
        assert_eq!(footer(size, tail), Footer::Longer(size - 300));
        assert_eq!(footer(size, &whole[300..]), Footer::At(300));
    }
}
