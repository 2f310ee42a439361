//! `metashift`: migrations of lake metadata, from a terminal.
//!
//! Exit codes: 0 done or nothing to do, 1 internal, 2 fix the input, 3 stop and look, 4 retry later, 5 somebody else
//! has it, 6 refused by state, 130 stopped (Ctrl-C, SIGTERM, SIGHUP) and resumable.

mod again;
mod commands;
mod connect;
mod execution;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use metashift::error::Class;
use metashift::{Error, ErrorKind};

use output::Output;

/// Serverless, crash-safe migrations of lake metadata.
#[derive(Debug, Parser)]
#[command(name = "metashift", version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("METASHIFT_COMMIT"), ")"), max_term_width = 100)]
struct Cli {
    /// One JSON object a line while running, one at the end.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The whole story on this machine: a table with live writers and a catalog, migrated and compared.
    Demo(commands::demo::DemoArgs),
    /// An embedded server with a seeded table and live writers, to try everything else on; stays until Ctrl-C.
    Sandbox(commands::sandbox::SandboxArgs),
    /// The DynamoDB prefix layout.
    #[command(subcommand)]
    Layout(commands::layout::LayoutCommand),
    /// Formats of a SlateDB catalog.
    #[command(subcommand)]
    Catalog(commands::catalog::CatalogCommand),
    /// One self-contained page about a layout migration.
    Report(commands::report::ReportArgs),
    /// Completions for a shell, on standard output.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// The manual page, on standard output.
    Man,
}

/// An empty variable is not set, whoever reads it: clap, the SDK, object_store or we.
#[expect(unsafe_code, reason = "nobody else reads the environment before the first thread begins")]
fn forget_empty_variables() {
    let ours = |name: &str| ["AWS_", "LAKE_", "METASHIFT_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in std::env::vars_os() {
        if value.is_empty() && name.to_str().is_some_and(ours) {
            // SAFETY: this is the only thread.
            unsafe { std::env::remove_var(&name) };
        }
    }
}

/// What clap says instead of a command: help, the version, or what is wrong with the arguments.
fn said_by_clap(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        output::put_raw(&error.render().to_string());
        return output::ended(ExitCode::SUCCESS, &Output::new(false, again::Again::default()));
    }
    if !std::env::args_os().any(|argument| argument == "--json") {
        // A terminal that has gone away has nobody to read it.
        let _gone = error.print();
        return ExitCode::from(Class::FixInput.exit_code());
    }
    let text = error.render().to_string();
    let what: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")).collect();
    let what = what.join(" ");
    let what = what.trim().trim_start_matches("error: ");
    let wrong = Error::new(ErrorKind::InvalidInput, what);
    Output::new(true, again::Again::default()).error(&wrong);
    ExitCode::from(Class::FixInput.exit_code())
}

fn main() -> ExitCode {
    forget_empty_variables();
    let parsed = Cli::command().after_long_help(commands::exit_codes_in_help()).try_get_matches();
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches).map(|cli| (matches, cli)));
    let (matches, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return said_by_clap(&error),
    };
    let output = Output::new(cli.json, again::Again::of(&matches));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output.error(&Error::new(ErrorKind::Internal, format!("no runtime: {error}")));
            return ExitCode::from(Class::Internal.exit_code());
        }
    };
    runtime.block_on(async {
        let work = async {
            match cli.command {
                Command::Demo(args) => commands::demo::run(args, &output).await,
                Command::Sandbox(args) => commands::sandbox::run(args, &output).await,
                Command::Layout(command) => commands::layout::run(command, &output).await,
                Command::Catalog(command) => commands::catalog::run(command, &output).await,
                Command::Report(args) => commands::report::run(args, &output).await,
                Command::Completions { shell } => {
                    let mut script = Vec::new();
                    clap_complete::generate(shell, &mut Cli::command(), "metashift", &mut script);
                    output::put(String::from_utf8_lossy(&script));
                    Ok(())
                }
                Command::Man => commands::manual(Cli::command()),
            }
        };
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                ended = &mut work => return match ended {
                    Ok(()) => output::ended(ExitCode::SUCCESS, &output),
                    Err(error) => {
                        output.error(&error);
                        ExitCode::from(error.kind().exit_code())
                    }
                },
                () = output::stop_asked() => {
                    if !output.stop_is_handled() {
                        output.stopped();
                        return ExitCode::from(Class::Stopped.exit_code());
                    }
                }
            }
        }
    })
}
