//! `metashift layout`: the DynamoDB prefix layout.

mod abort;
mod control;
mod plan;
mod rejects;
mod repair;
mod run;
mod status;

use clap::Subcommand;
use metashift::Result;
use metashift::layout::Tables;
use metashift::layout::cutover;

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
    }
}

/// Ends a cutover that ran past its deadline and was left by a dead run: any command does.
async fn release_expired(tables: &Tables, output: &Output) -> Result<()> {
    if let Some(cutover) = cutover::release_expired(tables).await? {
        output.say(format!("released the barrier of the expired cutover {}", cutover.epoch));
    }
    Ok(())
}
