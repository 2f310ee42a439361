//! What a report says, apart from how it looks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use metashift::Result;
use metashift::catalog::format::LAST_ADDITIVE;
use metashift::catalog::inspect::Inspection;
use metashift::catalog::units;
use metashift::environment::elapsed;
use metashift::layout::Tables;
use metashift::layout::family::family;
use metashift::layout::preflight::Estimate;
use metashift::layout::records::plan::State;
use metashift::layout::records::reject::Reject;
use metashift::layout::records::segment::{Segment, Walk};
use metashift::layout::status::{self, Overview};
use metashift::layout::transaction::Side;
use serde::Serialize;
use serde_json::{Value, json};

/// Everything that a report is made of.
pub(super) struct Shape {
    pub(super) made_at: Timestamp,
    pub(super) layout: Option<Layout>,
    pub(super) catalog: Option<Catalog>,
}

/// What is said about a table.
pub(super) struct Layout {
    pub(super) table: String,
    pub(super) made_at: Timestamp,
    pub(super) overview: Overview,
    /// The running or last cutover's records, of both directions.
    pub(super) verified: Vec<Segment>,
    pub(super) rejects: Vec<Reject>,
    pub(super) buckets: Option<Buckets>,
}

/// One phase on the timeline.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) items: u64,
}

impl Phase {
    pub(super) fn took(&self) -> Duration {
        elapsed(self.from, self.to)
    }

    /// Items a second.
    pub(super) fn rate(&self) -> f64 {
        self.items as f64 / self.took().as_secs_f64().max(0.001)
    }
}

/// What one phase was charged.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Charged {
    pub(super) phase: &'static str,
    pub(super) read_units: f64,
    pub(super) write_units: f64,
    pub(super) dollars: f64,
}

/// A time in which so many items a second were scanned.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pace {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) items_per_second: f64,
}

impl Layout {
    /// Reads it all; with `buckets`, every key of v2 once.
    pub(super) async fn read(table: String, tables: &Tables, buckets: bool) -> Result<Self> {
        let overview = Overview::load(tables).await?;
        let mut rejects = Vec::new();
        let mut verified = Vec::new();
        if let Some(plan) = &overview.plan {
            rejects = status::rejects(tables, plan).await?;
            let epoch = plan.cutover.as_ref().map(|cutover| &cutover.epoch).or(plan.released.as_ref());
            if let Some(epoch) = epoch {
                for side in [Side::V1, Side::V2] {
                    let walk = Walk::Verify { epoch: epoch.clone(), side };
                    verified.extend(status::walk_segments(tables, plan.segments, &walk).await?);
                }
            }
        }
        let buckets = if buckets { Some(Buckets::read(tables).await?) } else { None };
        let made_at = tables.environment().now();
        Ok(Self { table, made_at, overview, verified, rejects, buckets })
    }

    /// Phases that have begun, in order.
    pub(super) fn phases(&self) -> Vec<Phase> {
        let mut phases = Vec::new();
        phases.extend(span("backfill", &self.overview.segments));
        if let Some(cutover) = self.overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref()) {
            let verified = self.overview.verification.as_ref();
            let end = verified.and_then(|summary| summary.updated_at).unwrap_or(cutover.installed_at);
            let still_held = self.overview.plan.as_ref().is_some_and(|plan| plan.state == State::Finalizing);
            phases.push(Phase {
                name: "writers paused",
                from: cutover.installed_at,
                to: if still_held { self.made_at } else { end },
                items: verified.map_or(0, |summary| summary.v1_items + summary.v2_items),
            });
            phases.extend(span("verification", &self.verified));
        }
        phases
    }

    /// What each phase was charged, by its own records.
    pub(super) fn charged(&self) -> Vec<Charged> {
        [("backfill", &self.overview.segments), ("verification", &self.verified)]
            .into_iter()
            .filter(|(_, segments)| !segments.is_empty())
            .map(|(phase, segments)| {
                let read_units = segments.iter().map(|segment| segment.read_units).sum();
                let write_units = segments.iter().map(|segment| segment.write_units).sum();
                let dollars = Estimate::dollars_of(read_units, write_units);
                Charged { phase, read_units, write_units, dollars }
            })
            .collect()
    }

    /// The backfill's throughput.
    pub(super) fn paces(&self) -> Vec<Pace> {
        let segments = &self.overview.segments;
        paces(segments.iter().filter_map(|one| Some((one.started_at?, one.updated_at?, one.scanned))))
    }

    /// Outstanding rejects by reason.
    pub(super) fn reasons(&self) -> BTreeMap<String, u64> {
        let mut reasons = BTreeMap::new();
        for reject in &self.rejects {
            *reasons.entry(reason_name(reject)).or_default() += 1;
        }
        reasons
    }

    /// Items of v2 by family, as the verification counted them.
    pub(super) fn families(&self) -> BTreeMap<String, u64> {
        self.overview.verification.as_ref().map(|summary| summary.families.clone()).unwrap_or_default()
    }
}

fn span(name: &'static str, segments: &[Segment]) -> Option<Phase> {
    let from = segments.iter().filter_map(|segment| segment.started_at).min()?;
    let to = segments.iter().filter_map(|segment| segment.updated_at).max()?;
    Some(Phase { name, from, to, items: segments.iter().map(|segment| segment.scanned).sum() })
}

