//! The step `catalog-migrate-step`, as the Lambda and the command run it: JSON in, JSON out.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::driver::{FINAL_LIFETIME, MOST_FINAL_DAYS, Observer, Report, Request, Stop, run};
use super::format::NEWEST;
use super::inspect::{Inspection, dry_run, inspect};
use super::location::Location;
use super::units::Registry;
use crate::environment::{Environment, elapsed};
use crate::step::{Budget, Progress, Status, StepOutput};
use crate::{Error, ErrorKind, Result, telemetry};

/// The one version of the input.
pub const VERSION: u64 = 1;

/// What one invocation does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// Runs batches of whatever the durable state asks for.
    #[default]
    Step,
    /// Says what a run would do; writes nothing.
    Inspect,
    /// Like inspect, and checks every source record.
    DryRun,
}

/// Input of the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Version of this document: 1.
    pub version: u64,
    /// The store, as `s3://…` or `file://…`.
    pub store: String,
    /// What to do.
    #[serde(default)]
    pub mode: Mode,
    /// The format to reach: 9, 11 or 12 (the default).
    #[serde(default = "newest")]
    pub to_format: u64,
    /// Whether to take a checkpoint before the first change.
    #[serde(default)]
    pub checkpoint: bool,
    /// Most batches of this invocation; no bound if absent.
    #[serde(default)]
    pub max_steps: Option<u32>,
    /// How many days the final checkpoint stays; 7 if absent.
    #[serde(default)]
    pub final_checkpoint_days: Option<u32>,
    /// `batch_seq` at which the commit log of a catalog of format 10 began, where the catalog does not say it.
    #[serde(default)]
    pub commit_log_origin: Option<u64>,
    /// Whether the unit to format 9 may begin although readers have the store open.
    #[serde(default)]
    pub accept_open_readers: bool,
}

fn newest() -> u64 {
    NEWEST
}

impl Input {
    /// Reads an input; an unknown field, a missing one and another version are `InvalidInput`.
    pub fn parse(value: Value) -> Result<Self> {
        let input: Self = serde_json::from_value(value).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("input of catalog-migrate-step: {error}"))
        })?;
        if input.version != VERSION {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("input of catalog-migrate-step: version {} is not {VERSION}", input.version),
            ));
        }
        if input.max_steps == Some(0) {
            return Err(Error::new(ErrorKind::InvalidInput, "input of catalog-migrate-step: maxSteps is 0"));
        }
        if input.final_checkpoint_days.is_some_and(|days| !(1..=MOST_FINAL_DAYS).contains(&days)) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "input of catalog-migrate-step: finalCheckpointDays is not between 1 and {MOST_FINAL_DAYS}"
                ),
            ));
        }
        Registry::shipped().check_target(input.to_format)?;
        Ok(input)
    }

    fn request(&self, stop: Stop) -> Request {
        let days = self.final_checkpoint_days.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
        Request {
            to_format: self.to_format,
            checkpoint: self.checkpoint,
            final_lifetime: days.unwrap_or(FINAL_LIFETIME),
            commit_log_origin: self.commit_log_origin,
            accept_open_readers: self.accept_open_readers,
            stop,
        }
    }
}

/// Runs one invocation under a budget, which `maxSteps` of the input narrows.
///
/// Errors as those of [`Location::parse`], and of [`inspect`] or [`run`] by the mode.
pub async fn invoke(
    input: &Input,
    environment: &Environment,
    budget: Budget,
    stop: Stop,
    observe: &Observer<'_>,
) -> Result<StepOutput> {
    let location = Location::parse(&input.store).await?;
    let registry = Registry::shipped();
    match input.mode {
        Mode::Inspect => {
            let found = inspect(&location, &registry, input.to_format, false, environment, &budget).await?;
            inspected(&found)
        }
        Mode::DryRun => {
            let accepted = input.accept_open_readers;
            let found =
                dry_run(&location, &registry, input.to_format, accepted, environment, &budget).await?;
            inspected(&found)
        }
        Mode::Step => {
            let budget = budget.with_pages(input.max_steps);
            let request = input.request(stop);
            let report = run(&location, &registry, &request, environment, budget, observe).await?;
            Ok(migrated(&report))
        }
    }
}

