//! What is measured.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use metashift::environment::{Environment, elapsed};
use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::generation::{DEFAULT_SEGMENTS, PlanWish};
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::OnFailure;
use metashift::layout::run::Run;
use metashift::layout::{Layout, MetaStore, Mode, Tables};
use metashift::{Error, ErrorKind, Result};
use metashift_faults::{Fault, Proxy, Rule};
use metashift_sandbox::{Server, seed, server};

use crate::baseline;

const TABLE: &str = "lake";
const UNGUARDED: &str = "unguarded";

/// Added to every request in the second half.
const DELAY_MILLIS: u64 = 5;

/// Segments over 1,000,000 items: the embedded server does one thing at a time, and answers more of them too late.
const FEW_SEGMENTS: u32 = 8;

/// Items of the serial baseline: enough for a rate.
const SERIAL_ITEMS: u32 = 2000;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) target: &'static str,
}

impl Row {
    fn new(what: impl Into<String>, value: f64, target: &'static str) -> Self {
        Self { what: what.into(), value, target }
    }

    pub(crate) fn shown(&self) -> String {
        if self.value >= 100.0 { format!("{:.0}", self.value) } else { format!("{:.3}", self.value) }
    }
}

/// A seeded server, bare or behind a delay.
pub(crate) struct Bench {
    _server: Server,
    _proxy: Option<Proxy>,
    client: Client,
    tables: Tables,
    items: u32,
    delayed: bool,
}

impl Bench {
    pub(crate) async fn start(items: u32, delayed: bool) -> Result<Self> {
        let server = Server::start(0).await?;
        let bare = server.client();
        seed::create_tables(&bare, TABLE, true).await?;
        seed::fill(&bare, TABLE, items).await?;
        let mut proxy = None;
        let mut client = bare;
        if delayed {
            let started = Proxy::start(&server.endpoint(), 0)
                .await
                .map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
            started.add(Rule::new("delay", Fault::Delay { millis: DELAY_MILLIS }));
            client = server::client(&started.endpoint());
            proxy = Some(started);
        }
        let tables = Tables::new(client.clone(), TABLE, None, Layout::default(), Environment::system());
        Ok(Self { _server: server, _proxy: proxy, client, tables, items, delayed })
    }

    pub(crate) async fn run(&self) -> Result<Vec<Row>> {
        let place = if self.delayed { "with 5 ms" } else { "bare" };
        let count = f64::from(self.items);
        let mut rows = Vec::new();

        // Each baseline works on a companion of its own.
        let serial = self.other("serial").await?;
        let serial_rate =
            f64::from(SERIAL_ITEMS) / time(&serial, baseline::serial_copy(&serial, 0, SERIAL_ITEMS)).await?;
        let before = serial.usage().consumed.read_units;
        let serial_verify = f64::from(SERIAL_ITEMS)
            / time(&serial, baseline::serial_verify(&serial, 0, SERIAL_ITEMS)).await?;
        let serial_units = (serial.usage().consumed.read_units - before) / f64::from(SERIAL_ITEMS);

        let limit = self.other(UNGUARDED).await?;
        let table = format!("{UNGUARDED}_prefix_v2");
        let width = i32::try_from(DEFAULT_SEGMENTS).unwrap_or(1);
        let limit_rate =
            count / time(&limit, baseline::unguarded_copy(&self.client, TABLE, &table, width)).await?;

        let run = run_over(&self.tables, DEFAULT_SEGMENTS);
        let begun = self.tables.environment().now();
        let backfill = run.backfill().await?;
        let ours = count / seconds_since(&self.tables, begun);
        rows.push(Row::new(format!("backfill, items a second, {place}"), ours, "reported"));
        rows.push(Row::new(
            format!("backfill / serial, {place}"),
            ours / serial_rate,
            if self.delayed { ">= 15" } else { ">= 5" },
        ));
        rows.push(Row::new(
            format!("backfill / limit, {place}"),
            ours / limit_rate,
            if self.delayed { ">= 0.4" } else { "reported" },
        ));
        if !self.delayed {
            rows.push(Row::new(
                "backfill, write units an item",
                backfill.consumed.write_units / count,
                "<= 4.1",
            ));
            let again = Run { wish: PlanWish { new_generation: true, ..run.wish }, ..run.clone() };
            let second = again.backfill().await?;
            rows.push(Row::new(
                "backfill again, write units an item",
                second.consumed.write_units / count,
                "<= 0.1",
            ));
        }

        let rehearsal = if self.delayed { 0.0 } else { run.rehearse().await?.1.consumed.read_units / count };
        let scans = count / time(&self.tables, baseline::two_scans(&self.tables, 1)).await?;
        let finished = run.finalize(&start(&self.tables), &Evidence::Acknowledged(true)).await?;
        let held = finished.barrier_held.unwrap_or_default().as_secs_f64();
        let verify = count / held;
        rows.push(Row::new(format!("verification, items a second, {place}"), verify, "reported"));
        rows.push(Row::new(
            format!("verification / serial, {place}"),
            verify / serial_verify,
            if self.delayed { "reported" } else { ">= 5" },
        ));
        rows.push(Row::new(
            format!("verification / two strong scans, {place}"),
            verify / scans,
            if self.delayed { ">= 0.5" } else { "reported" },
        ));
        if !self.delayed {
            rows.push(Row::new(
                "verification, read units an item",
                finished.consumed.read_units / count,
                "<= 1.2",
            ));
            rows.push(Row::new("rehearsal, read units an item", rehearsal, "reported"));
            rows.push(Row::new("serial verification, read units an item", serial_units, "reported"));
            rows.extend(self.writes().await?);
        }
        Ok(rows)
    }