/// Why a key cannot move, in the word that the record uses.
pub(super) fn reason_name(reject: &Reject) -> String {
    serde_json::to_value(reject.reason)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Walks of so many items each, as if each had kept its own average pace; added up wherever they overlap.
fn paces(walks: impl Iterator<Item = (Timestamp, Timestamp, u64)>) -> Vec<Pace> {
    let walks: Vec<_> = walks
        .filter(|(from, to, _)| from < to)
        .map(|(from, to, items)| (from, to, items as f64 / elapsed(from, to).as_secs_f64()))
        .collect();
    let mut moments: Vec<_> = walks.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
    moments.sort_unstable();
    moments.dedup();
    moments
        .iter()
        .zip(moments.iter().skip(1))
        .map(|(&from, &to)| {
            let under_way = walks.iter().filter(|walk| walk.0 <= from && to <= walk.1);
            Pace { from, to, items_per_second: under_way.map(|walk| walk.2).sum() }
        })
        .collect()
}

/// What is said about a catalog.
pub(super) struct Catalog {
    pub(super) store: String,
    pub(super) found: Inspection,
}

/// A step on the way through the formats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnitShown {
    pub(super) unit: String,
    pub(super) from: Vec<u64>,
    pub(super) to: u64,
    pub(super) state: UnitState,
}

/// Where a store is with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum UnitState {
    /// The store is at the unit's format, or past it.
    Done,
    /// Its marker is there.
    UnderWay,
    /// A run would do it.
    Planned,
    /// Beyond the format that was asked about.
    NotAskedFor,
}

impl UnitState {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::UnderWay => "under way",
            Self::Planned => "planned",
            Self::NotAskedFor => "not asked for",
        }
    }
}

impl Catalog {
    /// Every unit that is shipped, and where the store is with it.
    pub(super) fn units(&self) -> Vec<UnitShown> {
        let stamp = ("additive-stamp", (1..LAST_ADDITIVE).collect(), LAST_ADDITIVE);
        let units = units::shipped();
        let rest = units.iter().map(|unit| (unit.name(), unit.source_formats().to_vec(), unit.to_format()));
        std::iter::once(stamp)
            .chain(rest)
            .map(|(unit, from, to)| UnitShown {
                unit: unit.to_owned(),
                from,
                to,
                state: self.state(unit, to),
            })
            .collect()
    }

    fn state(&self, unit: &str, to: u64) -> UnitState {
        if self.found.format >= to {
            UnitState::Done
        } else if self.found.under_way.as_ref().is_some_and(|unit| unit.to_format == to) {
            UnitState::UnderWay
        } else if self.found.plan.iter().any(|planned| planned.unit == unit) {
            UnitState::Planned
        } else {
            UnitState::NotAskedFor
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut value = json!(self.found);
        if let Value::Object(fields) = &mut value {
            fields.insert("store".to_owned(), json!(self.store));
            fields.insert("units".to_owned(), json!(self.units()));
        }
        value
    }
}

/// How evenly the new table's buckets are filled, by family.
#[derive(Debug, Clone, Default)]
pub(super) struct Buckets {
    /// Items by bucket, by family.
    pub(super) families: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Buckets {
    /// Counts every key of v2; half a read unit for each 4 KB.
    pub(super) async fn read(tables: &Tables) -> Result<Self> {
        let mut buckets = Self::default();
        let mut after = None;
        loop {
            let page = tables.scan(Side::V2, (0, 1), 10_000, after.as_ref(), false).await?;
            for item in page.items {
                let bucket = item.bucket.unwrap_or_default();
                *buckets
                    .families
                    .entry(family(&item.key).to_owned())
                    .or_default()
                    .entry(bucket)
                    .or_default() += 1;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for (name, counts) in &mut buckets.families {
            for bucket in tables.layout().buckets(name) {
                counts.entry(bucket).or_default();
            }
        }
        Ok(buckets)
    }

    pub(super) fn json(&self) -> Value {
        json!(self.families)
    }
}

#[cfg(test)]
mod tests {
    use metashift::catalog::inspect::{Planned, UnderWay};

    use super::*;

    fn second(n: i64) -> Timestamp {
        Timestamp::from_second(n).unwrap()
    }

    #[test]
    fn paces_add_up_to_the_items_scanned() {
        let walks = [(second(0), second(10), 100), (second(5), second(15), 50), (second(20), second(20), 0)];
        let found = paces(walks.into_iter());
        let rates: Vec<_> = found.iter().map(|pace| pace.items_per_second).collect();
        assert_eq!(rates, [10.0, 15.0, 5.0]);
        let items: f64 =
            found.iter().map(|one| one.items_per_second * elapsed(one.from, one.to).as_secs_f64()).sum();
        assert!((items - 150.0).abs() < 1e-9, "{items}");
    }

    #[test]
    fn no_walk_has_no_pace() {
        assert_eq!(paces(std::iter::empty()), []);
    }

    #[test]
    fn a_unit_is_done_under_way_planned_or_not_asked_for() {
        let planned = |unit: &str| Planned { unit: unit.to_owned(), records: None, bytes: None };
        let mut catalog = Catalog {
            store: "file:///c".to_owned(),
            found: Inspection {
                format: 9,
                original_format: 8,
                writer_version: String::new(),
                snapshot_id: 1,
                batch_seq: 1,
                commit_log: None,
                readable: false,
                under_way: Some(UnderWay { from_format: 9, to_format: 11, cursor: "04".to_owned() }),
                to_format: 11,
                plan: vec![planned("index-current-names")],
                checkpoints: Vec::new(),
            },
        };
        let states =
            |catalog: &Catalog| catalog.units().into_iter().map(|unit| unit.state).collect::<Vec<_>>();
        let (done, under_way) = (UnitState::Done, UnitState::UnderWay);
        assert_eq!(states(&catalog), [done, done, under_way, UnitState::NotAskedFor]);
        catalog.found.under_way = None;
        catalog.found.plan.push(planned("index-delete-file-targets"));
        assert_eq!(states(&catalog), [done, done, UnitState::Planned, UnitState::Planned]);
    }
}
