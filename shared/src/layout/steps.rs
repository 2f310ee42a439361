//! One function a step: an input in, an output out. Lambdas and tests call these.
//!
//! Inputs, outputs and an example of each are in `docs/steps.md`. Errors are those of the function that a step calls;
//! `PlanMismatch` where there is no plan, `LayoutMismatch` where it was made with another layout, `InvalidInput` where the
//! input does not fit the mode.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::backfill::backfill_page as backfill;
use super::cutover::{self, Evidence, Installed, Minute, Published, Released, Start, Why};
use super::generation::{self, DEFAULT_SEGMENTS, PlanWish, load_plan, no_plan};
use super::input::{
    BackfillPageInput, CheckRolloutInput, Direction, FinishRepairInput, InstallBarrierInput, MetricInput,
    PreflightInput, PublishMarkerInput, Reason, RecordAuditInput, ReleaseBarrierInput, RepairPageInput,
    RunMode, VerifyInput, VerifyMode, VerifyPrefixReadsInput,
};
use super::plan::{Seen, refused};
use super::preflight::{Accepted, Report, preflight as look};
use super::records::plan::{Cutover, Plan, State};
use super::run::is_settled_by_a_run;
use super::tables::Tables;
use super::transaction::Side;
use super::verify::BARRIER_HELD;
use super::walk::{DEFAULT_PAGE_SIZE, STEP, SegmentInput, check_page_size};
use super::{repair, status, verify as comparison};
use crate::environment::{Environment, elapsed};
use crate::step::{Budget, Status, StepOutput};
use crate::telemetry::{self, Metric};
use crate::{Error, ErrorKind, Result};

/// Looks, and makes or adopts the plan as the mode needs.
///
/// `writes_per_second` is v1's write rate, where it is known.
pub async fn preflight(
    tables: &Tables,
    input: PreflightInput,
    writes_per_second: Option<f64>,
) -> Result<StepOutput> {
    let tables = tables.metered();
    check_page_size(input.page_size.unwrap_or(DEFAULT_PAGE_SIZE))?;
    if let Some(segments) = input.segments {
        generation::check_segments(segments)?;
    }
    let accepted = Accepted {
        ttl: input.allow_ttl,
        replicas: input.allow_replicas,
        discard_foreign_cursor: input.discard_foreign_cursor,
        adopt_foreign_barrier: input.adopt_foreign_barrier,
    };
    if input.mode == RunMode::Abort {
        // An abort must work whatever else is wrong.
        let plan = load_plan(&tables).await?.map(|stored| stored.record);
        return Ok(finish(&tables, StepOutput::new(Status::Done).with("plan", plan_json(plan.as_ref()))));
    }
    if input.mode == RunMode::Audit {
        // Only the plan counts after the marker. Looking takes no table over.
        let plan = generation::final_plan(&tables).await?;
        generation::check_plan(&plan, &tables)?;
        return Ok(finish(&tables, StepOutput::new(Status::Done).with("plan", plan_json(Some(&plan)))));
    }
    let report = look(&tables, accepted, writes_per_second).await?;
    let mut output = StepOutput::new(Status::Done);
    output.progress.estimated_total = Some(report.estimate.items);
    let output = output.with("report", report_json(&report));
    if input.mode == RunMode::Plan {
        let segments =
            report.plan.as_ref().map_or(input.segments.unwrap_or(DEFAULT_SEGMENTS), |plan| plan.segments);
        let output = output.with("plan", plan_json(report.plan.as_ref())).with("segments", segments);
        return Ok(finish(&tables, output));
    }
    let settled = |blocker: &&Error| is_settled_by_a_run(blocker, input.new_generation);
    if let Some(blocker) = report.blockers.iter().find(|blocker| !settled(blocker)) {
        return Err(blocker.clone());
    }
    generation::follow_marker(&tables, input.new_generation).await?;
    generation::check_leftovers(&tables, accepted.discard_foreign_cursor, accepted.adopt_foreign_barrier)
        .await?;
    if input.mode == RunMode::Repair {
        let wanted = input.repair_run.unwrap_or_else(|| tables.environment().id());
        cutover::check_id("repairRun", &wanted)?;
        generation::begin_repair(&tables, &wanted).await?;
        let plan = load_plan(&tables).await?.ok_or_else(no_plan)?.record;
        return Ok(finish(&tables, output.with("plan", plan_json(Some(&plan)))));
    }
    let wish = PlanWish { segments: input.segments, new_generation: input.new_generation };
    let plan = generation::open_plan(&tables, wish).await?.record;
    // A cutover of this very run comes after its preflight: one that stands is another's.
    if plan.state != State::Open && !(plan.state == State::Final && input.mode == RunMode::Finalize) {
        return Err(refused(&plan, State::Open));
    }
    Ok(finish(&tables, output.with("plan", plan_json(Some(&plan)))))
}

