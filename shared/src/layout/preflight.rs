//! Looking before anything is done: tables, keys, time to live, leftovers, and what the migration will cost.
//!
//! Read-only; [`super::generation`] makes the plan.

use serde::Serialize;

use super::backfill::MOST_GROUP_KEYS;
use super::generation::{self, Leftovers, backfill_segments};
use super::key::{LAKE_SIGNAL_KEY, v1_item_bytes};
use super::records::plan::{Plan, State};
use super::store::SIGNALS_A_SECOND;
use super::tables::{TableFacts, Tables};
use super::transaction::Side;
use crate::{Error, ErrorKind, Result};

/// Dollars of a million write request units: on-demand, us-east-1, price list of November 2024.
pub const DOLLARS_PER_MILLION_WRITE_UNITS: f64 = 0.625;

/// Dollars of a million read request units: on-demand, us-east-1, price list of November 2024.
pub const DOLLARS_PER_MILLION_READ_UNITS: f64 = 0.125;

/// Write request units a second that a new on-demand table takes at once (DynamoDB's documented initial throughput).
pub const NEW_TABLE_WRITE_UNITS: f64 = 4000.0;

/// Read request units a second that a new on-demand table gives at once.
pub const NEW_TABLE_READ_UNITS: f64 = 12_000.0;

/// Mutations a second of v1 from which the barrier's check is worth a warning. Every dual mutation checks the one
/// barrier item; one partition takes about 500 such checks a second (1,000 write units, 2 a check).
pub const BUSY_WRITES: f64 = 50.0;

/// What a person accepts with the input.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accepted {
    /// Items of v1 expire: their deletes bypass the mirror.
    pub ttl: bool,
    /// v1 is a global table: transactions hold in one region only.
    pub replicas: bool,
    /// Another migrator's cursor is removed.
    pub discard_foreign_cursor: bool,
    /// Another migrator's barrier is taken over at the cutover.
    pub adopt_foreign_barrier: bool,
}

/// What the migration will take.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// Items.
    pub items: u64,
    /// Bytes of keys, values and names in v1.
    pub bytes: u64,
    /// Write request units of the backfill.
    pub write_units: f64,
    /// Read request units of backfill, rehearsal and verification.
    pub read_units: f64,
    /// Dollars of both, at the price list that the constants name.
    pub dollars: f64,
    /// Minutes of the backfill, of which each table takes half the units, at a new on-demand table's initial throughput.
    pub backfill_minutes: f64,
    /// Seconds of the verification under the barrier, which reads both tables at once, at that throughput.
    pub verification_seconds: f64,
}

impl Estimate {
    /// For `items` items of `bytes` bytes together.
    ///
    /// Backfill: 2 write units for each KB of the check on v1 and of the put in v2, and 2 for a segment record each
    /// 49 items; the scan at 1 read unit for each 4 KB and 1 for each missing copy. A verification reads both tables
    /// once by scan; a rehearsal reads both by key too.
    pub fn of(items: u64, bytes: u64) -> Self {
        let count = items as f64;
        let mean = if items == 0 { 0.0 } else { bytes as f64 / count };
        let kilobytes = (mean / 1024.0).ceil().max(1.0);
        let reads = (mean / 4096.0).ceil().max(1.0);
        let scan = bytes as f64 / 4096.0;
        let write_units = count * (4.0 * kilobytes + 2.0 / MOST_GROUP_KEYS as f64);
        let backfill_reads = scan + count;
        let verification = 2.0 * scan;
        let rehearsal = 2.0 * scan + 2.0 * count * reads;
        let read_units = backfill_reads + rehearsal + verification;
        Self {
            items,
            bytes,
            write_units,
            read_units,
            dollars: Self::dollars_of(read_units, write_units),
            backfill_minutes: write_units / 2.0 / NEW_TABLE_WRITE_UNITS / 60.0,
            verification_seconds: verification / 2.0 / NEW_TABLE_READ_UNITS,
        }
    }

