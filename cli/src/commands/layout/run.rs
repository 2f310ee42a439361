//! `metashift layout run`.

use std::time::Duration;

use clap::Args;
use metashift::Result;
use metashift::error::Class;
use metashift::layout::cutover::{DEFAULT_DEADLINE, Evidence, FamilyRead, Start};
use metashift::layout::generation::{PlanWish, check_plan, load_plan};
use metashift::layout::preflight::{Accepted, Estimate, Report, preflight};
use metashift::layout::records::plan::OnFailure;
use metashift::layout::run::{Finished, Run, Total};
use metashift::layout::status::Overview;
use metashift::layout::transaction::Side;
use metashift::layout::walk::{DEFAULT_PAGE_SIZE, check_page_size};
use metashift::layout::{Layout, Tables};
use serde_json::{Value, json};

use crate::connect::TableArgs;
use crate::execution::{Machine, MachineArgs};
use crate::output::{Output, stop_asked};

/// What a person accepts.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct AcceptArgs {
    /// Items of v1 expire (TTL), and that is accepted.
    #[arg(long)]
    allow_ttl: bool,
    /// v1 has replicas in other regions, and every writer works in this one.
    #[arg(long)]
    allow_replicas: bool,
    /// Removes the cursor of another migrator that is known to be dead.
    #[arg(long)]
    discard_foreign_cursor: bool,
    /// Takes over the barrier of another migrator that is known to be dead.
    #[arg(long)]
    adopt_foreign_barrier: bool,
}