fn plan_json(plan: Option<&Plan>) -> Value {
    plan.map_or(Value::Null, |plan| {
        let mut json = json!({
            "segments": plan.segments, "generation": plan.generation, "state": plan.state, "cutovers": plan.cutovers,
        });
        if let (Some(run), Some(object)) = (&plan.repair_run, json.as_object_mut()) {
            object.insert("repairRun".to_owned(), json!(run));
        }
        json
    })
}

fn report_json(report: &Report) -> Value {
    let blockers: Vec<_> = report
        .blockers
        .iter()
        .map(|one| json!({ "name": one.kind().name(), "message": one.message(), "next": one.next_step() }))
        .collect();
    json!({
        "estimate": report.estimate,
        "companion": report.v2.is_some(),
        "pointInTimeRecovery": report.v2.as_ref().and_then(|v2| v2.point_in_time_recovery.clone().ok().flatten()),
        "deletionProtection": report.v2.as_ref().map(|v2| v2.deletion_protection),
        "billingMode": if report.v1.on_demand { "PAY_PER_REQUEST" } else { "PROVISIONED" },
        "writesPerSecond": report.writes_per_second,
        "published": report.leftovers.marker,
        "warnings": report.warnings,
        "blockers": blockers,
    })
}

/// The plan's segments, and the input of one of them.
async fn segment_input(tables: &Tables, segment: u32, page_size: Option<u32>) -> Result<SegmentInput> {
    let plan = load_plan(tables).await?.ok_or_else(no_plan)?.record;
    generation::check_plan(&plan, tables)?;
    Ok(SegmentInput { segment, segments: plan.segments, page_size: page_size.unwrap_or(DEFAULT_PAGE_SIZE) })
}

/// Copies pages of one segment.
pub async fn backfill_page(tables: &Tables, input: BackfillPageInput, budget: Budget) -> Result<StepOutput> {
    let segment = segment_input(tables, input.segment, input.page_size).await?;
    backfill(tables, input.generation, segment, budget.with_pages(input.max_pages)).await
}

/// Compares pages of one direction of one segment.
pub async fn verify(tables: &Tables, input: VerifyInput, budget: Budget) -> Result<StepOutput> {
    let segment = segment_input(tables, input.segment, input.page_size).await?;
    let budget = budget.with_pages(input.max_pages);
    let side = side(input.direction);
    match (input.mode, input.run, input.epoch) {
        (VerifyMode::Rehearse, Some(run), None) => {
            cutover::check_id("run", &run)?;
            comparison::rehearse(tables, &run, side, segment, budget).await
        }
        (VerifyMode::Final, None, Some(epoch)) => {
            cutover::check_id("epoch", &epoch)?;
            comparison::verify(tables, &epoch, side, input.exact, segment, budget).await
        }
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "verify: rehearse needs run, final needs epoch, never both",
        )),
    }
}

fn side(direction: Direction) -> Side {
    match direction {
        Direction::V1 => Side::V1,
        Direction::V2 => Side::V2,
    }
}

/// Makes v2 follow v1 for one segment of one table's walk; a dry run compares.
pub async fn repair_page(tables: &Tables, input: RepairPageInput, budget: Budget) -> Result<StepOutput> {
    cutover::check_id("run", &input.run)?;
    let segment = segment_input(tables, input.segment, input.page_size).await?;
    let budget = budget.with_pages(input.max_pages);
    let side = side(input.direction);
    if input.dry_run {
        return comparison::rehearse(tables, &input.run, side, segment, budget).await;
    }
    repair::repair_page(tables, &input.run, side, segment, budget).await
}

/// Closes a repair's records and opens the plan.
pub async fn finish_repair(tables: &Tables, input: FinishRepairInput) -> Result<StepOutput> {
    cutover::check_id("run", &input.run)?;
    let tables = tables.metered();
    generation::finish_repair(&tables, &input.run).await?;
    Ok(finish(&tables, StepOutput::new(Status::Done)))
}

/// What `check-rollout` needs to know: nothing more, or a metric.
pub fn rollout_question(input: &CheckRolloutInput) -> Result<Option<&MetricInput>> {
    let invalid = |message: &str| Err(Error::new(ErrorKind::InvalidInput, format!("rollout: {message}")));
    match (&input.rollout.acknowledged, &input.rollout.metric) {
        (Some(_), None) => Ok(None),
        (None, Some(metric)) if metric.minimum_reporters == 0 => invalid("minimumReporters is 1 or more"),
        (None, Some(metric)) if !(60..=3600).contains(&metric.window_seconds) => {
            invalid("windowSeconds is 60 to 3600")
        }
        (None, Some(metric)) => Ok(Some(metric)),
        _ => invalid("exactly one of acknowledged and metric"),
    }
}