    /// The same v1 with another companion.
    async fn other(&self, name: &str) -> Result<Tables> {
        seed::create_tables(&self.client, name, true).await?;
        let companion = format!("{name}_prefix_v2");
        Ok(Tables::new(self.client.clone(), TABLE, Some(companion), Layout::default(), Environment::system()))
    }

    /// A dual write against one table's conditional put.
    async fn writes(&self) -> Result<Vec<Row>> {
        let other = self.other("writes").await?;
        seed::create_tables(&self.client, "writes-v1", false).await?;
        let dual = MetaStore::open(other.metered(), Mode::Dual).await?;
        let own =
            Tables::new(self.client.clone(), "writes-v1", None, Layout::default(), Environment::system());
        let single = MetaStore::open(own, Mode::V1Only).await?;
        let (mut dual_seconds, mut single_seconds, mut requests) = (0.0, 0.0, 0);
        for n in 0..500 {
            let key = format!("tbl/bench/{n}");
            let begun = other.environment().now();
            single.cas(&key, None, Some(b"value")).await?;
            single_seconds += seconds_since(&other, begun);
            let before = dual.usage().all_requests();
            let begun = other.environment().now();
            dual.cas(&key, None, Some(b"value")).await?;
            dual_seconds += seconds_since(&other, begun);
            requests += dual.usage().all_requests() - before;
        }
        Ok(vec![
            Row::new("dual write, requests", requests as f64 / 500.0, "1"),
            Row::new("dual write / v1-only write, latency", dual_seconds / single_seconds, "reported"),
        ])
    }
}

/// Backfill's rate by the number of segments, which is what is in flight.
pub(crate) async fn segments(items: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for delayed in [false, true] {
        for segments in [4, 8, 16, 32, 64] {
            let bench = Bench::start(items, delayed).await?;
            let begun = bench.tables.environment().now();
            run_over(&bench.tables, segments).backfill().await?;
            let rate = f64::from(items) / seconds_since(&bench.tables, begun);
            let place = if delayed { "with 5 ms" } else { "bare" };
            rows.push(Row::new(
                format!("backfill, items a second, {segments} segments, {place}"),
                rate,
                "reported",
            ));
        }
    }
    Ok(rows)
}

