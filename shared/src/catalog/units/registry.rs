//! Which units there are, and what comes next for a store.

use std::fmt;

use super::{Kind, Unit, check_cursor, shipped};
use crate::catalog::format::{FLOOR, LAST_ADDITIVE, SystemRecords};
use crate::catalog::value::{Format, Migration};
use crate::{Error, ErrorKind, Result};

/// The units that a binary carries.
pub struct Registry {
    units: Vec<Box<dyn Unit>>,
    targets: Vec<u64>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.units.iter().map(|unit| (unit.name(), unit.source_formats(), unit.to_format()));
        f.debug_list().entries(paths).finish()
    }
}

/// What the durable state asks for next.
pub enum Stage<'a> {
    /// The store is what was asked for.
    Done,
    /// The store is at the target, but still says where an earlier run to a higher one began.
    Forget,
    /// Advance the additive stamp to 8.
    Stamp,
    /// Begin a unit.
    Start(&'a dyn Unit),
    /// Go on with a unit from its cursor.
    Resume(&'a dyn Unit, Migration),
}

impl fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Forget => f.write_str("forget"),
            Self::Stamp => f.write_str("stamp"),
            Self::Start(unit) => write!(f, "start {}", unit.name()),
            Self::Resume(unit, _) => write!(f, "resume {}", unit.name()),
        }
    }
}

impl Registry {
    /// The units of this release: 8 → 9, 9 → 11, 10 → 11, 11 → 12; targets 9, 11 and 12.
    pub fn shipped() -> Self {
        Self::new(shipped(), &super::format::TARGETS)
    }

    /// Other units, for tests of the driver; `targets` are the formats that may be asked for.
    pub fn new(units: Vec<Box<dyn Unit>>, targets: &[u64]) -> Self {
        Self { units, targets: targets.to_vec() }
    }

    /// `InvalidInput` for a target that no unit ends at.
    pub fn check_target(&self, target: u64) -> Result<()> {
        if self.targets.contains(&target) {
            return Ok(());
        }
        let known: Vec<_> = self.targets.iter().map(u64::to_string).collect();
        Err(Error::new(ErrorKind::InvalidInput, format!("no migration ends at format {target}"))
            .next(format!("name one of {}", known.join(", "))))
    }

    /// The unit from one format to another.
    pub fn unit(&self, from: u64, to: u64) -> Option<&dyn Unit> {
        let mut units = self.units.iter().map(AsRef::as_ref);
        units.find(|unit| unit.source_formats().contains(&from) && unit.to_format() == to)
    }

    /// The unit with a name.
    pub fn named(&self, name: &str) -> Option<&dyn Unit> {
        self.units.iter().map(AsRef::as_ref).find(|unit| unit.name() == name)
    }

    /// The unit that leads from a format towards a target.
    fn towards(&self, from: u64, target: u64) -> Option<&dyn Unit> {
        let mut units = self.units.iter().map(AsRef::as_ref);
        units.find(|unit| unit.source_formats().contains(&from) && unit.to_format() <= target)
    }

    /// What comes next for a store with these records.
    ///
    /// `InvalidInput` where there is no catalog; `Migration` for a format above the target, and for a unit under way that this
    /// version does not carry or that ends above it; `Corruption` for records that contradict each other.
    pub fn next(&self, records: &SystemRecords, target: u64) -> Result<Stage<'_>> {
        let Some(format) = records.coherent()? else {
            return Err(Error::new(ErrorKind::InvalidInput, "there is no catalog here")
                .next("metashift catalog create"));
        };
        if records.head.is_none() {
            return Err(Error::new(ErrorKind::Corruption, "the catalog has a format but no head"));
        }
        let version = format.format_version;
        if let Some(marker) = &records.marker {
            return self.resume(marker, target);
        }
        if version > target {
            return Err(Error::new(
                ErrorKind::Migration,
                format!("the store has format {version}, above {target}; migrations go one way"),
            ));
        }
        if version == target {
            return Ok(if format.original_format.is_some() { Stage::Forget } else { Stage::Done });
        }
        if version < LAST_ADDITIVE {
            return Ok(Stage::Stamp);
        }
        self.towards(version, target).map(Stage::Start).ok_or_else(|| {
            Error::new(ErrorKind::Migration, format!("no unit leads from format {version} to {target}"))
        })
    }

    fn resume(&self, marker: &Migration, target: u64) -> Result<Stage<'_>> {
        let Some(unit) = self.unit(marker.from_format, marker.to_format) else {
            return Err(Error::new(
                ErrorKind::Migration,
                format!(
                    "a migration from format {} to {} is under way that this version does not carry",
                    marker.from_format, marker.to_format
                ),
            )
            .next("use the version of metashift that started it"));
        };
        if marker.to_format > target {
            let abandon = match unit.kind() {
                Kind::Directory { .. } => ", or metashift catalog abandon",
                Kind::Rewriting => "",
            };
            return Err(Error::new(
                ErrorKind::Migration,
                format!(
                    "{} is under way and ends at format {}, above {target}",
                    unit.name(),
                    marker.to_format
                ),
            )
            .next(format!("metashift catalog run --to-format {}{abandon}", marker.to_format)));
        }
        check_cursor(unit, &marker.cursor)?;
        Ok(Stage::Resume(unit, marker.clone()))
    }

    /// Units that a run to `target` would go on with or begin, in order; errors as those of [`Self::next`].
    pub fn chain(&self, records: &SystemRecords, target: u64) -> Result<Vec<&dyn Unit>> {
        let mut records = records.clone();
        let mut chain = Vec::new();
        loop {
            let reached = match self.next(&records, target)? {
                Stage::Done | Stage::Forget => return Ok(chain),
                Stage::Stamp => LAST_ADDITIVE,
                Stage::Start(unit) | Stage::Resume(unit, _) => {
                    chain.push(unit);
                    unit.to_format()
                }
            };
            let format = records.format.take().unwrap_or_default();
            let format = Format { format_version: reached, ..format };
            records = SystemRecords { format: Some(format), marker: None, ..records };
        }
    }

    /// Names of everything that a run to `target` would do, in order; errors as those of [`Self::next`].
    pub fn plan(&self, records: &SystemRecords, target: u64) -> Result<Vec<String>> {
        let mut records = records.clone();
        let mut plan = Vec::new();
        loop {
            let (what, reached) = match self.next(&records, target)? {
                Stage::Done | Stage::Forget => return Ok(plan),
                Stage::Stamp => ("additive-stamp", LAST_ADDITIVE),
                Stage::Start(unit) | Stage::Resume(unit, _) => (unit.name(), unit.to_format()),
            };
            plan.push(what.to_owned());
            let format = Format { format_version: reached, ..records.format.unwrap_or_default() };
            records = SystemRecords { format: Some(format), marker: None, ..records };
        }
    }
}

