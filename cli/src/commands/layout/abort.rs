//! `metashift layout abort`.

use clap::Args;
use metashift::layout::cutover::{Released, Why, release_barrier};
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
            ("notHeld", "no cutover holds the write barrier; nothing to do".to_owned())
        }
    };
    output.say(text);
    output.emit(&json!({ "outcome": outcome }));
    Ok(())
}
