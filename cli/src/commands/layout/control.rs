//! `metashift layout throttle`, `pause` and `resume`.

use clap::Args;
use metashift::Result;
use metashift::layout::status;
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct ThrottleArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Write request units a second for all workers together; unlimited where it is left out.
    #[arg(long)]
    write_units: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    #[command(flatten)]
    tables: TableArgs,
}

pub(crate) async fn throttle(args: ThrottleArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    super::release_expired(&tables, output).await?;
    let control = status::throttle(&tables, args.write_units).await?;
    output.say(match control.write_units {
        Some(units) => format!("at most {units} write units a second from each worker's next page on"),
        None => "unlimited from each worker's next page on".to_owned(),
    });
    output.emit(&json!({ "writeUnits": control.write_units, "paused": control.paused }));
    Ok(())
}

pub(crate) async fn pause(args: ControlArgs, paused: bool, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    super::release_expired(&tables, output).await?;
    let control = status::change_control(&tables, |control| control.paused = paused).await?;
    output.say(if paused {
        "paused: every worker stops at its next page; go on with metashift layout resume"
    } else {
        "resumed"
    });
    output.emit(&json!({ "writeUnits": control.write_units, "paused": control.paused }));
    Ok(())
}
