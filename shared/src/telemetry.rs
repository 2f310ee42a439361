//! Metrics in CloudWatch's embedded metric format, one JSON line each.
//!
//! Namespace `Metashift`, dimensions migration and phase; no key, table name or cursor is ever a dimension.

use serde_json::{Map, Value, json};

use crate::environment::Environment;

/// CloudWatch namespace of every metric.
pub const NAMESPACE: &str = "Metashift";

/// Most metrics in one record (a limit of the embedded metric format).
pub const MOST_METRICS: usize = 100;

/// CloudWatch unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// A time in seconds.
    Seconds,
}

/// A metric that this software emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name in CloudWatch.
    pub name: &'static str,
    /// Unit in CloudWatch.
    pub unit: Unit,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $constant:ident = $name:literal, $unit:ident;)*) => {
        $($(#[$doc])* pub const $constant: Metric = Metric { name: $name, unit: Unit::$unit };)*
        /// Every metric that the code can emit.
        pub const ALL: &[Metric] = &[$($constant,)*];
    };
}

metrics! {
    /// Items that a scan saw.
    ITEMS_SCANNED = "ItemsScanned", Count;
    /// Items that were copied.
    ITEMS_COPIED = "ItemsCopied", Count;
    /// Items found equal on both sides.
    ITEMS_ALREADY_LIVE = "ItemsAlreadyLive", Count;
    /// Items that cannot move.
    ITEMS_REJECTED = "ItemsRejected", Count;
    /// Items whose copies differ.
    ITEMS_DIVERGED = "ItemsDiverged", Count;
    /// Read request units charged.
    READ_UNITS = "ReadUnits", Count;
    /// Write request units charged.
    WRITE_UNITS = "WriteUnits", Count;
    /// Requests that were throttled.
    THROTTLED = "Throttled", Count;
    /// Transactions that lost to another one.
    CONFLICTS = "Conflicts", Count;
    /// Pages read.
    PAGES = "Pages", Count;
    /// Time that one step took.
    STEP_SECONDS = "StepSeconds", Seconds;
    /// Segments that are done.
    SEGMENTS_DONE = "SegmentsDone", Count;
    /// Age of the barrier while it is held.
    BARRIER_HELD_SECONDS = "BarrierHeldSeconds", Seconds;
    /// 1 once v2 is the authority.
    AUTHORITY = "Authority", Count;
    /// Differences that a comparison found.
    MISMATCHES = "Mismatches", Count;
    /// Differences that an audit after the marker found.
    AUDIT_MISMATCHES = "AuditMismatches", Count;
    /// Catalog records moved.
    CATALOG_RECORDS_MOVED = "CatalogRecordsMoved", Count;
    /// Catalog batches committed.
    CATALOG_BATCHES = "CatalogBatches", Count;
    /// Format of the catalog after the step.
    CATALOG_FORMAT = "CatalogFormat", Count;
    /// Steps that ended with an error.
    STEP_ERRORS = "StepErrors", Count;
    /// 1 for a metadata node that writes v1 only, else 0.
    WRITER_MODE = "WriterMode", Count;
}

/// One record in the embedded metric format, without the newline that ends it.
///
/// `dimensions` are name and value; `properties` go into the log line and into no dimension.
pub fn record(
    environment: &Environment,
    dimensions: &[(&str, &str)],
    values: &[(Metric, f64)],
    properties: Map<String, Value>,
) -> String {
    let mut line = properties;
    for (name, value) in dimensions {
        line.insert((*name).to_owned(), json!(value));
    }
    let listed: Vec<_> = values
        .iter()
        .take(MOST_METRICS)
        .map(|(metric, value)| {
            line.insert(metric.name.to_owned(), json!(value));
            json!({ "Name": metric.name, "Unit": match metric.unit { Unit::Count => "Count", Unit::Seconds => "Seconds" } })
        })
        .collect();
    let names: Vec<_> = dimensions.iter().map(|(name, _)| *name).collect();
    line.insert(
        "_aws".to_owned(),
        json!({
            "Timestamp": environment.now().as_millisecond(),
            "CloudWatchMetrics": [{ "Namespace": NAMESPACE, "Dimensions": [names], "Metrics": listed }],
        }),
    );
    Value::Object(line).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_that_names_every_metric_it_carries() {
        let line = record(
            &Environment::system(),
            &[("migration", "layout"), ("phase", "backfill")],
            &[(ITEMS_COPIED, 3.0), (STEP_SECONDS, 0.5)],
            Map::new(),
        );
        assert!(!line.contains('\n'));
        let json: Value = serde_json::from_str(&line).unwrap();
        let directive = &json["_aws"]["CloudWatchMetrics"][0];
        assert_eq!(directive["Namespace"], "Metashift");
        assert_eq!(directive["Dimensions"], json!([["migration", "phase"]]));
        for metric in directive["Metrics"].as_array().unwrap() {
            assert!(json[metric["Name"].as_str().unwrap()].is_number());
        }
        assert_eq!(json["phase"], "backfill");
        const { assert!(ALL.len() <= MOST_METRICS) }
    }
}
