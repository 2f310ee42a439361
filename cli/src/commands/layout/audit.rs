//! `metashift layout audit`.

use clap::Args;
use metashift::Result;
use metashift::layout::Tables;
use metashift::layout::cutover::check_id;
use metashift::layout::generation::{PlanWish, load_plan, no_plan};
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::State;
use metashift::layout::run::Run;
use metashift::layout::status;
use metashift::layout::verify::{self, Summary};
use metashift::layout::walk::DEFAULT_PAGE_SIZE;
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Id of the audit, which a stopped one goes on by; today's date (UTC) unless named.
    #[arg(long)]
    audit_id: Option<String>,
    /// Items of one Scan.
    #[arg(long, default_value_t = DEFAULT_PAGE_SIZE)]
    page_size: u32,
}

/// The audits of an id in order: `audit-<id>`, `audit-<id>-2` and so on. The last one that is done, and the one that is
/// to be walked next: unfinished, or fresh.
pub(super) async fn ids(
    tables: &Tables,
    segments: u32,
    named: Option<String>,
) -> Result<(Option<(String, Summary)>, String)> {
    let id = named.unwrap_or_else(|| tables.environment().now().strftime("%F").to_string());
    check_id("audit id", &id)?;
    let mut done = None;
    for number in 1.. {
        let this = if number == 1 { format!("audit-{id}") } else { format!("audit-{id}-{number}") };
        let summary = status::rehearsal(tables, segments, &this).await?;
        if !summary.is_complete() {
            return Ok((done, this));
        }
        done = Some((this, summary));
    }
    Ok((done, format!("audit-{id}")))
}

pub(crate) async fn run(args: AuditArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let plan = load_plan(&tables).await?.ok_or_else(no_plan)?.record;
    if plan.state != State::Final {
        return Err(super::before_marker(&plan));
    }
    let (_, id) = ids(&tables, plan.segments, args.audit_id).await?;
    let run = Run {
        tables,
        wish: PlanWish::default(),
        accepted: Accepted::default(),
        page_size: args.page_size,
        pages_per_step: 20,
        observer: output.observer(None),
    };
    let (summary, total) = run.compare_as(&id).await?;
    output.emit(&json!({
        "audit": id, "v1Items": summary.v1_items, "v2Items": summary.v2_items,
        "differing": summary.mismatched, "listed": summary.mismatches, "consumed": total.consumed,
    }));
    if summary.mismatched == 0 {
        output.say(format!("{id}: {} items in both tables, no difference", summary.v1_items));
        return Ok(());
    }
    let rows =
        summary.mismatches.iter().map(|one| vec![crate::output::key(&one.key), super::kind_name(one.kind)]);
    output.table(&["key", "difference"], rows.collect());
    output
        .say("missing: v1 has it and v2 has not, so a v1-only node created it, or a v2-only node deleted it");
    output.say("extra: v2 has it and v1 has not, so a v2-only node created it, or a v1-only node deleted it");
    output.say("wrongValue: a v1-only or a v2-only node changed it");
    output.say("with dual nodes only, each of these is a write that a v1-only node lost: v2 is right, v1 is not read");
    Err(verify::failed(&summary).next("find the v1-only writer (metric WriterMode); v2 is the authority"))
}
