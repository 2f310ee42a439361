//! Speed and cost of the layout migration.
//!
//! ```sh
//! cargo run --profile bench --package metashift-bench -- [ITEMS] [FILE.json]
//! ```
//!
//! Everything runs in one process against the embedded server: first bare, then behind a proxy that adds 5 ms to every
//! request. Rates are ratios of runs beside each other; units and requests are what the server says it charged. The
//! baselines are written here from their description: *serial* migrates one item a transaction, one after another, then
//! reads each key back once in each direction; *limit* copies without any guard, a scan straight into BatchWriteItem.

mod baseline;
mod measure;

use measure::{Bench, Row};
use metashift::Result;
use serde_json::json;

/// Items where the command line does not say.
const ITEMS: u32 = 100_000;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let items = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(ITEMS);
    let mut rows: Vec<Row> = Vec::new();
    for delayed in [false, true] {
        let bench = Bench::start(items, delayed).await?;
        rows.extend(bench.run().await?);
    }
    rows.extend(measure::refresh(items * 10).await?);
    rows.extend(measure::kilobyte(items / 10).await?);
    rows.extend(measure::cost_by_size(&[items / 10, items, items * 10]).await?);
    for row in &rows {
        println!("{:<58} {:>14} {:>20}", row.what, row.shown(), row.target);
    }
    let document = json!({
        "items": items,
        "rows": rows.iter().map(|row| json!({ "what": row.what, "value": row.value, "target": row.target })).collect::<Vec<_>>(),
    });
    match arguments.next() {
        Some(path) => std::fs::write(&path, document.to_string()).map_err(|error| {
            metashift::Error::new(metashift::ErrorKind::InvalidInput, format!("{path}: {error}"))
        }),
        None => Ok(()),
    }
}
