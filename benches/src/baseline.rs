//! What the migration is measured against.

use std::collections::HashMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, PutRequest, ReturnConsumedCapacity, WriteRequest};
use futures::stream::{self, StreamExt, TryStreamExt};
use metashift::layout::transaction::{Side, Transaction, copy};
use metashift::layout::{Layout, Tables};
use metashift::{Error, ErrorKind, Result};
use metashift_sandbox::seed;

/// BatchWriteItem requests in flight at once; more did not help on the embedded server.
const IN_FLIGHT: usize = 32;

/// Items of one BatchWriteItem (DynamoDB's limit).
const BATCH: usize = 25;

/// One item a transaction, one after another: items `from` to `to` of the seeded ones.
pub(crate) async fn serial_copy(tables: &Tables, from: u32, to: u32) -> Result<()> {
    for n in from..to {
        let key = seed::key(n);
        let Some(item) = tables.get(Side::V1, &key).await? else { continue };
        let actions = copy(tables.layout(), &key, item.value().unwrap_or_default());
        let sent =
            tables.transact(&Transaction { actions: actions.into() }, &tables.environment().id()).await?;
        sent.map_err(|reasons| Error::new(ErrorKind::Internal, format!("{key}: {reasons:?}")))?;
    }
    Ok(())
}

/// One strong get a key in each direction, one after another.
pub(crate) async fn serial_verify(tables: &Tables, from: u32, to: u32) -> Result<()> {
    for n in from..to {
        let key = seed::key(n);
        for side in [Side::V1, Side::V2] {
            if tables.get(side, &key).await?.is_none() {
                return Err(Error::new(ErrorKind::VerificationFailed, key));
            }
        }
    }
    Ok(())
}

/// Scan straight into BatchWriteItem, without any guard, into `table`.
pub(crate) async fn unguarded_copy(client: &Client, from: &str, table: &str, segments: i32) -> Result<u64> {
    let layout = Layout::default();
    let layout = &layout;
    let counts: Vec<u64> = stream::iter(0..segments)
        .map(|segment| async move {
            let mut copied = 0;
            let mut start = None;
            loop {
                let page = client
                    .scan()
                    .table_name(from)
                    .segment(segment)
                    .total_segments(segments)
                    .limit(1000)
                    .set_exclusive_start_key(start)
                    .send()
                    .await
                    .map_err(|error| failed("scanning", error))?;
                let items = page.items.unwrap_or_default();
                copied += items.len() as u64;
                let batches: Vec<_> =
                    items.chunks(BATCH).map(|chunk| batch(layout, chunk)).collect::<Result<_>>()?;
                let per_segment = (IN_FLIGHT / usize::try_from(segments).unwrap_or(1)).max(1);
                stream::iter(batches)
                    .map(|batch| write(client, table, batch))
                    .buffer_unordered(per_segment)
                    .try_collect::<()>()
                    .await?;
                start = page.last_evaluated_key.filter(|key| !key.is_empty());
                if start.is_none() {
                    return Ok::<u64, Error>(copied);
                }
            }
        })
        .buffer_unordered(usize::try_from(segments).unwrap_or(1))
        .try_collect()
        .await?;
    Ok(counts.iter().sum())
}

fn batch(layout: &Layout, items: &[HashMap<String, AttributeValue>]) -> Result<Vec<WriteRequest>> {
    items
        .iter()
        .map(|item| {
            let key = item.get("pk").and_then(|key| key.as_s().ok()).cloned().unwrap_or_default();
            let mut copied = item.clone();
            copied.insert("bucket".to_owned(), AttributeValue::S(layout.bucket(&key)));
            let put = PutRequest::builder()
                .set_item(Some(copied))
                .build()
                .map_err(|error| failed("building", error))?;
            Ok(WriteRequest::builder().put_request(put).build())
        })
        .collect()
}

async fn write(client: &Client, table: &str, batch: Vec<WriteRequest>) -> Result<()> {
    let mut left = Some(batch);
    while let Some(batch) = left.take().filter(|batch| !batch.is_empty()) {
        let answer = client
            .batch_write_item()
            .request_items(table, batch)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(|error| failed("writing", error))?;
        left = answer.unprocessed_items.and_then(|mut tables| tables.remove(table));
    }
    Ok(())
}

/// Both tables by strong scans at once, one request after another each.
pub(crate) async fn two_scans(tables: &Tables, segments: u32) -> Result<()> {
    let one = |side: Side, segment: u32| async move {
        let mut after = None;
        loop {
            let page = tables.scan(side, (segment, segments), 1000, after.as_ref(), true).await?;
            after = page.next;
            if after.is_none() {
                return Ok::<(), Error>(());
            }
        }
    };
    let all: Vec<_> =
        [Side::V1, Side::V2].into_iter().flat_map(|side| (0..segments).map(move |n| one(side, n))).collect();
    futures::future::try_join_all(all).await.map(|_| ())
}

fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, what.to_owned()).because(error)
}
