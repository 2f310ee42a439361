//! `metashift sandbox`.

use std::time::Duration;

use clap::Args;
use metashift::Result;
use metashift::environment::Environment;
use metashift::layout::{Layout, MetaStore, Mode, Tables};
use metashift_sandbox::{Server, Workload, seed};
use serde_json::json;

use crate::output::Output;

/// Name of the sandbox's table.
const TABLE: &str = "lake";

#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// Items in the v1 table.
    #[arg(long, default_value_t = 20_000)]
    items: u32,
    /// Live dual writers.
    #[arg(long, default_value_t = 2)]
    writers: u32,
    /// Port to listen on; a free one unless named.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Leaves the companion table out, to see what that looks like.
    #[arg(long)]
    no_companion: bool,
}

pub(crate) async fn run(args: SandboxArgs, output: &Output) -> Result<()> {
    output.keeps("the sandbox and everything in it are gone");
    let server = Server::start(args.port).await?;
    let client = server.client();
    seed::create_tables(&client, TABLE, !args.no_companion).await?;
    seed::fill(&client, TABLE, args.items).await?;
    let tables = Tables::new(client, TABLE, None, Layout::default(), Environment::system());
    let workload = if args.writers > 0 && !args.no_companion {
        Some(start_workload(&tables, args.writers, args.items, Duration::from_millis(20)).await?)
    } else {
        None
    };
    let endpoint = server.endpoint();
    output
        .emit(&json!({ "endpoint": endpoint, "table": TABLE, "items": args.items, "writers": args.writers }));
    output.say(format!("table {TABLE}: {} items, {} live writers, on {endpoint}", args.items, args.writers));
    output.say("in another terminal:\n");
    output.say(format!("  export AWS_ENDPOINT_URL_DYNAMODB={endpoint} LAKE_DYNAMODB_TABLE={TABLE}"));
    output.say("  cargo metashift layout plan");
    output.say("  cargo metashift layout run --local");
    output.say("  cargo metashift layout status");
    output.say("  cargo metashift layout run --local --finalize --under-load --rollout-acknowledged\n");
    output.say("Ctrl-C ends it, and everything in it");
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        if let Some(workload) = &workload {
            let counts = workload.counts();
            output.say(format!(
                "writers: {} writes applied, {} refused by the barrier, {} reads checked, {} wrong",
                counts.applied,
                counts.barrier_held,
                counts.checked,
                counts.violations.len()
            ));
            for violation in counts.violations.iter().take(5) {
                output.say(format!("  wrong: {violation}"));
            }
        }
    }
}

/// Dual writers and a checking reader over a seeded table.
pub(crate) async fn start_workload(
    tables: &Tables,
    writers: u32,
    items: u32,
    pause: Duration,
) -> Result<Workload> {
    let mut stores = Vec::new();
    for _ in 0..writers {
        stores.push(MetaStore::open(tables.metered(), Mode::Dual).await?);
    }
    let reader = MetaStore::open(tables.metered(), Mode::Dual).await?;
    let seed = u64::try_from(tables.environment().now().as_millisecond()).unwrap_or_default();
    Ok(Workload::start(stores, reader, items, pause, seed))
}