impl From<AcceptArgs> for Accepted {
    fn from(args: AcceptArgs) -> Self {
        Self {
            ttl: args.allow_ttl,
            replicas: args.allow_replicas,
            discard_foreign_cursor: args.discard_foreign_cursor,
            adopt_foreign_barrier: args.adopt_foreign_barrier,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    tables: TableArgs,
    #[command(flatten)]
    accept: AcceptArgs,
    /// Runs the steps in this process, on whatever DynamoDB the endpoint and the credentials name; without it the
    /// deployed state machine runs them.
    #[arg(long)]
    local: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Items of one Scan: 1 to 10,000.
    #[arg(long, default_value_t = DEFAULT_PAGE_SIZE)]
    page_size: u32,
    /// Segments of the plan: 1 to 256; 16 for a new one, else the plan's own.
    #[arg(long)]
    segments: Option<u32>,
    /// Walks everything again from the first item; the only way to another --layout, --companion or --segments.
    #[arg(long)]
    new_generation: bool,
    /// Creates the companion table if it is missing.
    #[arg(long, requires = "local")]
    create_companion: bool,
    /// Compares the tables online after the backfill.
    #[arg(long)]
    rehearse: bool,
    /// Cuts over: rehearsal, barrier, verification, marker.
    #[arg(long)]
    finalize: bool,
    /// Admission of metadata writes is paused.
    #[arg(long, requires = "finalize")]
    writes_paused: bool,
    /// Writers stay, and are refused while the barrier stands.
    #[arg(long, requires = "finalize", conflicts_with = "writes_paused")]
    under_load: bool,
    /// Every metadata node runs in dual mode; somebody has looked.
    #[arg(long, requires = "finalize")]
    rollout_acknowledged: bool,
    /// CloudWatch must show that at least so many nodes report, and none of them v1-only; for the state machine.
    #[arg(long, value_name = "N", requires = "finalize", conflicts_with_all = ["rollout_acknowledged", "local"])]
    rollout_reporters: Option<u32>,
    /// Leaves the barrier in place when the cutover fails, for a person to look.
    #[arg(long, requires = "finalize")]
    hold: bool,
    /// Seconds that the cutover may take.
    #[arg(long, requires = "finalize", default_value_t = DEFAULT_DEADLINE.as_secs())]
    deadline: u64,
    /// Id of the cutover; a random one unless named, and never one that was used.
    #[arg(long, requires_all = ["finalize", "local"])]
    epoch: Option<String>,
    /// Seconds after the marker at which the state machine compares the tables again: up to 5 numbers with commas, each
    /// 60 to 2,592,000, or none; an hour and a day (3600,86400) unless given.
    #[arg(long, value_name = "SECONDS", requires = "finalize", conflicts_with = "local", value_parser = audit_times)]
    audit_after: Option<AuditTimes>,
}

/// When the state machine audits, in seconds after the marker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AuditTimes(Vec<u32>);

/// Most audits that a finalization asks for.
const MOST_AUDITS: usize = 5;

/// The state machine takes the same numbers.
const AUDIT_SECONDS: std::ops::RangeInclusive<u32> = 60..=2_592_000;

fn audit_times(text: &str) -> std::result::Result<AuditTimes, String> {
    if text == "none" {
        return Ok(AuditTimes(Vec::new()));
    }
    let times: Option<Vec<u32>> = text
        .split(',')
        .map(|one| one.trim().parse().ok().filter(|seconds| AUDIT_SECONDS.contains(seconds)))
        .collect();
    times.filter(|times| times.len() <= MOST_AUDITS).map(AuditTimes).ok_or_else(|| {
        format!(
            "none, or up to {MOST_AUDITS} numbers of seconds with commas, each 60 to 2592000, are possible"
        )
    })
}

/// Families that the end of a cutover names to a person.
const SHOWN_FAMILIES: usize = 10;

/// Window of the rollout metric, in seconds.
const ROLLOUT_WINDOW: u32 = 300;

/// The input of the state machine for what the flags ask.
fn machine_input(args: &RunArgs, layout: &Layout) -> Value {
    let mut input = args.tables.machine_input(layout);
    let mut set = |name: &str, value: Value| {
        input.insert(name.to_owned(), value);
    };
    let mode = if args.finalize {
        "finalize"
    } else if args.rehearse {
        "rehearse"
    } else {
        "backfill"
    };
    set("mode", json!(mode));
    set("pageSize", json!(args.page_size));
    if let Some(segments) = args.segments {
        set("segments", json!(segments));
    }
    for (name, on) in [
        ("newGeneration", args.new_generation),
        ("allowTtl", args.accept.allow_ttl),
        ("allowReplicas", args.accept.allow_replicas),
        ("discardForeignCursor", args.accept.discard_foreign_cursor),
        ("adoptForeignBarrier", args.accept.adopt_foreign_barrier),
    ] {
        if on {
            set(name, json!(true));
        }
    }
    if args.finalize {
        set("writesPaused", json!(args.writes_paused));
        set("cutoverUnderLoad", json!(args.under_load));
        set("deadlineSeconds", json!(args.deadline));
        if let Some(AuditTimes(seconds)) = &args.audit_after {
            set("auditAfterSeconds", json!(seconds));
        }
        set("onFailure", json!(if args.hold { "hold" } else { "release" }));
        set(
            "rollout",
            match args.rollout_reporters {
                Some(reporters) => {
                    json!({ "metric": { "minimumReporters": reporters, "windowSeconds": ROLLOUT_WINDOW } })
                }
                None => json!({ "acknowledged": args.rollout_acknowledged }),
            },
        );
    }
    Value::Object(input)
}

/// Starts the state machine, or attaches to it, and follows it and the durable records to the end.
pub(crate) async fn execute(
    args: &MachineArgs,
    tables: &Tables,
    region: Option<&str>,
    input: &Value,
    output: &Output,
) -> Result<()> {
    let machine = Machine::find(args, "-dynamodb-layout", region).await?;
    let id = tables.environment().id();
    let execution =
        machine.start(args, &id, input, output, async { Overview::load(tables).await.map(drop) }).await?;
    let ended = machine
        .follow(&execution, output, || async {
            let overview = Overview::load(tables).await?;
            let progress = overview.progress();
            let line = format!(
                "{}: {} scanned, {} copied, {} found equal, {} rejected, {} diverged",
                overview.phase(),
                progress.scanned,
                progress.copied,
                progress.already_live,
                progress.rejected,
                progress.diverged
            );
            Ok((line, json!({ "phase": overview.phase(), "progress": progress })))
        })
        .await?;
    output.say(match ended.get("status").and_then(Value::as_str) {
        Some("paused") => "paused; metashift layout resume, then the same command",
        _ => match input.get("mode").and_then(Value::as_str) {
            Some("backfill") => "done; next: the same with --rehearse compares, with --finalize cuts over",
            Some("rehearse") => "done: no difference; next: the same with --finalize cuts over",
            Some("finalize") => {
                "done: v2 is the authority, for good; next: restart pods so that they read v2, then resume writes; the \
                 state machine audits by itself, unless it was told none"
            }
            _ => "done; metashift layout status shows where it is",
        },
    });
    output.emit(&ended);
    Ok(())
}

pub(crate) async fn run(args: RunArgs, output: &Output) -> Result<()> {
    check_page_size(args.page_size)?;
    let tables = args.tables.tables().await?;
    if !args.local {
        let input = machine_input(&args, tables.layout());
        return execute(&args.machine, &tables, args.tables.region(), &input, output).await;
    }
    if args.create_companion && tables.describe(Side::V2).await?.is_none() {
        check_v1(&preflight(&tables, args.accept.into(), None).await?)?;
        if let Some(plan) = load_plan(&tables).await?.filter(|_| !args.new_generation) {
            check_plan(&plan.record, &tables)?;
        }
        tables.create_companion().await?;
        output.say(format!("created table {}", tables.name(Side::V2)));
    }
    let expected = tables.describe(Side::V1).await?.map(|facts| facts.items);
    let run = Run {
        wish: PlanWish { segments: args.segments, new_generation: args.new_generation },
        accepted: args.accept.into(),
        page_size: args.page_size,
        pages_per_step: 1,
        observer: output.observer(expected),
        tables,
    };
    if args.finalize {
        let environment = run.tables.environment();
        let start = Start {
            epoch: args.epoch.unwrap_or_else(|| environment.id()),
            deadline: Duration::from_secs(args.deadline),
            on_failure: if args.hold { OnFailure::Hold } else { OnFailure::Release },
            writes_paused: args.writes_paused,
            under_load: args.under_load,
            owner: format!("local:{}", environment.id()),
            adopt_foreign_barrier: args.accept.adopt_foreign_barrier,
            seen: None,
        };
        output.handle_stop();
        let evidence = Evidence::Acknowledged(args.rollout_acknowledged);
        let finished = tokio::select! {
            finished = run.finalize(&start, &evidence) => finished?,
            () = stop_asked() => {
                // Writers must not stay blocked because somebody pressed a key.
                run.release(&start.epoch).await;
                output.keeps("what was copied is kept; the same command without --new-generation and --epoch goes on");
                output.stopped();
                std::process::exit(i32::from(Class::Stopped.exit_code()));
            }
        };
        show_finished(output, &finished);
        return Ok(());
    }
    let mut total = run.backfill().await?;
    if args.rehearse {
        let (summary, compared) = run.rehearse().await?;
        total.consumed += compared.consumed;
        output.say(format!("rehearsal: {} items compared, no difference", summary.v1_items));
    }
    show_total(output, &total);
    Ok(())
}

/// What is wrong with v1 is said before a companion is made for it.
fn check_v1(report: &Report) -> Result<()> {
    match &report.blockers[..] {
        // The missing companion alone.
        [] | [_] => Ok(()),
        [first, ..] => Err(first.clone()),
    }
}

fn show_total(output: &Output, total: &Total) {
    let (progress, consumed) = (total.progress, total.consumed);
    output.rows(
        &[
            ("scanned", progress.scanned.to_string()),
            ("copied", progress.copied.to_string()),
            ("found equal", progress.already_live.to_string()),
            (
                "units of this run",
                format!("{:.1} read, {:.1} written", consumed.read_units, consumed.write_units),
            ),
            ("dollars of this run", format!("{:.4}", dollars(consumed.read_units, consumed.write_units))),
            (
                "next",
                "metashift layout run --local --finalize --writes-paused --rollout-acknowledged".to_owned(),
            ),
        ],
        &json!({ "status": "done", "progress": progress, "consumed": consumed }),
    );
}

fn dollars(read_units: f64, write_units: f64) -> f64 {
    Estimate::dollars_of(read_units, write_units)
}

pub(crate) fn show_finished(output: &Output, finished: &Finished) {
    let held = finished
        .barrier_held
        .map_or("marker was there already".to_owned(), |held| format!("{:.1} s", held.as_secs_f64()));
    let families: Vec<Value> = finished.families.iter().map(family_json).collect();
    let shown = finished
        .families
        .iter()
        .take(SHOWN_FAMILIES)
        .map(|one| format!("{} {}", one.family.escape_debug(), one.read));
    let more = finished.families.len().saturating_sub(SHOWN_FAMILIES);
    let shown = shown.chain((more > 0).then(|| format!("{more} families more")));
    output.rows(
        &[
            ("authority", "v2, for good".to_owned()),
            ("items verified equal", finished.verified.to_string()),
            ("writers paused for", held),
            ("first prefix reads", shown.collect::<Vec<_>>().join(", ")),
            (
                "next",
                "restart pods so that they read v2, then resume writes; after an hour and a day metashift layout \
                 audit; keep v1 for a retention horizon"
                    .to_owned(),
            ),
        ],
        &json!({
            "status": "done", "published": true, "verified": finished.verified,
            "barrierHeldSeconds": finished.barrier_held.map(|held| held.as_secs_f64()),
            "families": families, "consumed": finished.consumed,
        }),
    );
}

fn family_json(read: &FamilyRead) -> Value {
    json!({ "family": read.family, "verified": read.verified, "read": read.read, "whole": read.whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_audits_are_those_that_the_machine_takes() {
        let times = |text: &str| audit_times(text).map(|times| times.0);
        assert_eq!(times("none"), Ok(vec![]));
        assert_eq!(times("60, 2592000"), Ok(vec![60, 2_592_000]));
        assert_eq!(times("60,60,60,60,60").unwrap().len(), MOST_AUDITS);
        for text in ["", "0", "1", "59", "2592001", "4294967296", "60,", "-60", "1h", "60,60,60,60,60,60"] {
            assert!(times(text).is_err(), "{text}");
        }
    }
}