    /// Dollars of so many units.
    pub fn dollars_of(read_units: f64, write_units: f64) -> f64 {
        (write_units * DOLLARS_PER_MILLION_WRITE_UNITS + read_units * DOLLARS_PER_MILLION_READ_UNITS) / 1e6
    }

    /// Exact, from a survey's counts: `key_and_value_bytes` without names.
    pub fn surveyed(items: u64, key_and_value_bytes: u64) -> Self {
        Self::of(items, key_and_value_bytes + items * v1_item_bytes("", 0) as u64)
    }
}

/// The warning of an estimate that rests on no survey.
pub const UNSURVEYED: &str =
    "items and bytes are DynamoDB's own count, up to six hours old; --survey counts exactly";

/// What was found.
#[derive(Debug, Clone)]
pub struct Report {
    /// v1.
    pub v1: TableFacts,
    /// v2, where it exists.
    pub v2: Option<TableFacts>,
    /// The plan, where there is one.
    pub plan: Option<Plan>,
    /// Barrier, marker, another migrator's cursor.
    pub leftovers: Leftovers,
    /// What the migration will take.
    pub estimate: Estimate,
    /// Write request units a second of v1, where it is known.
    pub writes_per_second: Option<f64>,
    /// Worth knowing, but no obstacle.
    pub warnings: Vec<String>,
    /// What stands in the way, each with what to do; the first is the error of a run.
    pub blockers: Vec<Error>,
}

impl Report {
    /// The first blocker, as the error that a run ends with.
    pub fn check(&self) -> Result<()> {
        self.blockers.first().map_or(Ok(()), |first| Err(first.clone()))
    }
}

/// Looks at both tables and everything that could stand in the way. Changes nothing.
///
/// Fails only where v1 cannot be looked at at all; obstacles are in [`Report::blockers`].
///
/// `writes_per_second` is v1's write rate as its metrics have it; `None` where nobody could tell.
pub async fn preflight(
    tables: &Tables,
    accepted: Accepted,
    writes_per_second: Option<f64>,
) -> Result<Report> {
    let v1 = tables.describe(Side::V1).await?.ok_or_else(|| {
        Error::new(ErrorKind::TableMismatch, format!("table {} does not exist", tables.name(Side::V1)))
            .next("check --table, --endpoint and the region")
    })?;
    let v2 = tables.describe(Side::V2).await?;
    let mut blockers = Vec::new();
    let mut warnings = Vec::new();
    check_keys(tables, &v1, v2.as_ref(), &mut blockers);
    check_settings(&v1, v2.as_ref(), accepted, &mut blockers, &mut warnings);
    let (mut plan, mut leftovers) = (None, Leftovers::default());
    if blockers.is_empty() {
        (leftovers, plan) = Leftovers::load_with_plan(tables).await?;
        if tables.get(Side::V1, LAKE_SIGNAL_KEY).await?.is_some() {
            warnings.push(format!(
                "lake's signal key {LAKE_SIGNAL_KEY} is there: all who signal wait for its one item, which takes about \
                 {SIGNALS_A_SECOND} signaled mutations a second"
            ));
        }
        if let Some(plan) = &plan {
            blockers.extend(generation::check_plan(plan, tables).err());
            if plan.state == State::Open {
                let segments = backfill_segments(tables, plan).await?;
                blockers.extend(super::cutover::check_unblocked(&segments).err());
            }
        }
        blockers.extend(leftovers.blockers(
            plan.as_ref(),
            accepted.discard_foreign_cursor,
            accepted.adopt_foreign_barrier,
        ));
    }
    let estimate = Estimate::of(v1.items, v1.bytes);
    if v1.items > 0 {
        warnings.push(UNSURVEYED.to_owned());
    }
    match writes_per_second {
        None => warnings.push("how often v1 is written is not known".to_owned()),
        Some(rate) if rate >= BUSY_WRITES => warnings.push(format!(
            "v1 takes {rate:.0} write units a second: every dual write checks the one barrier item, which takes about \
             500 checks a second; pause writers for the cutover"
        )),
        Some(_) => {}
    }
    if estimate.verification_seconds > super::cutover::DEFAULT_DEADLINE.as_secs_f64() * 0.5 {
        warnings.push(format!(
            "verification takes about {:.0} s at a new table's throughput; give the cutover a longer deadline",
            estimate.verification_seconds
        ));
    }
    Ok(Report { v1, v2, plan, leftovers, estimate, writes_per_second, warnings, blockers })
}