/// Decides on the rollout; `minutes` answer [`rollout_question`].
pub fn check_rollout(
    environment: &Environment,
    input: &CheckRolloutInput,
    minutes: Vec<Minute>,
) -> Result<StepOutput> {
    let evidence = match rollout_question(input)? {
        None => Evidence::Acknowledged(input.rollout.acknowledged == Some(true)),
        Some(metric) => Evidence::Metric {
            minutes,
            minimum: metric.minimum_reporters,
            window: Duration::from_secs(u64::from(metric.window_seconds)),
        },
    };
    cutover::check_rollout(&evidence, environment.now())?;
    Ok(StepOutput::new(Status::Done))
}

/// Takes the barrier for a cutover.
pub async fn install_barrier(tables: &Tables, input: InstallBarrierInput) -> Result<StepOutput> {
    let tables = tables.metered();
    let seen = match (input.generation, input.cutovers) {
        (Some(generation), Some(cutovers)) => Some(Seen { generation, cutovers }),
        (None, None) => None,
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "install-barrier: generation and cutovers are given together, as preflight answered them",
            ));
        }
    };
    let start = Start {
        epoch: input.epoch.clone(),
        deadline: input.deadline_seconds.map_or(cutover::DEFAULT_DEADLINE, Duration::from_secs),
        on_failure: input.on_failure,
        writes_paused: input.writes_paused,
        under_load: input.cutover_under_load,
        owner: input.owner,
        adopt_foreign_barrier: input.adopt_foreign_barrier,
        seen,
    };
    let output = StepOutput::new(Status::Done).with("epoch", input.epoch);
    let output = match cutover::install_barrier(&tables, &start).await? {
        Installed::Published => output.with("published", true).with("deadline", Value::Null),
        Installed::Held(cutover) => held(&tables, output, &cutover).with("published", false),
    };
    Ok(finish(&tables, output))
}

fn held(tables: &Tables, output: StepOutput, cutover: &Cutover) -> StepOutput {
    let seconds = elapsed(cutover.installed_at, tables.now()).as_secs_f64();
    output.with("deadline", cutover.deadline.to_string()).with(BARRIER_HELD, seconds)
}

/// Publishes the marker, or asks for an exact verification.
pub async fn publish_marker(tables: &Tables, input: PublishMarkerInput) -> Result<StepOutput> {
    cutover::check_id("epoch", &input.epoch)?;
    let tables = tables.metered();
    let output = match cutover::publish_marker(&tables, &input.epoch).await? {
        Published::Marker { verified } => {
            StepOutput::new(Status::Done).with("published", true).with("verified", verified)
        }
        Published::VerifyExactly => {
            StepOutput::new(Status::Continue).with("published", false).with("exact", true)
        }
    };
    Ok(finish(&tables, output))
}

/// Takes the barrier of one epoch away.
pub async fn release_barrier(tables: &Tables, input: ReleaseBarrierInput) -> Result<StepOutput> {
    if let Some(epoch) = &input.epoch {
        cutover::check_id("epoch", epoch)?;
    } else if input.reason != Reason::Abort {
        return Err(Error::new(ErrorKind::InvalidInput, "every release but an abort names its epoch"));
    }
    let why = match input.reason {
        Reason::Failure => Why::Failure,
        Reason::Abort => Why::Abort,
        Reason::Watchdog => Why::Deadline,
        Reason::Event => Why::OwnerEnded,
    };
    let tables = tables.metered();
    let done = |outcome: &str| StepOutput::new(Status::Done).with("outcome", outcome);
    let output = match cutover::release_barrier(&tables, input.epoch.as_deref(), why).await? {
        Released::Released(cutover) => held(&tables, done("released"), &cutover),
        Released::Published => done("published"),
        Released::NotHeld => done("notHeld"),
        Released::Held(cutover) => held(&tables, done("held"), &cutover),
        Released::NotYet(left) => {
            let mut output = StepOutput::new(Status::Continue).with("outcome", "held");
            output.retry_after_seconds = Some(u32::try_from(left.as_secs() + 1).unwrap_or(u32::MAX));
            output
        }
    };
    Ok(finish(&tables, output))
}

