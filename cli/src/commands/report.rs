//! `metashift report`: one self-contained page about a migration.

mod page;
mod shape;

use std::path::PathBuf;

use clap::Args;
use metashift::catalog::format::NEWEST;
use metashift::catalog::inspect::inspect;
use metashift::catalog::units::Registry;
use metashift::environment::Environment;
use metashift::layout::status::{self, Overview};
use metashift::step::Budget;
use metashift::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::connect::TableArgs;
use crate::output::Output;
use shape::{Buckets, Shape};

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Writes the page here: one file, no scripts, nothing from a network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Reads every key of the new table once (eventually consistent) to show how evenly its buckets are filled.
    #[arg(long)]
    buckets: bool,
    /// A catalog to include, as s3://bucket/path or file:///directory.
    #[arg(long, value_name = "STORE")]
    catalog: Option<String>,
}

pub(crate) async fn run(args: ReportArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let overview = Overview::load(&tables).await?;
    let rejects = match &overview.plan {
        Some(plan) => status::rejects(&tables, plan).await?,
        None => Vec::new(),
    };
    let buckets = if args.buckets { Some(Buckets::read(&tables).await?) } else { None };
    let catalog = match &args.catalog {
        None => Value::Null,
        Some(store) => {
            let environment = Environment::system();
            let budget = Budget::unbounded(environment.clone());
            let location = super::catalog::reach(store).await?;
            let found =
                inspect(&location, &Registry::shipped(), NEWEST, false, &environment, &budget).await?;
            serde_json::to_value(&found).map_err(|error| {
                Error::new(ErrorKind::Internal, "an inspection has no JSON form").because(error)
            })?
        }
    };
    let shape = Shape {
        table: args.tables.table.clone(),
        made_at: tables.environment().now(),
        overview,
        rejects,
        buckets,
        catalog,
    };
    if let Some(path) = &args.html {
        std::fs::write(path, page::render(&shape).into_string()).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("{}: {error}", path.display()))
                .next("name a file in a directory that can be written to")
        })?;
        output.say(format!("wrote {}", path.display()));
    }
    if args.html.is_none() && !output.is_json() {
        return Err(Error::new(ErrorKind::InvalidInput, "a report needs a form")
            .next("metashift report --html FILE, or --json"));
    }
    output.emit(&json!({
        "table": shape.table, "madeAt": shape.made_at, "phase": shape.overview.phase(),
        "phases": shape.phases(), "progress": shape.overview.progress(), "units": shape.units(),
        "dollars": shape.dollars(), "rejects": shape.rejects, "families": shape.families(),
        "buckets": shape.buckets.as_ref().map(Buckets::json), "catalog": shape.catalog,
        "html": args.html,
    }));
    Ok(())
}
