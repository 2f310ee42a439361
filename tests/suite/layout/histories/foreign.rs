//! Another migrator, as the published protocol describes it: a cursor of its own, the old barrier, one item a transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, Put, TransactWriteItem};
use metashift::layout::Layout;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::support::{TABLE, dump};
use super::Stage;

/// Items of one of its scans.
const PAGE: i32 = 7;

fn companion() -> String {
    format!("{TABLE}_prefix_v2")
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn bytes(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

fn place(key: &str, bucket: Option<String>) -> HashMap<String, AttributeValue> {
    let mut place = HashMap::from([("pk".to_owned(), text(key))]);
    place.extend(bucket.map(|bucket| ("bucket".to_owned(), AttributeValue::S(bucket))));
    place
}

async fn read(client: &Client, table: &str, key: HashMap<String, AttributeValue>) -> Option<Vec<u8>> {
    let answer = client.get_item().table_name(table).set_key(Some(key)).consistent_read(true).send();
    let value = answer.await.unwrap().item?.remove("val")?;
    value.as_b().ok().map(|value| value.clone().into_inner())
}

fn check(key: &str, value: &[u8]) -> TransactWriteItem {
    let check = ConditionCheck::builder()
        .table_name(TABLE)
        .set_key(Some(place(key, None)))
        .condition_expression("val = :value")
        .expression_attribute_values(":value", bytes(value));
    TransactWriteItem::builder().condition_check(check.build().unwrap()).build()
}

/// Puts an item where it is absent or has this value.
fn put(table: &str, mut item: HashMap<String, AttributeValue>, value: &[u8]) -> TransactWriteItem {
    item.insert("val".to_owned(), bytes(value));
    let put = Put::builder()
        .table_name(table)
        .set_item(Some(item))
        .condition_expression("attribute_not_exists(pk) OR val = :value")
        .expression_attribute_values(":value", bytes(value));
    TransactWriteItem::builder().put(put.build().unwrap()).build()
}

/// True where it committed; false where a condition failed, or another transaction was at work.
async fn transact(client: &Client, actions: Vec<TransactWriteItem>) -> bool {
    let sent = client.transact_write_items().set_transact_items(Some(actions)).send().await;
    match sent.map_err(|error| error.into_service_error()) {
        Ok(_) => true,
        Err(error) if error.is_transaction_canceled_exception() => false,
        Err(error) => panic!("{error}"),
    }
}

/// One life of the migrator.
struct Migrator {
    stage: Arc<Stage>,
    client: Client,
    layout: Layout,
    random: SmallRng,
}

/// Why it stopped before the marker.
struct Ended;

impl Migrator {
    /// Freezes now and then; dies now and then, or when the history ends.
    async fn breathe(&mut self) -> Result<(), Ended> {
        let pause = match self.random.random_range(0..100_u32) {
            0 => return Err(Ended),
            1..5 => 300,
            5..15 => 40,
            _ => 0,
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if self.stage.stopped() { Err(Ended) } else { Ok(()) }
    }

    async fn live(&mut self) -> Result<(), Ended> {
        self.backfill().await?;
        self.finalize().await
    }

    async fn backfill(&mut self) -> Result<(), Ended> {
        let cursor = read(&self.client, TABLE, place(FOREIGN_CURSOR_KEY, None)).await;
        // It is alive from its first record on.
        if cursor.is_none() {
            self.record("").await;
        }
        let mut start =
            cursor.filter(|cursor| !cursor.is_empty()).map(|cursor| String::from_utf8(cursor).unwrap());
        loop {
            let page = self
                .client
                .scan()
                .table_name(TABLE)
                .consistent_read(true)
                .limit(PAGE)
                .set_exclusive_start_key(start.as_deref().map(|key| place(key, None)))
                .send()
                .await
                .unwrap();
            let keys: Vec<_> = page.items().iter().map(|item| item["pk"].as_s().unwrap().clone()).collect();
            for key in &keys {
                if !key.starts_with("__lake_internal/") {
                    self.converge(key).await?;
                }
            }
            let Some(last) = page.last_evaluated_key.and_then(|last| last["pk"].as_s().ok().cloned()) else {
                return Ok(());
            };
            self.record(&last).await;
            self.breathe().await?;
            start = Some(last);
        }
    }

    async fn record(&self, cursor: &str) {
        let put = self.client.put_item().table_name(TABLE).item("pk", text(FOREIGN_CURSOR_KEY));
        put.item("val", bytes(cursor.as_bytes())).send().await.unwrap();
    }

    /// Until v1 has no item, or v2 has the same.
    async fn converge(&mut self, key: &str) -> Result<(), Ended> {
        let bucket = self.layout.bucket(key);
        loop {
            let Some(value) = read(&self.client, TABLE, place(key, None)).await else { return Ok(()) };
            let copy = read(&self.client, &companion(), place(key, Some(bucket.clone()))).await;
            match copy {
                Some(copy) if copy == value => return Ok(()),
                // It fails closed on a conflicting value; or a dual node has just moved the key.
                Some(_) => {
                    if read(&self.client, TABLE, place(key, None)).await == Some(value) {
                        return Err(Ended);
                    }
                }
                None => {
                    self.breathe().await?;
                    let item = place(key, Some(bucket.clone()));
                    let actions = vec![check(key, &value), put(&companion(), item, &value)];
                    if transact(&self.client, actions).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn finalize(&mut self) -> Result<(), Ended> {
        let mut taken = false;
        for _ in 0..50 {
            taken = transact(&self.client, vec![put(TABLE, place(BARRIER_KEY, None), BARRIER_VALUE)]).await;
            if taken {
                break;
            }
            self.breathe().await?;
        }
        if !taken {
            return Err(Ended);
        }
        self.breathe().await?;
        let users = |table: BTreeMap<String, (Option<String>, Vec<u8>)>| -> BTreeMap<_, _> {
            let users = table.into_iter().filter(|(key, _)| !key.starts_with("__lake_internal/"));
            users.map(|(key, (_, value))| (key, value)).collect()
        };
        let v1 = users(dump(&self.client, TABLE).await);
        self.breathe().await?;
        if v1 != users(dump(&self.client, &companion()).await) {
            // Its barrier stays.
            return Err(Ended);
        }
        self.breathe().await?;
        let marker = put(TABLE, place(MARKER_KEY, None), MARKER_VALUE);
        for _ in 0..50 {
            if transact(&self.client, vec![check(BARRIER_KEY, BARRIER_VALUE), marker.clone()]).await {
                return Ok(());
            }
            self.breathe().await?;
        }
        Err(Ended)
    }
}

/// Runs a migrator of the field, twice at most; after that it is dead, as its operator says.
pub(super) async fn migrate(stage: Arc<Stage>, seed: u64) {
    let client = stage.lake.client.clone();
    let mut random = SmallRng::seed_from_u64(seed);
    tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await;
    for life in 0..2 {
        let random = SmallRng::seed_from_u64(seed ^ life);
        let mut one =
            Migrator { stage: Arc::clone(&stage), client: client.clone(), layout: Layout::default(), random };
        if one.live().await.is_ok() {
            stage.foreign_published.store(true, Ordering::SeqCst);
            break;
        }
        if stage.stopped() {
            break;
        }
    }
    stage.foreign_alive.store(false, Ordering::SeqCst);
}
