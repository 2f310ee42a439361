//! `metashift layout status`.

mod look;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use metashift::error::Class;
use metashift::layout::Tables;
use metashift::layout::generation::{check_plan, load_plan};
use metashift::layout::records::plan::State;
use metashift::layout::records::reject::Reject;
use metashift::layout::status::{Overview, rejects};
use metashift::layout::transaction::Side;
use metashift::{Error, ErrorKind, Result};

use crate::connect::TableArgs;
use crate::output::Output;
use look::{Look, Sample};

/// The rate is that of the last half minute.
const RATE_OVER: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Shows it again and again, until the migration is final or Ctrl-C (exit code 130): in place at a terminal, one line each
    /// time elsewhere. Colours only at a terminal, and not where NO_COLOR is set.
    #[arg(long)]
    watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
}

pub(crate) async fn run(args: StatusArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    // Another layout is no obstacle to a look.
    if let Some(plan) = load_plan(&tables).await?
        && let Err(error) = check_plan(&plan.record, &tables)
        && error.kind() == ErrorKind::PlanMismatch
    {
        return Err(error);
    }
    let mut watched = Watched::new(&tables).await?;
    let first = watched.look().await?;
    if !args.watch {
        output.rows(&first.rows(), &first.json());
        return Ok(());
    }
    output.keeps("looking changed nothing");
    let screen = view::Screen::of_this_process();
    let mut look = first;
    loop {
        if output.is_json() {
            output.emit(&look.json());
        } else if let Some(screen) = &screen {
            output.draw(&screen.draw(&args.tables.table, &look, args.every));
        } else {
            output.say(look.line());
        }
        if look.overview.plan.as_ref().is_some_and(|plan| plan.state == State::Final) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(args.every)).await;
        look = match watched.look().await {
            Ok(look) => look,
            // The migration goes on whether it can be seen or not.
            Err(error) if error.kind().class() == Class::RetryLater => {
                let at = watched.now();
                watched.trouble = Some((at, error.clone()));
                look.again(at, error)
            }
            Err(error) => return Err(error),
        };
    }
}

/// What is kept from one look to the next.
struct Watched<'a> {
    tables: &'a Tables,
    /// Items of v1, as the table says; it counts every six hours.
    expected: u64,
    samples: VecDeque<Sample>,
    /// Outstanding rejects when they were read, and the last of them.
    rejects: (u64, Vec<Reject>),
    trouble: Option<(Timestamp, Error)>,
}

impl<'a> Watched<'a> {
    async fn new(tables: &'a Tables) -> Result<Self> {
        let expected = tables.describe(Side::V1).await?.map_or(0, |facts| facts.items);
        Ok(Self { tables, expected, samples: VecDeque::new(), rejects: (0, Vec::new()), trouble: None })
    }

    fn now(&self) -> Timestamp {
        self.tables.environment().now()
    }

    async fn look(&mut self) -> Result<Look> {
        let overview = Overview::load(self.tables).await?;
        let progress = overview.progress();
        let outstanding = progress.rejected + progress.diverged;
        if outstanding != self.rejects.0 {
            let mut found = match &overview.plan {
                Some(plan) if outstanding > 0 => rejects(self.tables, plan).await?,
                _ => Vec::new(),
            };
            found.drain(..found.len().saturating_sub(look::MOST_NAMED));
            self.rejects = (outstanding, found);
        }
        let at = self.now();
        let of_table = self.tables.time().await?.unwrap_or(at);
        let sample = Sample::of(&overview, at);
        if self.samples.back().is_some_and(|last| last.work != sample.work) {
            self.samples.clear();
        }
        self.samples.push_back(sample);
        let recent = |sample: &Sample| metashift::environment::elapsed(sample.at, at) <= RATE_OVER;
        while self.samples.len() > 2 && self.samples.front().is_some_and(|first| !recent(first)) {
            self.samples.pop_front();
        }
        let rate = look::rate(self.samples.iter()).or_else(|| look::average(&overview));
        Ok(Look {
            at,
            of_table,
            expected: self.expected,
            rate,
            overview,
            rejects: self.rejects.1.clone(),
            trouble: self.trouble.clone(),
        })
    }
}
