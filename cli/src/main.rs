//! The `metashift` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod commands {
    pub(crate) mod catalog;
}

/// Crash-safe migrations of lake metadata
#[derive(Debug, Parser)]
#[command(version)]
struct Command {
    /// One JSON object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    topic: Topic,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Formats of a SlateDB catalog
    #[command(subcommand)]
    Catalog(commands::catalog::CatalogCommand),
    /// The whole story on this machine
    Demo,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = Command::parse();
    let environment = metashift::environment::Environment::system();
    let result = match command.topic {
        Topic::Catalog(catalog) => commands::catalog::run(catalog, command.json).await,
        Topic::Demo => commands::catalog::demo(&environment, command.json).await.map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(error.kind().exit_code())
    })
}
