//! Speed and cost of the layout migration.
//!
//! ```sh
//! cargo run --profile bench --package metashift-bench -- [ITEMS] [FILE.json] [PART…]
//! ```
//!
//! Parts are `bare`, `delayed`, `segments`, `refresh`, `kilobyte` and `line`; all of them where none is named.
//!
//! Everything runs in one process against the embedded server: first bare, then behind a proxy that adds 5 ms to every
//! request. Rates are ratios of runs beside each other; units and requests are what the server says it charged. The
//! baselines are written here from their description: *serial* migrates one item a transaction, one after another, then
//! reads each key back once in each direction; *limit* copies without any guard, a scan straight into BatchWriteItem.

mod baseline;
mod measure;

use measure::{Bench, Row};
use metashift::{Error, ErrorKind, Result};
use serde_json::json;

/// Items where the command line does not say.
const ITEMS: u32 = 100_000;

/// What can be measured alone.
const PARTS: [&str; 6] = ["bare", "delayed", "segments", "refresh", "kilobyte", "line"];

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
    let items = arguments.next().map_or(Ok(ITEMS), |text| {
        let number = text.parse().ok().filter(|items| (20_000..=400_000_000).contains(items));
        number.ok_or_else(|| invalid(format!("{text}: 20,000 to 400,000,000 items are possible")))
    })?;
    let file = arguments.next();
    let parts: Vec<_> = arguments.collect();
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(invalid(format!("{unknown} is no part; there are {}", PARTS.join(", "))));
    }
    let mut rows: Vec<Row> = Vec::new();
    for part in PARTS.into_iter().filter(|part| parts.is_empty() || parts.iter().any(|one| one == part)) {
        let measured = match part {
            "bare" => Bench::start(items, false).await?.run().await?,
            "delayed" => Bench::start(items, true).await?.run().await?,
            "segments" => measure::segments(items / 5).await?,
            "refresh" => measure::refresh(items * 10).await?,
            "kilobyte" => measure::kilobyte(items / 10).await?,
            _ => measure::cost_by_size(&[items / 10, items, items * 10]).await?,
        };
        for row in &measured {
            println!("{:<58} {:>14} {:>20}", row.what, row.shown(), row.target);
        }
        rows.extend(measured);
    }
    let document = json!({
        "items": items,
        "rows": rows.iter().map(|row| json!({ "what": row.what, "value": row.value, "target": row.target })).collect::<Vec<_>>(),
    });
    match file {
        Some(path) => {
            std::fs::write(&path, document.to_string()).map_err(|error| invalid(format!("{path}: {error}")))
        }
        None => Ok(()),
    }
}