/// One invocation as a Lambda runs it: raw JSON in, JSON or a named error out, and the metrics of either.
///
/// `deadline` is when the invocation is ended from outside, in milliseconds since 1970.
///
/// Errors as those of [`Input::parse`] and [`invoke`].
pub async fn lambda(event: Value, environment: &Environment, deadline: u64) -> (Result<Value>, String) {
    let begun = environment.now();
    let at =
        i64::try_from(deadline).ok().and_then(|at| Timestamp::from_millisecond(at).ok()).unwrap_or(begun);
    let budget = Budget::until(environment.clone(), at);
    let mut phase = "step";
    let answer = async {
        let input = Input::parse(event)?;
        if input.mode != Mode::Step {
            phase = "inspect";
        }
        invoke(&input, environment, budget, Stop::default(), &|_| {}).await
    }
    .await;
    let metrics = metrics(environment, phase, elapsed(begun, environment.now()), answer.as_ref());
    let answer = answer.and_then(|output| {
        serde_json::to_value(output)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("an output is no JSON: {error}")))
    });
    (answer, metrics)
}

/// The metrics of one invocation, on success and on error.
fn metrics(
    environment: &Environment,
    phase: &str,
    took: Duration,
    answer: Result<&StepOutput, &Error>,
) -> String {
    let mut values = vec![(telemetry::STEP_SECONDS, took.as_secs_f64())];
    let mut properties = serde_json::Map::new();
    match answer {
        Ok(output) => {
            let detail = |name: &str| output.details.get(name).and_then(Value::as_f64);
            for (metric, name) in [
                (telemetry::CATALOG_RECORDS_MOVED, "recordsMoved"),
                (telemetry::CATALOG_BATCHES, "batches"),
                (telemetry::CATALOG_FORMAT, "format"),
            ] {
                values.extend(detail(name).map(|value| (metric, value)));
            }
        }
        Err(error) => {
            values.push((telemetry::STEP_ERRORS, 1.0));
            properties.insert("error".to_owned(), error.kind().name().into());
        }
    }
    telemetry::record(environment, &[("migration", "catalog"), ("phase", phase)], &values, properties)
}

/// The answer to an inspection: done when there is nothing to do. Never fails but with `Internal`.
pub fn inspected(found: &Inspection) -> Result<StepOutput> {
    let status = if found.plan.is_empty() { Status::Done } else { Status::Continue };
    let details = serde_json::to_value(found)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("an inspection is no JSON: {error}")))?;
    let mut output = StepOutput::new(status);
    output.progress.estimated_total = found.plan.iter().map(|planned| planned.records).sum();
    if let Value::Object(details) = details {
        output.details = details;
    }
    Ok(output)
}

