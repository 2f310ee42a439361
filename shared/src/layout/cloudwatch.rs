//! The only place that asks CloudWatch, two questions: what `WriterMode` was, and how often v1 is written.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::config::timeout::TimeoutConfig;
use aws_sdk_cloudwatch::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Dimension, Metric, MetricDataQuery, MetricDataResult, MetricStat};
use jiff::Timestamp;

use super::cutover::Minute;
use super::input::MetricInput;
use crate::telemetry::{NAMESPACE, WRITER_MODE};
use crate::{Error, ErrorKind, Result};

/// How far back the write rate is read.
const RATE_WINDOW: Duration = Duration::from_secs(900);

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest value of `WriterMode` and the number of reports, by minute.
pub async fn writer_modes(client: &Client, metric: &MetricInput, now: Timestamp) -> Result<Vec<Minute>> {
    let dimension = |name: &str, value: &str| Dimension::builder().name(name).value(value).build();
    let named = Metric::builder()
        .namespace(metric.namespace.as_deref().unwrap_or(NAMESPACE))
        .metric_name(WRITER_MODE.name)
        .dimensions(dimension("migration", "layout"))
        .dimensions(dimension("phase", "serve"))
        .build();
    let window = Duration::from_secs(u64::from(metric.window_seconds));
    let queries = vec![query("maximum", "Maximum", &named), query("reports", "SampleCount", &named)];
    let mut found: BTreeMap<i64, (Option<f64>, f64)> = BTreeMap::new();
    for result in ask(client, queries, window, now).await? {
        for (at, value) in result.timestamps().iter().zip(result.values()) {
            let minute = found.entry(at.secs()).or_default();
            match result.id() {
                Some("maximum") => minute.0 = Some(*value),
                _ => minute.1 = *value,
            }
        }
    }
    let minutes = found.into_iter().filter_map(|(at, (maximum, reports))| {
        Some(Minute { at: Timestamp::from_second(at).ok()?, maximum: maximum?, reports })
    });
    Ok(minutes.collect())
}

/// Write request units a second that a table took in the last quarter of an hour; `None` where CloudWatch has nothing.
pub async fn writes_per_second(client: &Client, table: &str, now: Timestamp) -> Result<Option<f64>> {
    let named = Metric::builder()
        .namespace("AWS/DynamoDB")
        .metric_name("ConsumedWriteCapacityUnits")
        .dimensions(Dimension::builder().name("TableName").value(table).build())
        .build();
    let results = ask(client, vec![query("units", "Sum", &named)], RATE_WINDOW, now).await?;
    let values: Vec<f64> = results.iter().flat_map(|result| result.values().to_vec()).collect();
    Ok((!values.is_empty()).then(|| values.iter().sum::<f64>() / RATE_WINDOW.as_secs_f64()))
}

async fn ask(
    client: &Client,
    queries: Vec<MetricDataQuery>,
    window: Duration,
    now: Timestamp,
) -> Result<Vec<MetricDataResult>> {
    let timeout = TimeoutConfig::builder().operation_timeout(PATIENCE).build();
    let answer = client
        .get_metric_data()
        .start_time(DateTime::from_secs((now - window).as_second()))
        .end_time(DateTime::from_secs(now.as_second()))
        .set_metric_data_queries(Some(queries))
        .customize()
        .config_override(aws_sdk_cloudwatch::config::Builder::default().timeout_config(timeout))
        .send()
        .await
        .map_err(|error| {
            let denied = error.code().is_some_and(|code| code.contains("AccessDenied"));
            let kind = if denied { ErrorKind::AccessDenied } else { ErrorKind::Unavailable };
            Error::new(kind, format!("CloudWatch: {}", DisplayErrorContext(&error)))
                .next("allow cloudwatch:GetMetricData, or acknowledge the rollout in the input")
        })?;
    Ok(answer.metric_data_results.unwrap_or_default())
}

fn query(id: &str, stat: &str, metric: &Metric) -> MetricDataQuery {
    let stat = MetricStat::builder().metric(metric.clone()).period(60).stat(stat).build();
    MetricDataQuery::builder().id(id).metric_stat(stat).build()
}
