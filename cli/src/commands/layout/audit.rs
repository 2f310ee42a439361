//! `metashift layout audit`.

use std::collections::BTreeMap;

use clap::Args;
use metashift::Result;
use metashift::layout::Tables;
use metashift::layout::cutover::check_id;
use metashift::layout::generation::{PlanWish, final_plan, stamp_audit};
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::Plan;
use metashift::layout::records::segment::MismatchKind;
use metashift::layout::run::Run;
use metashift::layout::status;
use metashift::layout::verify;
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

/// The audits of an id are `audit-<id>`, `audit-<id>-2` and so on. The one to walk next: unfinished, or fresh.
async fn next_id(tables: &Tables, plan: &Plan, named: Option<String>) -> Result<String> {
    let id = named.unwrap_or_else(|| tables.environment().now().strftime("%F").to_string());
    check_id("audit id", &id)?;
    let mut number = 1;
    loop {
        let this = if number == 1 { format!("audit-{id}") } else { format!("audit-{id}-{number}") };
        if !status::rehearsal(tables, plan, &this).await?.is_complete() {
            return Ok(this);
        }
        number += 1;
    }
}

pub(crate) async fn run(args: AuditArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let plan = final_plan(&tables).await?;
    let id = next_id(&tables, &plan, args.audit_id).await?;
    let layout = tables.layout().clone();
    let run = Run {
        tables,
        wish: PlanWish::default(),
        accepted: Accepted::default(),
        page_size: args.page_size,
        pages_per_step: 20,
        observer: output.observer(None),
    };
    let (summary, total) = run.compare_as(&id).await?;
    // The kinds that are there, each once.
    let mend: BTreeMap<_, _> =
        summary.mismatches.iter().map(|one| (super::kind_name(one.kind), mend(one.kind))).collect();
    output.emit(&json!({
        "audit": id, "v1Items": summary.v1_items, "v2Items": summary.v2_items,
        "differing": summary.mismatched, "listed": summary.mismatches, "mend": mend, "consumed": total.consumed,
    }));
    if summary.mismatched == 0 {
        output.say(format!("{id}: {} items in both tables, no difference", summary.v1_items));
        if plan.audited.is_none() && stamp_audit(&run.tables, &id).await? {
            output.say(
                "it is recorded as the clean audit that v2-only nodes and metashift layout retire rest on",
            );
        }
        return Ok(());
    }
    let rows = summary.mismatches.iter().map(|one| {
        let bucket = match one.kind {
            MismatchKind::WrongBucket => format!(", belongs in {:?}", layout.bucket(&one.key)),
            _ => String::new(),
        };
        vec![crate::output::key(&one.key), format!("{}{bucket}", super::kind_name(one.kind))]
    });
    output.table(&["key", "difference"], &rows.collect::<Vec<_>>());
    for (kind, text) in &mend {
        output.say(format!("{kind}: {text}"));
    }
    Err(verify::failed(&summary).next(
        "find the v1-only writer (metric WriterMode); v2 is the authority: mend by hand, by the kind of the difference, then \
         metashift layout audit again",
    ))
}

/// What a person does about a difference after the marker, where v2 decides and dual nodes write v1 without looking at it.
fn mend(kind: MismatchKind) -> &'static str {
    match kind {
        MismatchKind::Missing => {
            "only v1 has it, so a v1-only node created it or a v2-only node deleted it. If it is wanted, create it through a dual \
             node; else delete it from v1 by hand"
        }
        MismatchKind::WrongValue => {
            "a v1-only or a v2-only node changed it. If v1's value is wanted, write it through a dual node; else the next \
             write of the key through a dual node makes them equal"
        }
        MismatchKind::Extra => {
            "only v2 has it, so a v2-only node created it or a v1-only node deleted it. Nothing is lost: the next write of the \
             key through a dual node makes them equal"
        }
        MismatchKind::WrongBucket => {
            "no read finds it in that bucket. Put it in v2 under its own bucket, unless it is there, and delete the other"
        }
        MismatchKind::KeyTooLong | MismatchKind::ItemTooLarge | MismatchKind::UnsupportedItem => {
            "v2 cannot hold it. Rewrite or delete it, in the table that has it"
        }
    }
}
