//! `metashift report`: one self-contained page about a migration.

mod page;
mod shape;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use metashift::catalog::format::NEWEST;
use metashift::catalog::inspect::inspect;
use metashift::catalog::units::Registry;
use metashift::environment::Environment;
use metashift::step::Budget;
use metashift::{Error, ErrorKind, Result};
use object_store::{Attribute, Attributes, PutOptions};
use serde_json::{Value, json};

use crate::connect::TableArgs;
use crate::output::Output;
use shape::{Buckets, Catalog, Layout, Shape};

/// The flags of a table, where one is named.
#[derive(Debug)]
struct OptionalTable(Option<TableArgs>);

impl Args for OptionalTable {
    fn augment_args(command: Command) -> Command {
        TableArgs::augment_args(command).mut_arg("table", |table| table.required(false))
    }

    fn augment_args_for_update(command: Command) -> Command {
        TableArgs::augment_args_for_update(command)
    }
}

impl FromArgMatches for OptionalTable {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        matches.contains_id("table").then(|| TableArgs::from_arg_matches(matches)).transpose().map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    tables: OptionalTable,
    /// Writes the page here, a file or an object as s3://bucket/key: one page, no scripts, nothing from a network.
    #[arg(long, value_name = "FILE")]
    html: Option<String>,
    /// Reads every key of the new table once (eventually consistent) to show how evenly its buckets are filled.
    #[arg(long)]
    buckets: bool,
    /// A catalog to include, as s3://bucket/path or file:///directory; without --table it is all that is shown.
    #[arg(long, value_name = "STORE")]
    catalog: Option<String>,
}

pub(crate) async fn run(args: ReportArgs, output: &Output) -> Result<()> {
    if args.html.is_none() && !output.is_json() {
        return Err(Error::new(ErrorKind::InvalidInput, "a report needs a form")
            .next("metashift report --html FILE, or --json"));
    }
    if args.tables.0.is_none() && args.catalog.is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, "a report needs something to be about")
            .next("name a table with --table or LAKE_DYNAMODB_TABLE, a catalog with --catalog, or both"));
    }
    let environment = Environment::system();
    let layout = match &args.tables.0 {
        None => None,
        Some(tables) => {
            Some(Layout::read(tables.table.clone(), &tables.tables().await?, args.buckets).await?)
        }
    };
    let catalog = match args.catalog {
        None => None,
        Some(store) => {
            let budget = Budget::unbounded(environment.clone());
            let (location, registry) = (super::catalog::reach(&store).await?, Registry::shipped());
            let found = inspect(&location, &registry, NEWEST, false, &environment, &budget).await?;
            Some(Catalog { store, found })
        }
    };
    let shape = Shape { made_at: environment.now(), layout, catalog };
    if let Some(path) = &args.html {
        write(path, page::render(&shape).into_string()).await?;
        output.say(format!("wrote {path}"));
    }
    output.emit(&in_json(&shape, args.html.as_ref()));
    Ok(())
}

async fn write(place: &str, page: String) -> Result<()> {
    if !place.starts_with("s3://") {
        return std::fs::write(place, page).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("{place}: {error}"))
                .next("name a file in a directory that can be written to")
        });
    }
    let location = super::catalog::reach(place).await?;
    let kind = Attributes::from_iter([(Attribute::ContentType, "text/html; charset=utf-8")]);
    let options = PutOptions { attributes: kind, ..PutOptions::default() };
    location.store.put_opts(&location.path, page.into(), options).await.map(drop).map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("{place}: {error}"))
            .next("check the bucket and the credentials, or name a file")
    })
}

fn in_json(shape: &Shape, html: Option<&String>) -> Value {
    let mut value = json!({
        "madeAt": shape.made_at, "catalog": shape.catalog.as_ref().map(Catalog::json), "html": html,
    });
    if let (Some(layout), Value::Object(fields)) = (&shape.layout, &mut value) {
        let charged = layout.charged();
        for (name, value) in [
            ("table", json!(layout.table)),
            ("phase", json!(layout.overview.phase())),
            ("phases", json!(layout.phases())),
            ("paces", json!(layout.paces())),
            ("progress", json!(layout.overview.progress())),
            ("dollars", json!(charged.iter().map(|one| one.dollars).sum::<f64>())),
            ("charged", json!(charged)),
            ("rejects", json!(layout.rejects)),
            ("families", json!(layout.families())),
            ("buckets", json!(layout.buckets.as_ref().map(Buckets::json))),
        ] {
            fields.insert(name.to_owned(), value);
        }
    }
    value
}
