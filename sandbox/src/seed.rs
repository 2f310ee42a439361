//! Tables as they are in the field: a v1 table over the field's families, and its empty companion.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, PutRequest,
    ScalarAttributeType, WriteRequest,
};
use futures::stream::{self, StreamExt, TryStreamExt};
use metashift::layout::tables::COMPANION_SUFFIX;
use metashift::{Error, ErrorKind, Result};

/// Items of one BatchWriteItem (DynamoDB's limit).
const BATCH: usize = 25;

/// Share of each family in a seeded table, of 100: what seven days of appends leave behind.
const FAMILIES: [(&str, u32); 7] = [
    ("append-operation/v1/", 55),
    ("append-active/v1/", 5),
    ("lance-manifest/ns/", 25),
    ("lance-manifest-latest/ns/", 5),
    ("lance-manifest-cleanup/ns/", 3),
    ("tbl/ns/", 2),
    ("lease-", 5),
];

/// Creates a v1 table, and its companion where asked for.
pub async fn create_tables(client: &Client, table: &str, companion: bool) -> Result<()> {
    create(client, table, &[("pk", KeyType::Hash)]).await?;
    if companion {
        let keys = [("bucket", KeyType::Hash), ("pk", KeyType::Range)];
        create(client, &format!("{table}{COMPANION_SUFFIX}"), &keys).await?;
    }
    Ok(())
}

async fn create(client: &Client, name: &str, keys: &[(&str, KeyType)]) -> Result<()> {
    let mut request = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for (attribute, kind) in keys {
        let element = KeySchemaElement::builder().attribute_name(*attribute).key_type(kind.clone()).build();
        let definition = AttributeDefinition::builder()
            .attribute_name(*attribute)
            .attribute_type(ScalarAttributeType::S)
            .build();
        request = request
            .key_schema(element.map_err(|error| internal(&error))?)
            .attribute_definitions(definition.map_err(|error| internal(&error))?);
    }
    request.send().await.map_err(|error| {
        Error::new(ErrorKind::TableMismatch, format!("table {name} was not created")).because(error)
    })?;
    Ok(())
}

/// The n-th of `items` seeded keys, over the field's families; each n gives another key.
pub fn key(n: u32) -> String {
    let mut place = n % 100;
    for (family, share) in FAMILIES {
        if place < share {
            return format!("{family}{n:08}");
        }
        place -= share;
    }
    format!("lease-{n:08}")
}

/// The n-th seeded value: about 200 bytes, and with the key about 250 as an item.
pub fn value(n: u32) -> Vec<u8> {
    let mut value = format!("seed-{n}:").into_bytes();
    let filler = n.to_le_bytes();
    value.extend(filler.iter().cycle().take(200 - value.len()));
    value
}

/// Puts items 0 to `items` into v1, as its writers before the migration did.
pub async fn fill(client: &Client, table: &str, items: u32) -> Result<()> {
    put_all(client, table, (0..items).map(|n| (key(n), value(n)))).await
}

/// Puts these items into v1.
pub async fn put_all(
    client: &Client,
    table: &str,
    items: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> Result<()> {
    let mut batches = Vec::new();
    let mut batch = Vec::with_capacity(BATCH);
    for (key, value) in items {
        let put = PutRequest::builder()
            .item("pk", AttributeValue::S(key))
            .item("val", AttributeValue::B(Blob::new(value)))
            .build()
            .map_err(|error| internal(&error))?;
        batch.push(WriteRequest::builder().put_request(put).build());
        if batch.len() == BATCH {
            batches.push(std::mem::take(&mut batch));
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    stream::iter(batches)
        .map(|batch| async move {
            let mut left = Some(batch);
            while let Some(batch) = left.take().filter(|batch| !batch.is_empty()) {
                let answer = client.batch_write_item().request_items(table, batch).send().await;
                let answer = answer.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, format!("table {table} was not filled")).because(error)
                })?;
                left = answer.unprocessed_items.and_then(|mut tables| tables.remove(table));
            }
            Ok(())
        })
        .buffer_unordered(4)
        .try_collect()
        .await
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("a request could not be built: {error}"))
}
