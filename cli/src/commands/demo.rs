//! `metashift demo`: the whole story on this machine.

use std::time::Duration;

use clap::Args;
use metashift::environment::{Environment, elapsed};
use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::generation::PlanWish;
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::OnFailure;
use metashift::layout::run::Run;
use metashift::layout::{Authority, Layout, MetaStore, Mode, Tables};
use metashift::{Error, ErrorKind, Result};
use metashift_sandbox::{Server, compare, seed};
use serde_json::json;

use super::catalog;
use super::sandbox::start_workload;
use crate::output::Output;

/// Name of the demo's table.
const TABLE: &str = "lake";

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Items in the v1 table.
    #[arg(long, default_value_t = 20_000)]
    items: u32,
    /// Live dual writers.
    #[arg(long, default_value_t = 4)]
    writers: u32,
}

pub(crate) async fn run(args: DemoArgs, output: &Output) -> Result<()> {
    output.keeps("the demo and everything in it are gone");
    layout(&args, output).await?;
    output.say("5. a catalog of format 8, migrated to 12 and killed on the way");
    catalog::demo(&Environment::system(), output).await
}

async fn layout(args: &DemoArgs, output: &Output) -> Result<()> {
    output.say(format!("1. a v1 table of {} items on an embedded server, in memory", args.items));
    let server = Server::start(0).await?;
    let client = server.client();
    seed::create_tables(&client, TABLE, true).await?;
    seed::fill(&client, TABLE, args.items).await?;
    let tables = Tables::new(client.clone(), TABLE, None, Layout::default(), Environment::system());
    let started = tables.environment().now();

    output.say(format!(
        "2. {} dual writers that create, update, delete and guard, and a reader that checks every acknowledged value",
        args.writers
    ));
    let workload = start_workload(&tables, args.writers, args.items, Duration::from_millis(10)).await?;
    let before = refresh_cost(&tables, Authority::V1).await?;

    output.say("3. backfill, rehearsal, and a cutover while they write");
    let run = Run {
        tables: tables.clone(),
        wish: PlanWish { segments: None, new_generation: false },
        accepted: Accepted::default(),
        page_size: 500,
        pages_per_step: 1,
        observer: output.observer(Some(u64::from(args.items))),
    };
    let backfill = run.backfill().await?;
    let start = Start {
        epoch: tables.environment().id(),
        deadline: Duration::from_secs(300),
        on_failure: OnFailure::Release,
        writes_paused: false,
        under_load: true,
        owner: "local:demo".to_owned(),
        adopt_foreign_barrier: false,
        seen: None,
    };
    let finished = run.finalize(&start, &Evidence::Acknowledged(true)).await?;
    let after = refresh_cost(&tables, Authority::V2).await?;

    output.say("4. the writers have moved over by themselves; stop them and compare everything");
    // Writers meet the marker at their next refused mutation: give each the time to make one.
    let moved = workload.counts().applied + u64::from(args.writers) * 5;
    while workload.counts().applied < moved {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = MetaStore::open(tables.metered(), Mode::Dual).await?;
    let counts = workload.finish(&last).await?;
    let equal = compare::compare(&client, TABLE).await?;
    if !counts.violations.is_empty() || !equal.differences.is_empty() {
        let all = counts.violations.iter().chain(&equal.differences);
        let shown: Vec<_> = all.take(5).cloned().collect();
        return Err(Error::new(
            ErrorKind::VerificationFailed,
            format!("the demo found: {}", shown.join("; ")),
        )
        .next("this must never happen: report it"));
    }
    let seconds = elapsed(started, tables.environment().now()).as_secs_f64();
    let units = backfill.consumed.write_units / backfill.progress.copied.max(1) as f64;
    output.rows(
        &[
            ("items copied", format!("{} at {units:.2} write units each", backfill.progress.copied)),
            ("items verified equal", finished.verified.to_string()),
            (
                "writers held off for",
                format!("{:.1} s", finished.barrier_held.unwrap_or_default().as_secs_f64()),
            ),
            (
                "writes acknowledged",
                format!("{}; {} refused by the barrier, and retried", counts.applied, counts.barrier_held),
            ),
            ("reads checked", format!("{}, none wrong", counts.checked)),
            ("v1 = v2", format!("{} items, compared apart from the product", equal.items)),
            (
                "a tbl/ refresh before",
                format!("{:.1} read units, {} requests, {} keys", before.units, before.requests, before.keys),
            ),
            (
                "a tbl/ refresh after",
                format!("{:.1} read units, {} requests, {} keys", after.units, after.requests, after.keys),
            ),
            ("time", format!("{seconds:.1} s")),
        ],
        &json!({
            "demo": "layout", "copied": backfill.progress.copied, "verified": finished.verified,
            "writeUnitsPerItem": units, "applied": counts.applied, "barrierHeld": counts.barrier_held,
            "checked": counts.checked, "compared": equal.items, "seconds": seconds,
            "refreshBefore": { "readUnits": before.units, "requests": before.requests, "keys": before.keys },
            "refreshAfter": { "readUnits": after.units, "requests": after.requests, "keys": after.keys },
        }),
    );
    Ok(())
}

struct Refresh {
    units: f64,
    requests: u64,
    keys: usize,
}

/// What one catalog refresh, a read of everything under `tbl/`, is charged.
async fn refresh_cost(tables: &Tables, authority: Authority) -> Result<Refresh> {
    let store = MetaStore::open(tables.metered(), Mode::Dual).await?;
    if store.authority() != authority {
        return Err(Error::new(ErrorKind::Internal, format!("the authority is not {authority:?}")));
    }
    let opened = store.usage();
    let keys = store.list("tbl/").await?.len();
    let usage = store.usage();
    Ok(Refresh {
        units: usage.consumed.read_units - opened.consumed.read_units,
        requests: usage.all_requests() - opened.all_requests(),
        keys,
    })
}
