//! `metashift layout abort`.

use clap::Args;
use metashift::layout::cutover::{Released, Why, release_barrier};
use metashift::layout::generation::{FOREIGN_BARRIER, remove_foreign_barrier};
use metashift::layout::status::Overview;
use metashift::{Error, ErrorKind, Result};
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct AbortArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// The cutover to end; whichever holds the barrier unless named.
    #[arg(long)]
    epoch: Option<String>,
    /// Removes the barrier of another migrator that is known to be dead, where no cutover of this software holds it.
    #[arg(long, conflicts_with = "epoch")]
    adopt_foreign_barrier: bool,
}

pub(crate) async fn run(args: AbortArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let (outcome, text) = match release_barrier(&tables, args.epoch.as_deref(), Why::Abort).await? {
        Released::Published => {
            return Err(Error::new(
                ErrorKind::AlreadyFinalized,
                "the marker is published: the prefix layout is the authority, and stays it",
            )
            .next("restart pods so that they read it; a rollback needs a dual-capable binary"));
        }
        Released::Released(cutover) => {
            ("released", format!("the cutover {} is ended; writers go on under v1", cutover.epoch))
        }
        Released::NotHeld | Released::Held(_) | Released::NotYet(_) => {
            let overview = Overview::load(&tables).await?;
            if let Some(cutover) = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref()) {
                return Err(Error::new(
                    ErrorKind::Superseded,
                    format!(
                        "the barrier is held by the cutover {}, not by the one that was named",
                        cutover.epoch
                    ),
                )
                .next(format!("metashift layout abort --epoch {}", cutover.epoch)));
            }
            let foreign = overview.leftovers.barrier && !overview.leftovers.marker;
            if foreign && !args.adopt_foreign_barrier {
                return Err(Error::new(ErrorKind::ForeignLeftovers, FOREIGN_BARRIER).next(
                    "make sure that migrator is dead; then metashift layout abort --adopt-foreign-barrier",
                ));
            }
            if foreign && remove_foreign_barrier(&tables).await? {
                (
                    "removed",
                    "the barrier of another migrator is removed; writers continue under v1".to_owned(),
                )
            } else {
                ("notHeld", "no cutover holds the write barrier; nothing to do".to_owned())
            }
        }
    };
    output.say(text);
    output.emit(&json!({ "outcome": outcome }));
    Ok(())
}
