//! `metashift layout status`.

use std::time::Duration;

use clap::Args;
use metashift::Result;
use metashift::environment::elapsed;
use metashift::layout::Tables;
use metashift::layout::records::plan::State;
use metashift::layout::records::segment::State as SegmentState;
use metashift::layout::status::Overview;
use metashift::layout::transaction::Side;
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::{self, Output};

/// More segments than these are shown by their sums alone; `--json` has them all.
const MOST_SHOWN_SEGMENTS: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Shows it again every two seconds, until the migration is final or Ctrl-C.
    #[arg(long)]
    watch: bool,
}

pub(crate) async fn run(args: StatusArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    super::release_expired(&tables, output).await?;
    let mut before: Option<(jiff::Timestamp, u64)> = None;
    let expected = tables.describe(Side::V1).await?.map_or(0, |facts| facts.items);
    loop {
        if args.watch {
            output.page();
        }
        let overview = Overview::load(&tables).await?;
        let scanned = overview.progress().scanned;
        let now = tables.environment().now();
        let rate = before.map(|(at, then)| {
            scanned.saturating_sub(then) as f64 / elapsed(at, now).as_secs_f64().max(0.001)
        });
        show(&tables, &overview, rate, expected, output);
        let is_final = overview.plan.as_ref().is_some_and(|plan| plan.state == State::Final);
        if !args.watch || is_final {
            return Ok(());
        }
        before = Some((now, scanned));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn show(tables: &Tables, overview: &Overview, rate: Option<f64>, expected: u64, output: &Output) {
    let progress = overview.progress();
    let done = overview.segments.iter().filter(|segment| segment.state == SegmentState::Done).count();
    let now = tables.environment().now();
    let mut rows = vec![("at", output::time(now)), ("phase", overview.phase().to_owned())];
    rows.push(("authority", if overview.leftovers.marker { "v2".to_owned() } else { "v1".to_owned() }));
    if overview.plan.is_some() {
        rows.push(("segments done", format!("{done} of {}", overview.segments.len())));
        rows.push((
            "items",
            format!(
                "{} scanned, {} copied, {} found equal, {} rejected, {} diverged",
                progress.scanned,
                progress.copied,
                progress.already_live,
                progress.rejected,
                progress.diverged
            ),
        ));
        let units = overview
            .segments
            .iter()
            .fold((0.0, 0.0), |sum, segment| (sum.0 + segment.read_units, sum.1 + segment.write_units));
        rows.push(("backfill units", format!("{:.0} read, {:.0} written", units.0, units.1)));
    }
    if let Some(rate) = rate.filter(|_| overview.phase() == "backfill" && done < overview.segments.len()) {
        rows.push(("rate", format!("{rate:.0} items a second")));
    }
    let left = rate.filter(|rate| *rate >= 1.0 && overview.phase() == "backfill").map(|rate| {
        let unknown_yet = expected.saturating_sub(progress.scanned);
        unknown_yet as f64 / rate
    });
    if let Some(left) = left {
        rows.push(("remaining", format!("about {left:.0} s at this rate")));
    }
    if overview.segments.len() <= MOST_SHOWN_SEGMENTS {
        for (number, segment) in overview.segments.iter().enumerate() {
            rows.push(("segment", format!("{number}: {:?}, {} scanned", segment.state, segment.scanned)));
        }
    }
    if overview.control.paused {
        rows.push(("paused", "yes; metashift layout resume".to_owned()));
    }
    if let Some(units) = overview.control.write_units {
        rows.push(("write rate", format!("at most {units} units a second")));
    }
    let cutover = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref());
    if let Some(cutover) = cutover {
        rows.push(("cutover", format!("{} by {}", cutover.epoch, cutover.owner)));
        rows.push(("began", output::time(cutover.installed_at)));
        if !overview.leftovers.marker {
            let held = elapsed(cutover.installed_at, now).as_secs();
            rows.push(("barrier", format!("held for {held} s, deadline {}", output::time(cutover.deadline))));
        }
    } else if overview.leftovers.barrier && !overview.leftovers.marker {
        rows.push(("barrier", "stands, and no plan of ours knows it".to_owned()));
    }
    if let Some(verification) = &overview.verification {
        rows.push((
            "verification",
            format!(
                "{} of {} segments, {} items in v1, {} in v2, {} differences",
                verification.done,
                verification.segments,
                verification.v1_items,
                verification.v2_items,
                verification.mismatched
            ),
        ));
        for mismatch in verification.mismatches.iter().take(25) {
            rows.push((
                "difference",
                format!("{}: {}", output::key(&mismatch.key), super::kind_name(mismatch.kind)),
            ));
        }
    }
    rows.push(("next", next(overview, done, elapsed_past(overview, now)).to_owned()));
    let verification = overview.verification.as_ref().map(|one| {
        json!({ "segments": one.segments, "done": one.done, "v1Items": one.v1_items, "v2Items": one.v2_items,
                "mismatched": one.mismatched, "mismatches": one.mismatches })
    });
    output.rows(
        &rows,
        &json!({
            "phase": overview.phase(), "authority": if overview.leftovers.marker { "v2" } else { "v1" },
            "plan": overview.plan, "progress": progress, "segmentsDone": done, "itemsPerSecond": rate,
            "secondsLeft": left,
            "segments": overview.segments.iter()
                .map(|one| json!({ "state": one.state, "scanned": one.scanned })).collect::<Vec<_>>(),
            "control": overview.control, "barrier": overview.leftovers.barrier, "verification": verification,
        }),
    );
}

/// Whether the deadline of a cutover that holds the barrier has passed.
fn elapsed_past(overview: &Overview, now: jiff::Timestamp) -> bool {
    let cutover = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref());
    cutover.is_some_and(|cutover| cutover.deadline < now)
}

/// What a person does from here.
fn next(overview: &Overview, done: usize, past_deadline: bool) -> &'static str {
    let progress = overview.progress();
    match overview.plan.as_ref().map(|plan| plan.state) {
        _ if overview.leftovers.marker => {
            "restart pods so that they read v2, then resume writes; metashift layout audit compares at any time"
        }
        None => "metashift layout plan",
        Some(_) if overview.control.paused => "metashift layout resume",
        Some(State::Open) if progress.rejected + progress.diverged > 0 => {
            "metashift layout rejects; mend or delete them, then metashift layout run"
        }
        Some(State::Open) if done == overview.segments.len() => {
            "everything is copied: metashift layout run --rehearse compares, --finalize cuts over"
        }
        Some(State::Repairing) => "metashift layout repair goes on, if nobody is at it",
        Some(State::Finalizing) if past_deadline => {
            "metashift layout abort, or metashift layout run --finalize again"
        }
        Some(State::Finalizing) => {
            "wait for the cutover; if whoever ran it is dead, metashift layout abort lets writers go on at once"
        }
        Some(_) => "metashift layout run goes on, if nobody is at it",
    }
}