/// The answer to a step.
pub fn migrated(report: &Report) -> StepOutput {
    let status = if report.done { Status::Done } else { Status::Continue };
    let mut output = StepOutput::new(status)
        .with("fromFormat", report.from_format)
        .with("toFormat", report.to_format)
        .with("format", report.format)
        .with("units", report.units.clone())
        .with("recordsMoved", report.records_moved)
        .with("bytes", report.bytes)
        .with("batches", report.batches)
        .with("resumed", report.resumed)
        .with("preCheckpoint", report.pre_checkpoint.clone())
        .with("finalCheckpoint", report.final_checkpoint.clone());
    output.progress = Progress {
        scanned: report.records_moved,
        copied: report.records_moved,
        estimated_total: report.estimated_total,
        ..Progress::default()
    };
    output
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_input_has_defaults_and_refuses_what_it_does_not_know() {
        let input = Input::parse(json!({"version": 1, "store": "s3://b/p"})).unwrap();
        assert_eq!(
            (input.to_format, input.mode, input.checkpoint, input.max_steps),
            (12, Mode::Step, false, None)
        );
        for bad in [
            json!({"version": 1, "store": "s3://b/p", "surprise": 1}),
            json!({"version": 2, "store": "s3://b/p"}),
            json!({"version": 1}),
            json!({"version": 1, "store": "s3://b/p", "toFormat": 10}),
            json!({"version": 1, "store": "s3://b/p", "maxSteps": 0}),
            json!({"version": 1, "store": 7}),
            json!("s3://b/p"),
        ] {
            assert_eq!(Input::parse(bad.clone()).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }

    #[test]
    fn every_number_of_an_input_has_its_bounds() {
        let most_32 = u64::from(u32::MAX);
        // What is refused below and above, and what is the least and the most.
        let numbers: [(&str, &[u64], &[u64]); 5] = [
            ("version", &[0, 2, u64::MAX], &[1]),
            ("toFormat", &[0, 1, 8, 10, 13, u64::MAX], &[9, 11, 12]),
            ("maxSteps", &[0, most_32 + 1, u64::MAX], &[1, 2, most_32]),
            ("finalCheckpointDays", &[0, 10_001, 30_000, most_32, most_32 + 1, u64::MAX], &[1, 7, 10_000]),
            ("commitLogOrigin", &[], &[0, 1, u64::MAX]),
        ];
        for (name, refused, taken) in numbers {
            let with = |number: Value| {
                let mut input = json!({"version": 1, "store": "s3://b/p"});
                input[name] = number;
                Input::parse(input).map_err(|error| error.kind())
            };
            for number in refused {
                assert_eq!(with(json!(number)).unwrap_err(), ErrorKind::InvalidInput, "{name}: {number}");
            }
            for number in taken {
                assert!(with(json!(number)).is_ok(), "{name}: {number}");
            }
            for odd in [json!(-1), json!(1.5), json!(1e300), json!("1")] {
                assert_eq!(with(odd.clone()).unwrap_err(), ErrorKind::InvalidInput, "{name}: {odd}");
            }
        }
    }

    #[tokio::test]
    async fn a_bad_event_is_a_named_error_with_metrics() {
        let environment = Environment::system();
        let (answer, metrics) = lambda(json!({"version": 1}), &environment, u64::MAX).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidInput);
        let metrics: Value = serde_json::from_str(&metrics).unwrap();
        assert_eq!((&metrics["StepErrors"], &metrics["error"]), (&json!(1.0), &json!("InvalidInput")));
        assert_eq!(metrics["_aws"]["CloudWatchMetrics"][0]["Dimensions"], json!([["migration", "phase"]]));
    }

    #[test]
    fn an_output_of_a_step_has_the_documented_form() {
        let report = Report {
            from_format: 8,
            to_format: 12,
            format: 9,
            units: vec!["version-inline-tombstones".into()],
            records_moved: 512,
            bytes: 40_960,
            batches: 4,
            estimated_total: Some(600),
            pre_checkpoint: Some("metashift-pre-8".into()),
            ..Report::default()
        };
        assert_eq!(
            serde_json::to_value(migrated(&report)).unwrap(),
            json!({
                "status": "continue",
                "progress": {"scanned": 512, "copied": 512, "alreadyLive": 0, "rejected": 0, "diverged": 0,
                    "estimatedTotal": 600},
                "consumed": {"readUnits": 0.0, "writeUnits": 0.0},
                "retryAfterSeconds": null,
                "fromFormat": 8, "toFormat": 12, "format": 9, "units": ["version-inline-tombstones"],
                "recordsMoved": 512, "bytes": 40_960, "batches": 4, "resumed": false,
                "preCheckpoint": "metashift-pre-8", "finalCheckpoint": null,
            })
        );
    }
}
