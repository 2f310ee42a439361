//! The only place that asks CloudWatch, two questions: what `WriterMode` was, and how often v1 is written.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::config::timeout::TimeoutConfig;
use aws_sdk_cloudwatch::error::ProvideErrorMetadata;
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{
    Dimension, Metric, MetricDataQuery, MetricDataResult, MetricStat, StatusCode,
};
use jiff::Timestamp;

use super::cutover::Minute;
use super::input::MetricInput;
use crate::aws;
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

/// What to do where it does not answer.
const ALLOW: &str = "allow cloudwatch:GetMetricData, or acknowledge the rollout in the input";

async fn ask(
    client: &Client,
    queries: Vec<MetricDataQuery>,
    window: Duration,
    now: Timestamp,
) -> Result<Vec<MetricDataResult>> {
    let timeout = TimeoutConfig::builder().operation_timeout(PATIENCE).build();
    let mut found = Vec::new();
    let mut page = None;
    loop {
        let answer = client
            .get_metric_data()
            .start_time(DateTime::from_secs((now - window).as_second()))
            .end_time(DateTime::from_secs(now.as_second()))
            .set_metric_data_queries(Some(queries.clone()))
            .set_next_token(page)
            .customize()
            .config_override(aws_sdk_cloudwatch::config::Builder::default().timeout_config(timeout.clone()))
            .send()
            .await
            .map_err(|error| {
                let text = aws::reason(&error);
                let denied = error.code().is_some_and(|code| code.contains("AccessDenied"))
                    || text.contains("credential");
                let kind = if denied { ErrorKind::AccessDenied } else { ErrorKind::Unavailable };
                Error::new(kind, format!("CloudWatch: {text}")).next(ALLOW)
            })?;
        page = answer.next_token;
        found.extend(answer.metric_data_results.unwrap_or_default());
        if page.is_none() {
            return complete(found);
        }
    }
}

/// The results, if each is whole: a part of the minutes shows nothing about the others.
fn complete(results: Vec<MetricDataResult>) -> Result<Vec<MetricDataResult>> {
    // A page that is not the last one says that there is more.
    let last: BTreeMap<_, _> = results.iter().map(|result| (result.id(), result.status_code())).collect();
    for (id, status) in last {
        let kind = match status {
            Some(StatusCode::Complete) => continue,
            Some(StatusCode::Forbidden) => ErrorKind::AccessDenied,
            _ => ErrorKind::Unavailable,
        };
        let status = status.map_or("no status", StatusCode::as_str);
        let id = id.unwrap_or_default();
        return Err(Error::new(kind, format!("CloudWatch answered {id:?} with {status}")).next(ALLOW));
    }
    Ok(results)
}

fn query(id: &str, stat: &str, metric: &Metric) -> MetricDataQuery {
    let stat = MetricStat::builder().metric(metric.clone()).period(60).stat(stat).build();
    MetricDataQuery::builder().id(id).metric_stat(stat).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_not_whole_is_no_evidence() {
        let result = |status: Option<StatusCode>| {
            vec![MetricDataResult::builder().id("reports").set_status_code(status).build()]
        };
        assert_eq!(complete(result(Some(StatusCode::Complete))).unwrap().len(), 1);
        let kind = |status| complete(result(status)).unwrap_err().kind();
        assert_eq!(kind(Some(StatusCode::Forbidden)), ErrorKind::AccessDenied);
        assert_eq!(kind(Some(StatusCode::InternalError)), ErrorKind::Unavailable);
        assert_eq!(kind(None), ErrorKind::Unavailable);
        assert_eq!(kind(Some(StatusCode::PartialData)), ErrorKind::Unavailable);
        let pages = [result(Some(StatusCode::PartialData)), result(Some(StatusCode::Complete))].concat();
        assert_eq!(complete(pages).unwrap().len(), 2);
    }
}
