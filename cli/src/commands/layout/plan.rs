//! `metashift layout plan`.

use clap::Args;
use metashift::Result;
use metashift::layout::Tables;
use metashift::layout::cloudwatch;
use metashift::layout::generation::{DEFAULT_SEGMENTS, PlanWish};
use metashift::layout::preflight::{Accepted, Estimate, Report, UNSURVEYED, preflight};
use metashift::layout::records::segment::{State as SegmentState, Walk};
use metashift::layout::run::Run;
use metashift::layout::status::walk_segments;
use metashift::layout::tables::Probe;
use metashift::layout::walk::DEFAULT_PAGE_SIZE;
use serde_json::{Value, json};

use super::run::AcceptArgs;
use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    tables: TableArgs,
    #[command(flatten)]
    accept: AcceptArgs,
    /// Reads the whole table once (eventually consistent, half price) for exact counts and every key that cannot move.
    #[arg(long)]
    survey: bool,
    /// Id of the survey, which a stopped one goes on by; today's date (UTC) unless named.
    #[arg(long, requires = "survey")]
    survey_id: Option<String>,
    /// Segments of the survey.
    #[arg(long, default_value_t = DEFAULT_SEGMENTS)]
    segments: u32,
    /// Items of one Scan of the survey.
    #[arg(long, default_value_t = DEFAULT_PAGE_SIZE)]
    page_size: u32,
}

pub(crate) async fn run(args: PlanArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let accepted: Accepted = args.accept.into();
    let rate = match args.tables.aws().await {
        None => Ok(None),
        Some(config) => {
            let client = aws_sdk_cloudwatch::Client::new(&config);
            let now = tables.environment().now();
            cloudwatch::writes_per_second(&client, &args.tables.table, now).await
        }
    };
    let mut report = preflight(&tables, accepted, rate.as_ref().ok().copied().flatten()).await?;
    // A high rate is worth a warning only, and so is one that could not be found out.
    report.warnings.extend(rate.err().map(|error| format!("the write rate of v1: {}", error.message())));
    let mut estimate = report.estimate;
    let mut survey = Value::Null;
    if args.survey {
        let id = args.survey_id.unwrap_or_else(|| tables.environment().now().strftime("%F").to_string());
        metashift::layout::cutover::check_id("survey id", &id)?;
        let id = next_survey(&tables, &id, args.segments).await?;
        let run = Run {
            tables: tables.clone(),
            wish: PlanWish::default(),
            accepted,
            page_size: args.page_size,
            pages_per_step: 20,
            observer: output.observer(Some(report.v1.items)),
        };
        run.survey(&id, args.segments).await?;
        let segments = walk_segments(&tables, args.segments, &Walk::Survey { run: id.clone() }).await?;
        let items = segments.iter().map(|segment| segment.scanned).sum();
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let rejected: u64 = segments.iter().map(|segment| segment.rejected).sum();
        let listed: Vec<_> = segments.iter().flat_map(|segment| &segment.mismatches).collect();
        estimate = Estimate::surveyed(items, bytes);
        report.warnings.retain(|warning| warning != UNSURVEYED);
        survey = json!({ "id": id, "items": items, "bytes": bytes, "rejected": rejected, "listed": listed });
        output.say(format!("survey {id}: {items} items, {rejected} of them cannot move"));
        let rows: Vec<_> =
            listed.iter().map(|one| vec![crate::output::key(&one.key), super::kind_name(one.kind)]).collect();
        if !rows.is_empty() {
            output.table(&["key", "reason"], &rows);
        }
    }
    show(output, &report, &estimate, &survey);
    report.check()
}

/// The survey that is to be walked: `<id>-<segments>`, unfinished; else the next of `<id>-<segments>-2` and so on.
async fn next_survey(tables: &Tables, id: &str, segments: u32) -> Result<String> {
    let mut number = 1;
    loop {
        let this = if number == 1 { format!("{id}-{segments}") } else { format!("{id}-{segments}-{number}") };
        let walked = walk_segments(tables, segments, &Walk::Survey { run: this.clone() }).await?;
        let done = walked.iter().filter(|one| one.state == SegmentState::Done).count();
        if done < segments as usize {
            return Ok(this);
        }
        number += 1;
    }
}

fn show(output: &Output, report: &Report, estimate: &Estimate, survey: &Value) {
    let plan = report.plan.as_ref();
    let known = |found: &Probe| {
        let name = match found {
            Ok(Some(true)) => "on",
            Ok(Some(false)) => "off",
            Ok(None) => "not offered",
            Err(_) => "unknown",
        };
        name.to_owned()
    };
    let v2 = report.v2.as_ref();
    let mut rows = vec![
        ("items", estimate.items.to_string()),
        ("bytes", estimate.bytes.to_string()),
        ("write units", format!("{:.0}", estimate.write_units)),
        ("read units", format!("{:.0}", estimate.read_units)),
        ("dollars", format!("{:.2} (on-demand, us-east-1)", estimate.dollars)),
        ("backfill", format!("{:.1} min at a new table's initial throughput", estimate.backfill_minutes)),
        (
            "writers paused",
            format!("{:.0} s for the verification at that throughput", estimate.verification_seconds),
        ),
        ("companion", v2.map_or("missing".to_owned(), |_| "there".to_owned())),
        (
            "point-in-time recovery",
            format!(
                "v1 {}, v2 {}",
                known(&report.v1.point_in_time_recovery),
                v2.map_or_else(|| "missing".to_owned(), |v2| known(&v2.point_in_time_recovery))
            ),
        ),
        (
            "plan",
            plan.map_or("none yet".to_owned(), |plan| {
                format!("{:?}, generation {}, {} segments", plan.state, plan.generation, plan.segments)
            }),
        ),
    ];
    for warning in &report.warnings {
        rows.push(("worth knowing", warning.clone()));
    }
    for blocker in &report.blockers {
        rows.push(("in the way", blocker.to_string()));
    }
    let blockers: Vec<_> = report
        .blockers
        .iter()
        .map(|one| json!({ "name": one.kind().name(), "message": one.message(), "next": one.next_step() }))
        .collect();
    output.rows(
        &rows,
        &json!({
            "estimate": estimate, "survey": survey, "plan": plan, "warnings": report.warnings,
            "blockers": blockers, "companion": v2.is_some(),
        }),
    );
}
