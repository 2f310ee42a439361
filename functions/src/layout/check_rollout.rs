//! `check-rollout`: the acknowledgement in the input, or the metric in CloudWatch.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_cloudwatch::Client;
use aws_sdk_cloudwatch::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_cloudwatch::primitives::DateTime;
use aws_sdk_cloudwatch::types::{Dimension, Metric, MetricDataQuery, MetricStat};
use jiff::Timestamp;
use metashift::layout::cutover::Minute;
use metashift::layout::input::{self, MetricInput};
use metashift::layout::steps;
use metashift::step::StepOutput;
use metashift::telemetry::{NAMESPACE, WRITER_MODE};
use metashift::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let input: input::CheckRolloutInput = input::parse(raw)?;
    let minutes = match steps::rollout_question(&input)? {
        None => Vec::new(),
        Some(metric) => minutes(&Client::new(context.config()), metric, context.environment().now()).await?,
    };
    steps::check_rollout(context.environment(), &input, minutes)
}

/// The metric's largest value and number of reports, by minute.
async fn minutes(client: &Client, metric: &MetricInput, now: Timestamp) -> Result<Vec<Minute>> {
    let start = now - Duration::from_secs(u64::from(metric.window_seconds));
    let answer = client
        .get_metric_data()
        .start_time(DateTime::from_secs(start.as_second()))
        .end_time(DateTime::from_secs(now.as_second()))
        .metric_data_queries(query("maximum", "Maximum", metric))
        .metric_data_queries(query("reports", "SampleCount", metric))
        .send()
        .await
        .map_err(|error| {
            let denied = error.code().is_some_and(|code| code.contains("AccessDenied"));
            let kind = if denied { ErrorKind::AccessDenied } else { ErrorKind::Unavailable };
            Error::new(kind, format!("CloudWatch: {}", DisplayErrorContext(&error)))
                .next("allow cloudwatch:GetMetricData, or acknowledge the rollout in the input")
        })?;
    let mut found: BTreeMap<i64, (Option<f64>, f64)> = BTreeMap::new();
    for result in answer.metric_data_results() {
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

fn query(id: &str, stat: &str, metric: &MetricInput) -> MetricDataQuery {
    let dimension = |name: &str, value: &str| Dimension::builder().name(name).value(value).build();
    let named = Metric::builder()
        .namespace(metric.namespace.as_deref().unwrap_or(NAMESPACE))
        .metric_name(WRITER_MODE.name)
        .dimensions(dimension("migration", "layout"))
        .dimensions(dimension("phase", "serve"))
        .build();
    let stat = MetricStat::builder().metric(named).period(60).stat(stat).build();
    MetricDataQuery::builder().id(id).metric_stat(stat).build()
}