fn check_keys(tables: &Tables, v1: &TableFacts, v2: Option<&TableFacts>, blockers: &mut Vec<Error>) {
    let form = |facts: &TableFacts| {
        let parts = facts.key.iter().map(|part| format!("{} {} ({})", part.kind, part.name, part.scalar));
        parts.collect::<Vec<_>>().join(", ")
    };
    let mut expect = |side: Side, facts: &TableFacts, wanted: &str| {
        let found = form(facts);
        if found != wanted {
            blockers.push(
                Error::new(
                    ErrorKind::TableMismatch,
                    format!("table {} is keyed by {found}; {wanted} is needed", tables.name(side)),
                )
                .next("name the right tables with --table and --companion"),
            );
        }
        if !facts.active {
            blockers.push(
                Error::new(ErrorKind::TableMismatch, format!("table {} is not active", tables.name(side)))
                    .next("wait until it is"),
            );
        }
    };
    expect(Side::V1, v1, "HASH pk (S)");
    match v2 {
        Some(v2) => expect(Side::V2, v2, "HASH bucket (S), RANGE pk (S)"),
        None => blockers.push(
            Error::new(
                ErrorKind::TableMismatch,
                format!("the companion table {} does not exist", tables.name(Side::V2)),
            )
            .next("deploy the template, or run metashift layout run --local --create-companion"),
        ),
    }
}

fn check_settings(
    v1: &TableFacts,
    v2: Option<&TableFacts>,
    accepted: Accepted,
    blockers: &mut Vec<Error>,
    warnings: &mut Vec<String>,
) {
    match v1.ttl {
        Some(true) if !accepted.ttl => blockers.push(
            Error::new(
                ErrorKind::TableMismatch,
                "items of v1 expire (TTL is on): such deletes bypass the mirror and would come back",
            )
            .next("turn TTL off for the migration, or accept it with --allow-ttl"),
        ),
        Some(_) => {}
        None => warnings.push("the server does not say whether items of v1 expire (TTL)".to_owned()),
    }
    if !v1.replicas.is_empty() && !accepted.replicas {
        blockers.push(
            Error::new(
                ErrorKind::TableMismatch,
                format!(
                    "v1 has replicas in {}: transactions hold in one region only",
                    v1.replicas.join(", ")
                ),
            )
            .next("let every writer work in this region, then accept it with --allow-replicas"),
        );
    }
    for (name, facts) in [("v1", Some(v1)), ("v2", v2)] {
        let Some(facts) = facts else { continue };
        match facts.point_in_time_recovery {
            Some(true) => {}
            Some(false) => warnings.push(format!("point-in-time recovery of {name} is off")),
            None => {
                warnings.push(format!("the server does not say whether {name} has point-in-time recovery"));
            }
        }
        if !facts.deletion_protection {
            warnings.push(format!("deletion protection of {name} is off"));
        }
        if !facts.on_demand {
            warnings
                .push(format!("{name} has provisioned capacity; size it, or lower the rate with throttle"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_small_items_is_four_write_units_and_a_share_of_a_record() {
        let estimate = Estimate::of(100_000, 25_000_000);
        assert!((estimate.write_units / 100_000.0 - 4.04).abs() < 0.01, "{estimate:?}");
        assert!(estimate.dollars > 0.2 && estimate.dollars < 0.5, "{estimate:?}");
        assert!(Estimate::of(0, 0).write_units.abs() < f64::EPSILON);
    }

    #[test]
    fn larger_items_cost_by_the_kilobyte() {
        let one = Estimate::of(1000, 1_000_000);
        let two = Estimate::of(1000, 2_000_000);
        assert!(two.write_units > 1.9 * one.write_units);
    }
}
