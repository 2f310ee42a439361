//! A metadata node that dual-writes, follows the authority by itself, and reports its mode.
//!
//! Against a sandbox (`cargo metashift sandbox`), with its two exports set:
//!
//! ```sh
//! cargo run --package metashift --example metadata_node
//! ```
//!
//! Start a cutover while it runs: its writes are refused for a moment, then it goes on under the new authority.

use std::time::Duration;

use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Credentials, Region};
use metashift::environment::Environment;
use metashift::layout::{Layout, MetaStore, Mode, Mutation, Tables, tables};
use metashift::{ErrorKind, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let name = |variable: &str, default: &str| std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    // On AWS this is `Builder::from(&aws_config::load_defaults(..).await)`.
    let config = Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "example"))
        .endpoint_url(name("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:8000"));
    let client = tables::client(config);
    let table = name("LAKE_DYNAMODB_TABLE", "lake");
    let store = MetaStore::open(
        Tables::new(client, table, None, Layout::default(), Environment::system()),
        Mode::Dual,
    )
    .await?;

    // Before the marker a wrong layout or companion is only said; after it the node is refused.
    if let Some(warning) = store.warning() {
        println!("{warning}");
    }

    let key = "tbl/example/counter";
    let mut value = store.get(key).await?;
    for n in 0..60_u32 {
        let next = format!("{n}").into_bytes();
        match store.cas(key, value.as_deref(), Some(&next)).await {
            Ok(Mutation::Applied) => value = Some(next),
            // Somebody else wrote: go on from what they wrote.
            Ok(Mutation::Conflict { current }) => value = current,
            Ok(Mutation::GuardLost) => {}
            // A cutover pauses writers, or nothing was applied: the same write again, a moment later.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::BarrierHeld | ErrorKind::Contended | ErrorKind::Throttled
                ) =>
            {
                println!("{error}");
            }
            // Only a read can tell.
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => value = store.get(key).await?,
            Err(error) => return Err(error),
        }
        if n % 10 == 0 {
            println!("{:?}: {} keys under tbl/", store.authority(), store.list("tbl/").await?.len());
            // A node prints this line once a minute; CloudWatch makes the metric WriterMode of it.
            println!("{}", store.writer_mode_record());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
