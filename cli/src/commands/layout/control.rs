//! `metashift layout throttle`, `pause` and `resume`.

use clap::Args;
use metashift::Result;
use metashift::layout::Tables;
use metashift::layout::generation::load_plan;
use metashift::layout::plan::refused;
use metashift::layout::records::plan::State;
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
    if args.write_units.is_some() {
        check_not_final(&tables).await?;
    }
    let control = status::throttle(&tables, args.write_units).await?;
    output.say(match control.write_units {
        Some(units) => format!("at most {units} write units a second from each worker's next page on"),
        None => "unlimited from each worker's next page on".to_owned(),
    });
    output.emit(&json!({ "writeUnits": control.write_units, "paused": control.paused }));
    Ok(())
}

/// `AlreadyFinalized` once the marker is there: no run is left to be slowed or stopped.
async fn check_not_final(tables: &Tables) -> Result<()> {
    match load_plan(tables).await? {
        Some(plan) if plan.record.state == State::Final => Err(refused(&plan.record, State::Open)),
        _ => Ok(()),
    }
}

pub(crate) async fn pause(args: ControlArgs, paused: bool, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    if paused {
        check_not_final(&tables).await?;
    }
    let control = status::change_control(&tables, |control| control.paused = paused).await?;
    output.say(if paused {
        "paused: every worker stops at its next page, and a cutover ends; go on with metashift layout resume"
    } else {
        "resumed"
    });
    output.emit(&json!({ "writeUnits": control.write_units, "paused": control.paused }));
    Ok(())
}
