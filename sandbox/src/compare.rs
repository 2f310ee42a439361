//! Comparing the two tables by plain scans, apart from the product's own verification.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use metashift::layout::key::is_internal;
use metashift::layout::tables::COMPANION_SUFFIX;
use metashift::{Error, ErrorKind, Result};

/// What a full comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Items that both tables hold, equal.
    pub items: u64,
    /// Each key that differs, in words.
    pub differences: Vec<String>,
}

/// Reads both tables whole and compares every user item.
pub async fn compare(client: &Client, table: &str) -> Result<Comparison> {
    let v1 = read(client, table).await?;
    let mut v2 = read(client, &format!("{table}{COMPANION_SUFFIX}")).await?;
    let mut comparison = Comparison::default();
    for (key, value) in v1.into_iter().filter(|(key, _)| !is_internal(key)) {
        match v2.remove(&key) {
            Some(copy) if copy == value => comparison.items += 1,
            Some(_) => comparison.differences.push(format!("{key:?}: the values differ")),
            None => comparison.differences.push(format!("{key:?}: only v1 has it")),
        }
    }
    comparison.differences.extend(v2.into_keys().map(|key| format!("{key:?}: only v2 has it")));
    Ok(comparison)
}

async fn read(client: &Client, table: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut start = None;
    loop {
        let page = client
            .scan()
            .table_name(table)
            .consistent_read(true)
            .set_exclusive_start_key(start)
            .send()
            .await
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, format!("table {table} was not read")).because(error)
            })?;
        for item in page.items.unwrap_or_default() {
            let key = item.get("pk").and_then(|key| key.as_s().ok()).cloned().unwrap_or_default();
            let value = item.get("val").and_then(|value| value.as_b().ok());
            found.insert(key, value.map(|value| value.clone().into_inner()).unwrap_or_default());
        }
        start = page.last_evaluated_key.filter(|key| !key.is_empty());
        if start.is_none() {
            return Ok(found);
        }
    }
}