/// What a refresh of 500 `tbl/` keys among `items` others is charged, in both layouts.
pub(crate) async fn refresh(items: u32) -> Result<Vec<Row>> {
    let server = Server::start(0).await?;
    let client = server.client();
    seed::create_tables(&client, TABLE, true).await?;
    let others =
        (0..items).filter(|n| !seed::key(*n).starts_with("tbl/")).map(|n| (seed::key(n), seed::value(n)));
    seed::put_all(&client, TABLE, others).await?;
    seed::put_all(&client, TABLE, (0..500).map(|n| (format!("tbl/ns/{n:04}"), seed::value(n)))).await?;
    let tables = Tables::new(client, TABLE, None, Layout::default(), Environment::system());
    let mut units = Vec::new();
    let mut requests = 0;
    for migrated in [false, true] {
        let store = MetaStore::open(tables.metered(), Mode::Dual).await?;
        let opened = store.usage();
        let keys = store.list("tbl/").await?;
        if keys.len() != 500 {
            return Err(Error::new(ErrorKind::Internal, format!("{} keys", keys.len())));
        }
        units.push(store.usage().consumed.read_units - opened.consumed.read_units);
        requests = store.usage().all_requests() - opened.all_requests();
        if !migrated {
            run_over(&tables, FEW_SEGMENTS).finalize(&start(&tables), &Evidence::Acknowledged(true)).await?;
        }
    }
    // 8 shards at once, each less than a page: one round trip.
    Ok(vec![
        Row::new(
            format!("refresh of 500 keys among {items}, v1 / v2 read units"),
            units.first().unwrap_or(&0.0) / units.last().unwrap_or(&1.0),
            ">= 1000",
        ),
        Row::new("refresh, requests of v2, all at once", requests as f64, "<= 8"),
    ])
}

/// Write units an item at several sizes, and how far they are from a straight line through zero.
pub(crate) async fn cost_by_size(sizes: &[u32]) -> Result<Vec<Row>> {
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for items in sizes {
        let bench = Bench::start(*items, false).await?;
        let total = run_over(&bench.tables, FEW_SEGMENTS).backfill().await?;
        let count = f64::from(*items);
        points.push((count, total.consumed.write_units));
        let units = total.consumed.write_units / count;
        rows.push(Row::new(format!("write units an item, {items} items"), units, "flat"));
    }
    // Least squares through zero.
    let (products, squares) =
        points.iter().fold((0.0, 0.0), |(products, squares), (x, y)| (products + x * y, squares + x * x));
    let slope = products / squares;
    let worst = points.iter().map(|(x, y)| (y / (slope * x) - 1.0).abs()).fold(0.0, f64::max);
    rows.push(Row::new("slope of the line through these, write units an item", slope, "<= 4.1"));
    rows.push(Row::new("largest distance from that line, as a share", worst, "reported"));
    Ok(rows)
}

/// Units of items of 1,000 bytes, key included.
pub(crate) async fn kilobyte(items: u32) -> Result<Vec<Row>> {
    let server = Server::start(0).await?;
    let client = server.client();
    seed::create_tables(&client, TABLE, true).await?;
    let large = |n: u32| {
        let key = seed::key(n);
        let value = seed::value(n).into_iter().cycle().take(1_000 - key.len() - "pkval".len()).collect();
        (key, value)
    };
    seed::put_all(&client, TABLE, (0..items).map(large)).await?;
    let tables = Tables::new(client, TABLE, None, Layout::default(), Environment::system());
    let run = run_over(&tables, DEFAULT_SEGMENTS);
    let count = f64::from(items);
    let backfill = run.backfill().await?.consumed.write_units / count;
    let finished = run.finalize(&start(&tables), &Evidence::Acknowledged(true)).await?;
    let verify = finished.consumed.read_units / count;
    Ok(vec![
        Row::new("backfill of 1 KB items, write units an item", backfill, "reported"),
        Row::new("verification of 1 KB items, read units an item", verify, "<= 1.6"),
    ])
}

fn run_over(tables: &Tables, segments: u32) -> Run {
    Run {
        tables: tables.clone(),
        wish: PlanWish { segments: Some(segments), new_generation: false },
        accepted: Accepted::default(),
        page_size: 1000,
        pages_per_step: 50,
        observer: Arc::new(|_| {}),
    }
}

fn start(tables: &Tables) -> Start {
    Start {
        epoch: tables.environment().id(),
        deadline: Duration::from_secs(3600),
        on_failure: OnFailure::Release,
        writes_paused: true,
        under_load: false,
        owner: "local:bench".to_owned(),
        adopt_foreign_barrier: false,
        seen: None,
    }
}

async fn time<T>(tables: &Tables, work: impl Future<Output = Result<T>>) -> Result<f64> {
    let begun = tables.environment().now();
    work.await?;
    Ok(seconds_since(tables, begun))
}

fn seconds_since(tables: &Tables, begun: jiff::Timestamp) -> f64 {
    elapsed(begun, tables.environment().now()).as_secs_f64().max(0.001)
}