/// Reads the families behind `after` by their prefixes, as a v2-only node does.
pub async fn verify_prefix_reads(
    tables: &Tables,
    input: VerifyPrefixReadsInput,
    budget: &Budget,
) -> Result<StepOutput> {
    let tables = tables.metered();
    let reads = cutover::verify_prefix_reads(&tables, input.after.as_deref(), budget).await?;
    let status = if reads.after.is_none() { Status::Done } else { Status::Continue };
    let mut output = StepOutput::new(status).with("after", reads.after);
    output.progress.scanned = reads.families.iter().map(|read| read.read).sum();
    let families: Vec<_> = reads
        .families
        .iter()
        .map(|read| {
            let name: String = read.family.chars().take(64).collect();
            json!({ "family": name, "verified": read.verified, "read": read.read, "whole": read.whole })
        })
        .collect();
    Ok(finish(&tables, output.with("families", families)))
}

/// Says what an audit after the marker found, and records the first one that found nothing in the plan.
///
/// A difference is no error here: it is a number, and `clean` is false. An audit that is not done, or began before the
/// marker, says nothing about the tables: `PlanMismatch`.
pub async fn record_audit(tables: &Tables, input: RecordAuditInput) -> Result<StepOutput> {
    cutover::check_id("run", &input.run)?;
    let tables = tables.metered();
    let plan = generation::final_plan(&tables).await?;
    generation::check_plan(&plan, &tables)?;
    let summary = status::rehearsal(&tables, &plan, &input.run).await?;
    if !(summary.is_complete() && summary.after_marker) {
        let what = if summary.is_complete() {
            "began before the marker".to_owned()
        } else {
            format!("is not done: {} of {} segments are", summary.done, summary.segments)
        };
        return Err(Error::new(ErrorKind::PlanMismatch, format!("the audit {} {what}", input.run))
            .next("metashift layout audit"));
    }
    let clean = summary.mismatched == 0;
    let stamped = plan.audited.is_some() || (clean && generation::stamp_audit(&tables, &input.run).await?);
    let output = StepOutput::new(Status::Done)
        .with("clean", clean)
        .with("mismatches", summary.mismatched)
        .with("stamped", stamped);
    Ok(finish(&tables, output))
}

fn finish(tables: &Tables, mut output: StepOutput) -> StepOutput {
    output.consumed = tables.usage().consumed;
    output
}

/// The metrics of one invocation, as one line in the embedded metric format; on error paths too.
///
/// `migration` is the label of the input, `step` the step's name.
pub fn metrics(
    environment: &Environment,
    step: &str,
    migration: Option<&str>,
    ended: &Result<StepOutput>,
    seconds: f64,
) -> String {
    let mut values: Vec<(Metric, f64)> = vec![(telemetry::STEP_SECONDS, seconds)];
    let mut properties = Map::new();
    match ended {
        Err(error) => {
            values.push((telemetry::STEP_ERRORS, 1.0));
            properties.insert("error".to_owned(), json!(error.kind().name()));
        }
        Ok(output) => {
            let number = |name: &str| output.details.get(name).and_then(Value::as_f64);
            // A verdict on the whole, which record-audit gives; the pages of a comparison give none.
            let is_audit = output.details.contains_key("clean");
            let of_step =
                |name: &str| output.details.get(STEP).and_then(|step| step.get(name)).and_then(Value::as_f64);
            values.extend([
                (telemetry::STEP_ERRORS, 0.0),
                (telemetry::READ_UNITS, output.consumed.read_units),
                (telemetry::WRITE_UNITS, output.consumed.write_units),
            ]);
            for (metric, value) in [
                (telemetry::ITEMS_SCANNED, of_step("scanned")),
                (telemetry::ITEMS_COPIED, of_step("copied")),
                (telemetry::ITEMS_ALREADY_LIVE, of_step("alreadyLive")),
                (telemetry::THROTTLED, of_step("throttled")),
                (telemetry::CONFLICTS, of_step("conflicts")),
                (telemetry::PAGES, of_step("pages")),
                (telemetry::BARRIER_HELD_SECONDS, number(BARRIER_HELD)),
                (telemetry::MISMATCHES, number("mismatches").filter(|_| !is_audit)),
                (telemetry::AUDIT_MISMATCHES, number("mismatches").filter(|_| is_audit)),
            ] {
                values.extend(value.map(|value| (metric, value)));
            }
            if output.details.contains_key(STEP) {
                let done = if output.status == Status::Done { 1.0 } else { 0.0 };
                values.extend([
                    (telemetry::ITEMS_REJECTED, output.progress.rejected as f64),
                    (telemetry::ITEMS_DIVERGED, output.progress.diverged as f64),
                    (telemetry::SEGMENTS_DONE, done),
                ]);
            }
            if let Some(Value::Bool(published)) = output.details.get("published") {
                values.push((telemetry::AUTHORITY, if *published { 1.0 } else { 0.0 }));
            }
        }
    }
    let dimensions = [("migration", migration.unwrap_or("layout")), ("phase", step)];
    telemetry::record(environment, &dimensions, &values, properties)
}
