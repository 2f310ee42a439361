//! What alarms and the dashboard read, against what the code emits.

use std::collections::BTreeSet;

use metashift::telemetry;
use serde_json::Value;

use super::{at, items, resources, substituted, text};
use crate::{Findings, calls};

/// A metric of ours that an alarm or a widget reads.
#[derive(Debug)]
struct Read {
    by: String,
    name: String,
    dimensions: Vec<(String, Value)>,
}

fn metrics_read(template: &Value) -> Result<Vec<Read>, String> {
    let mut reads = Vec::new();
    for (name, alarm) in resources(template, "AWS::CloudWatch::Alarm") {
        for query in items(alarm, &["Properties", "Metrics"]) {
            let metric = at(query, &["MetricStat", "Metric"]);
            if text(metric, &["Namespace"]) == telemetry::NAMESPACE {
                let dimensions = items(metric, &["Dimensions"]);
                reads.push(Read {
                    by: name.to_owned(),
                    name: text(metric, &["MetricName"]).to_owned(),
                    dimensions: dimensions
                        .iter()
                        .map(|d| (text(d, &["Name"]).to_owned(), at(d, &["Value"]).clone()))
                        .collect(),
                });
            }
        }
    }
    for (name, dashboard) in resources(template, "AWS::CloudWatch::Dashboard") {
        let body = substituted(at(dashboard, &["Properties", "DashboardBody"]));
        let body: Value = serde_json::from_str(body).map_err(|error| format!("{name}: {error}"))?;
        for widget in items(&body, &["widgets"]) {
            let title = text(widget, &["properties", "title"]);
            let metrics = items(widget, &["properties", "metrics"]);
            if metrics.is_empty() {
                return Err(format!("the widget {title:?} shows nothing"));
            }
            for metric in metrics {
                let expression = text(metric.get(0).unwrap_or(&Value::Null), &["expression"]);
                let quoted = |key: &str| {
                    let rest = expression.split_once(&format!("{key}=\""))?.1;
                    Some(rest.split_once('"')?.0.to_owned())
                };
                if !expression.starts_with("SEARCH('{Metashift,migration,phase} ") {
                    return Err(format!("the widget {title:?} does not search {}", telemetry::NAMESPACE));
                }
                let migration = quoted("migration").unwrap_or_default();
                let label = migration.strip_prefix("${").and_then(|name| name.strip_suffix('}'));
                let value =
                    label.map_or(Value::from(migration.as_str()), |name| serde_json::json!({ "Ref": name }));
                reads.push(Read {
                    by: format!("the widget {title:?}"),
                    name: quoted("MetricName").unwrap_or_default(),
                    dimensions: vec![("migration".to_owned(), value)],
                });
            }
        }
    }
    Ok(reads)
}

/// Every metric that an alarm or a widget reads is one that the code emits, with the dimensions it emits: migration
/// is the label, phase the name of a step; the metadata nodes' own metric has its own.
pub fn unknown_metrics(template: &Value) -> Findings {
    let reads = match metrics_read(template) {
        Ok(reads) => reads,
        Err(problem) => return vec![problem],
    };
    let emitted: BTreeSet<&str> = telemetry::ALL.iter().map(|metric| metric.name).collect();
    let phases: BTreeSet<&str> = calls::ALL.iter().map(|(step, _)| *step).collect();
    let [writer_migration, writer_phase] = calls::WRITER;
    let mut found = Findings::new();
    for read in &reads {
        if !emitted.contains(read.name.as_str()) {
            found.push(format!("{} reads {}, which nothing emits", read.by, read.name));
        }
        let by_nodes = read.name == telemetry::WRITER_MODE.name;
        for (dimension, value) in &read.dimensions {
            let known = match dimension.as_str() {
                "migration" if by_nodes => value == writer_migration,
                "migration" if read.name.starts_with("Catalog") => value == calls::CATALOG,
                "migration" => value == &serde_json::json!({ "Ref": "MigrationLabel" }),
                "phase" if by_nodes => value == writer_phase,
                "phase" => value.as_str().is_some_and(|phase| phases.contains(phase)),
                _ => false,
            };
            if !known {
                found.push(format!("{} reads {} with {dimension} = {value}", read.by, read.name));
            }
        }
        if !read.by.starts_with("the widget") && read.dimensions.len() != 2 {
            found.push(format!("{} reads {} without both dimensions", read.by, read.name));
        }
    }
    if reads.is_empty() {
        found.push("no alarm and no widget reads a metric".to_owned());
    }
    found
}

/// Every alarm treats missing data as no alarm, notifies the topic, and has one query that decides.
pub fn weak_alarms(template: &Value) -> Findings {
    let mut found = Findings::new();
    for (name, alarm) in resources(template, "AWS::CloudWatch::Alarm") {
        if text(alarm, &["Properties", "TreatMissingData"]) != "notBreaching" {
            found.push(format!("{name} goes off or hangs while nothing runs"));
        }
        if at(alarm, &["Properties", "AlarmActions"]).is_null() {
            found.push(format!("{name} notifies nobody"));
        }
        let deciding = items(alarm, &["Properties", "Metrics"])
            .iter()
            .filter(|query| at(query, &["ReturnData"]) == true);
        if deciding.count() != 1 {
            found.push(format!("{name} is decided by none or by several"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{assert_caught, assert_clean, put, remove};
    use super::*;

    #[test]
    fn alarms_and_widgets_read_metrics_that_the_code_emits() {
        assert_clean(unknown_metrics);
        let metric = "/Resources/RejectsAlarm/Properties/Metrics/0/MetricStat/Metric";
        assert_caught(
            unknown_metrics,
            &format!("{metric}/MetricName"),
            put(json!("Rejects")),
            "reads Rejects, which nothing emits",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions/1/Value"),
            put(json!("copying")),
            "with phase",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions/1/Name"),
            put(json!("table")),
            "with table",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions"),
            put(json!([])),
            "without both dimensions",
        );
        let writers = "/Resources/V1OnlyPeersAlarm/Properties/Metrics/0/MetricStat/Metric/Dimensions/1/Value";
        assert_caught(unknown_metrics, writers, put(json!("verify")), "reads WriterMode with phase");
        let renamed = |value: &mut Value| {
            *value = json!(value.as_str().unwrap().replace("\\\"ItemsCopied\\\"", "\\\"Copies\\\""));
        };
        let body = "/Resources/Dashboard/Properties/DashboardBody/Fn::Sub";
        assert_caught(unknown_metrics, body, renamed, "reads Copies, which nothing emits");
        let torn =
            |value: &mut Value| *value = json!(value.as_str().unwrap().trim_end().trim_end_matches('}'));
        assert_caught(unknown_metrics, body, torn, "Dashboard: ");
    }

    #[test]
    fn an_alarm_can_go_off_and_does_not_while_nothing_runs() {
        assert_clean(weak_alarms);
        let alarm = "/Resources/StalledAlarm/Properties";
        assert_caught(
            weak_alarms,
            &format!("{alarm}/TreatMissingData"),
            put(json!("breaching")),
            "while nothing runs",
        );
        assert_caught(weak_alarms, alarm, remove("AlarmActions"), "notifies nobody");
        assert_caught(weak_alarms, &format!("{alarm}/Metrics/0/ReturnData"), put(json!(true)), "by several");
    }
}
