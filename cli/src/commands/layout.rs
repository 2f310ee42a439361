//! `metashift layout`: the DynamoDB prefix layout.

mod abort;
mod audit;
mod control;
mod plan;
mod rejects;
mod repair;
mod retire;
mod rollback_plan;
mod run;
mod status;

use clap::Subcommand;
use metashift::Result;
use metashift::layout::records::segment::MismatchKind;

use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum LayoutCommand {
    /// What would happen, what it would cost, and what stands in the way. Changes no data.
    Plan(plan::PlanArgs),
    /// Copies everything to the new layout, and with --finalize cuts over.
    Run(Box<run::RunArgs>),
    /// Where the migration is.
    Status(status::StatusArgs),
    /// Keys that cannot move, and why.
    Rejects(rejects::RejectsArgs),
    /// Makes the new table follow the old one, key by key; for after a rollback to v1-only writers.
    Repair(repair::RepairArgs),
    /// Sets the write units a second of the whole run.
    Throttle(control::ThrottleArgs),
    /// Lets every worker stop at its next page.
    Pause(control::ControlArgs),
    /// Lets paused workers go on.
    Resume(control::ControlArgs),
    /// After the marker: compares both tables, to find v1-only writes and copies that differ.
    Audit(audit::AuditArgs),
    /// After the retention horizon and a clean audit: prints the commands that would empty v1. Removes nothing.
    Retire(retire::RetireArgs),
    /// What is safe from here, by the durable state, with the commands.
    RollbackPlan(rollback_plan::RollbackPlanArgs),
    /// Takes the write barrier of a cutover away; before the marker only.
    Abort(abort::AbortArgs),
}

pub(crate) async fn run(command: LayoutCommand, output: &Output) -> Result<()> {
    match command {
        LayoutCommand::Plan(args) => plan::run(args, output).await,
        LayoutCommand::Run(args) => run::run(*args, output).await,
        LayoutCommand::Status(args) => status::run(args, output).await,
        LayoutCommand::Rejects(args) => rejects::run(args, output).await,
        LayoutCommand::Repair(args) => repair::run(args, output).await,
        LayoutCommand::Throttle(args) => control::throttle(args, output).await,
        LayoutCommand::Pause(args) => control::pause(args, true, output).await,
        LayoutCommand::Resume(args) => control::pause(args, false, output).await,
        LayoutCommand::Abort(args) => abort::run(args, output).await,
        LayoutCommand::Audit(args) => audit::run(args, output).await,
        LayoutCommand::Retire(args) => retire::run(args, output).await,
        LayoutCommand::RollbackPlan(args) => rollback_plan::run(args, output).await,
    }
}

/// What differs, in the word that the records use.
pub(crate) fn kind_name(kind: MismatchKind) -> String {
    serde_json::to_value(kind).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}