const _: () = assert!(LAST_ADDITIVE < FLOOR);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::value::Head;

    fn at(version: u64) -> SystemRecords {
        SystemRecords {
            format: Some(Format { format_version: version, ..Format::default() }),
            head: Some(Head::default()),
            marker: None,
            wal_elsewhere: false,
        }
    }

    #[test]
    fn the_shipped_paths_are_these() {
        let registry = Registry::shipped();
        let plan = |from, to| registry.plan(&at(from), to).unwrap().join(" ");
        for old in 1..8 {
            assert_eq!(plan(old, 9), "additive-stamp version-inline-tombstones");
        }
        assert_eq!(plan(8, 11), "version-inline-tombstones index-current-names");
        assert_eq!(
            plan(1, 12),
            "additive-stamp version-inline-tombstones index-current-names index-delete-file-targets"
        );
        assert_eq!(plan(9, 12), "index-current-names index-delete-file-targets");
        assert_eq!(plan(10, 12), "index-current-names index-delete-file-targets");
        assert_eq!(plan(10, 11), "index-current-names");
        assert_eq!(plan(11, 12), "index-delete-file-targets");
        for target in [9, 11, 12] {
            assert_eq!(plan(target, target), "");
        }
        let paths: Vec<_> =
            shipped().iter().map(|unit| (unit.name(), unit.source_formats(), unit.to_format())).collect();
        assert_eq!(
            paths,
            [
                ("version-inline-tombstones", &[8][..], 9),
                ("index-current-names", &[9, 10][..], 11),
                ("index-delete-file-targets", &[11][..], 12),
            ]
        );
    }

    #[test]
    fn there_is_no_way_back_and_no_way_to_formats_that_nobody_stops_at() {
        let registry = Registry::shipped();
        assert_eq!(registry.plan(&at(12), 11).unwrap_err().kind(), ErrorKind::Migration);
        assert_eq!(registry.plan(&at(13), 12).unwrap_err().kind(), ErrorKind::Migration);
        for target in [0, 8, 10, 13] {
            assert_eq!(registry.check_target(target).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_marker_of_a_unit_that_is_not_carried_is_refused() {
        let marker = |from_format, to_format, cursor: &'static [u8]| SystemRecords {
            marker: Some(Migration {
                from_format,
                to_format,
                cursor: bytes::Bytes::from_static(cursor),
                original_format: None,
            }),
            ..at(from_format)
        };
        let registry = Registry::shipped();
        assert_eq!(registry.next(&marker(9, 12, b""), 12).unwrap_err().kind(), ErrorKind::Migration);
        assert_eq!(registry.next(&marker(11, 12, b""), 11).unwrap_err().kind(), ErrorKind::Migration);
        assert_eq!(registry.next(&marker(11, 12, &[4, 2, 7]), 12).unwrap_err().kind(), ErrorKind::Corruption);
        assert_eq!(registry.next(&marker(11, 12, &[4, 2, 8]), 12).unwrap_err().kind(), ErrorKind::Corruption);
        assert!(matches!(registry.next(&marker(11, 12, b""), 12).unwrap(), Stage::Resume(..)));
    }

    #[test]
    fn a_store_without_head_is_corruption() {
        let records = SystemRecords { head: None, ..at(8) };
        assert_eq!(Registry::shipped().next(&records, 9).unwrap_err().kind(), ErrorKind::Corruption);
    }
}
