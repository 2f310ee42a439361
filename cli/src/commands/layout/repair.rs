//! `metashift layout repair`.

use clap::Args;
use metashift::layout::generation::PlanWish;
use metashift::layout::preflight::Accepted;
use metashift::layout::run::Run;
use metashift::layout::verify::{self, Summary};
use metashift::layout::walk::DEFAULT_PAGE_SIZE;
use metashift::{Error, ErrorKind, Result};
use serde_json::json;

use crate::connect::TableArgs;
use crate::execution::MachineArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Only lists what would change.
    #[arg(long)]
    dry_run: bool,
    /// Runs the steps in this process; without it the deployed state machine runs them.
    #[arg(long)]
    local: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Items of one Scan.
    #[arg(long, default_value_t = DEFAULT_PAGE_SIZE)]
    page_size: u32,
}

pub(crate) async fn run(args: RepairArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    if !args.local && !args.dry_run {
        let mut input = args.tables.machine_input(tables.layout());
        input.insert("mode".to_owned(), json!("repair"));
        input.insert("pageSize".to_owned(), json!(args.page_size));
        let input = serde_json::Value::Object(input);
        return super::run::execute(&args.machine, &tables, args.tables.region(), &input, output).await;
    }
    let run = Run {
        tables,
        wish: PlanWish::default(),
        accepted: Accepted::default(),
        page_size: args.page_size,
        pages_per_step: 20,
        observer: output.observer(None),
    };
    if args.dry_run {
        let (summary, _) = run.compare().await?;
        show(output, &summary);
        output.say(format!("{} keys would change; nothing was changed", summary.mismatched));
        output.emit(&json!({ "wouldChange": summary.mismatched, "listed": summary.mismatches }));
        return Ok(());
    }
    let (total, summary) = run.repair().await?;
    output.say(format!("{} keys were changed", total.progress.copied));
    output.emit(&json!({
        "changed": total.progress.copied, "differing": summary.mismatched, "listed": summary.mismatches,
    }));
    if summary.mismatched > 0 {
        show(output, &summary);
        let failed = verify::failed(&summary);
        return Err(Error::new(
            ErrorKind::VerificationFailed,
            format!("after the repair: {}", failed.message()),
        )
        .next(if summary.is_for_a_person() {
            "mend or delete what is keyTooLong, itemTooLarge or unsupportedItem by hand, in the table that has it"
        } else {
            "a writer may be v1-only still: check the rollout, then repair again"
        }));
    }
    output.say("the tables are equal; metashift layout run clears what was diverged");
    Ok(())
}

fn show(output: &Output, summary: &Summary) {
    let rows: Vec<_> = summary
        .mismatches
        .iter()
        .map(|one| vec![crate::output::key(&one.key), super::kind_name(one.kind)])
        .collect();
    if !rows.is_empty() {
        output.table(&["key", "difference"], &rows);
    }
}
