//! What a report says, apart from how it looks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use metashift::Result;
use metashift::environment::elapsed;
use metashift::layout::Tables;
use metashift::layout::family::family;
use metashift::layout::preflight::Estimate;
use metashift::layout::records::plan::State;
use metashift::layout::records::reject::Reject;
use metashift::layout::records::segment::Segment;
use metashift::layout::status::Overview;
use metashift::layout::transaction::Side;
use serde::Serialize;
use serde_json::{Value, json};

/// Everything that a report is made of.
pub(super) struct Shape {
    pub(super) table: String,
    pub(super) made_at: Timestamp,
    pub(super) overview: Overview,
    pub(super) rejects: Vec<Reject>,
    pub(super) buckets: Option<Buckets>,
    pub(super) catalog: Value,
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
    pub(super) fn seconds(&self) -> f64 {
        elapsed(self.from, self.to).as_secs_f64()
    }

    /// Items a second.
    pub(super) fn rate(&self) -> f64 {
        self.items as f64 / self.seconds().max(0.001)
    }
}

impl Shape {
    /// Phases that have begun, in order.
    pub(super) fn phases(&self) -> Vec<Phase> {
        let mut phases = Vec::new();
        let backfill = &self.overview.segments;
        phases.extend(span(
            "backfill",
            backfill.iter(),
            backfill.iter().map(|segment| segment.scanned).sum(),
        ));
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
        }
        phases
    }

    /// Read and write request units of the backfill.
    pub(super) fn units(&self) -> (f64, f64) {
        self.overview
            .segments
            .iter()
            .fold((0.0, 0.0), |sum, segment| (sum.0 + segment.read_units, sum.1 + segment.write_units))
    }

    /// Dollars of those units.
    pub(super) fn dollars(&self) -> f64 {
        let (read, write) = self.units();
        Estimate::dollars_of(read, write)
    }

    /// Items of v2 by family, as the verification counted them.
    pub(super) fn families(&self) -> BTreeMap<String, u64> {
        self.overview.verification.as_ref().map(|summary| summary.families.clone()).unwrap_or_default()
    }
}

fn span<'a>(
    name: &'static str,
    segments: impl Iterator<Item = &'a Segment> + Clone,
    items: u64,
) -> Option<Phase> {
    let from = segments.clone().filter_map(|segment| segment.started_at).min()?;
    let to = segments.filter_map(|segment| segment.updated_at).max()?;
    Some(Phase { name, from, to, items })
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
