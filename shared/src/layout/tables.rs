//! The two tables over the AWS SDK: the only place that talks to DynamoDB.
//!
//! The SDK's own retries are off ([`client`]): every attempt is counted here, each kind of failure is waited for in
//! its own way, and a quota that bulk load empties can never starve the requests that follow. Every request asks
//! for the capacity it was charged.
//!
//! Whatever is asked, a request can end with `AccessDenied`, `TableMismatch` (no such table), `InvalidInput` (the server
//! refused its form), `Throttled`, `Contended` or `Unavailable` after [`DEFAULT_PATIENCE`] of attempts, and a write with
//! `OutcomeUnknown` where its answer was lost. Only further kinds are named below.

mod convert;
mod describe;
mod failure;
mod meter;
mod sending;
mod waiting;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::types::{
    AttributeValue, Get, KeysAndAttributes, ReturnConsumedCapacity, TransactGetItem, TransactWriteItem,
};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;

pub use convert::{Content, Item};
pub use describe::{KeyAttribute, TableFacts};
use failure::Failure;
pub use meter::{Meter, Usage};
use sending::{Sending, ServerClock};
use waiting::{FIRST_PAUSE, Limit, Waiting};

use super::family::Layout;
use super::key::MOST_V2_KEY_BYTES;
use super::outcome::{Cancelled, Reason, classify};
use super::records::segment::Position;
use super::records::{self, Record, Stored};
use super::transaction::{Action, Condition, Role, Side, Transaction, Write};
use crate::environment::Environment;
use crate::error::Class;
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// Suffix of the companion table's name.
pub const COMPANION_SUFFIX: &str = "_prefix_v2";

/// Most keys of one BatchGetItem (DynamoDB's limit).
const MOST_BATCH_KEYS: usize = 100;

/// BatchGetItem requests of one page in flight at once.
const BATCHES_IN_FLIGHT: usize = 4;

/// How long both copies of a key are asked for at one moment, before they are read apart.
const SETTLE_PATIENCE: Duration = Duration::from_secs(2);

/// Times that copies which were read apart, and differ, are read again.
const MOST_LOOKS: u32 = 20;

/// Keys that tokens are spent on; no item has one.
const SPENT_PREFIX: &str = "__lake_internal/dynamo-prefix-v2/spent/";

/// What an invocation keeps for its answer.
const ANSWER: Duration = Duration::from_secs(1);

/// How long a request is tried again where the caller does not say otherwise: time in which the process runs.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(20);

/// A client whose attempts are bounded (2 s to connect, 5 s each) and never repeated by the SDK.
pub fn client(config: impl Into<Builder>) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(2))
        .operation_attempt_timeout(Duration::from_secs(5))
        .build();
    Client::from_conf(config.into().retry_config(RetryConfig::disabled()).timeout_config(timeouts).build())
}

/// Both tables, their layout, and what a request takes from outside. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tables {
    client: Client,
    v1: String,
    v2: String,
    layout: Arc<Layout>,
    environment: Environment,
    clock: ServerClock,
    patience: Duration,
    limit: Option<Limit>,
    meter: Arc<Meter>,
}

/// One page of a scan or query.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Items in the order in which DynamoDB gave them, internal ones included.
    pub items: Vec<Item>,
    /// Where it goes on; `None` at the end.
    pub next: Option<Position>,
}

impl Tables {
    /// The table `v1` and its companion, `<v1>_prefix_v2` unless named.
    pub fn new(
        client: Client,
        v1: impl Into<String>,
        companion: Option<String>,
        layout: Layout,
        environment: Environment,
    ) -> Self {
        let clock = ServerClock::new(environment.clone());
        let config = client.config().to_builder().time_source(clock.clone());
        let client = Client::from_conf(config.disable_clock_skew_correction(true).build());
        let tables = Self {
            client,
            v1: String::new(),
            v2: String::new(),
            layout: Arc::default(),
            environment,
            clock,
            patience: DEFAULT_PATIENCE,
            limit: None,
            meter: Arc::default(),
        };
        tables.of(v1, companion, layout)
    }

    /// Two other tables by the same connections; what is known of the server's clock is kept.
    #[must_use]
    pub fn of(&self, v1: impl Into<String>, companion: Option<String>, layout: Layout) -> Self {
        let v1 = v1.into();
        let v2 = companion.unwrap_or_else(|| format!("{v1}{COMPANION_SUFFIX}"));
        Self { v1, v2, layout: Arc::new(layout), meter: Arc::default(), ..self.clone() }
    }

    /// The same tables with a meter of their own, for one step.
    #[must_use]
    pub fn metered(&self) -> Self {
        Self { meter: Arc::default(), ..self.clone() }
    }

    /// The same tables, whose requests are tried again for `patience`.
    #[must_use]
    pub fn patient(&self, patience: Duration) -> Self {
        Self { patience, ..self.clone() }
    }

    /// The same tables, for an invocation that ends when the budget's does: whatever waits then ends a second before,
    /// typed.
    #[must_use]
    pub fn until(&self, budget: &Budget) -> Self {
        let left = budget.time_to_deadline().map(|left| left.saturating_sub(ANSWER));
        let limit = left.map(|left| Limit::new(self.environment.moment(), left));
        Self { limit: limit.or(self.limit), ..self.clone() }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Time and randomness.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// What requests were charged.
    pub fn usage(&self) -> Usage {
        self.meter.usage()
    }

    /// Name of a table.
    pub fn name(&self, side: Side) -> &str {
        match side {
            Side::V1 => &self.v1,
            Side::V2 => &self.v2,
        }
    }

    /// Calls until it succeeds, fails for good, or the patience is out.
    async fn attempt<T, F, Fut>(&self, what: &str, mut call: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        let mut waiting = Waiting::new(self);
        loop {
            let signed = self.clock.now();
            let failure = match self.bounded(Box::pin(call())).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => self.judged(failure, signed),
            };
            self.meter.failed(&failure);
            if !failure.may_pass() || !waiting.again().await {
                return Err(failure.into_error(what));
            }
        }
    }

    /// An attempt, until the invocation's end at most.
    async fn bounded<T>(
        &self,
        call: Pin<Box<impl Future<Output = Result<T, Failure>>>>,
    ) -> Result<T, Failure> {
        match self.time_left() {
            None => call.await,
            Some(Duration::ZERO) => Err(Failure::Ended { sent: false }),
            Some(left) => {
                tokio::time::timeout(left, call).await.unwrap_or(Err(Failure::Ended { sent: true }))
            }
        }
    }

    /// A refused signature is one that the clock explains, and that is corrected then, or one that nothing mends.
    fn judged(&self, failure: Failure, signed: Timestamp) -> Failure {
        match failure {
            Failure::Clock { server, message } if !self.clock.correct(server, signed) => {
                Failure::signature(&message)
            }
            failure => failure,
        }
    }

    /// One item, strongly consistent; one read unit for each 4 KB.
    pub async fn get(&self, side: Side, key: &str) -> Result<Option<Item>> {
        let what = format!("reading {key:?} of {}", self.name(side));
        self.attempt(&what, || async {
            let answer = self
                .client
                .get_item()
                .table_name(self.name(side))
                .set_key(Some(self.primary_key(side, key)))
                .consistent_read(true)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| Failure::of(&error))?;
            self.meter.read("GetItem", answer.consumed_capacity());
            answer.item.map(|attributes| Item::parse(attributes, side)).transpose().map_err(Failure::Fatal)
        })
        .await
    }

    /// Many items, strongly consistent; keys that do not exist are absent from the answer.
    pub async fn get_many(&self, side: Side, keys: &[&str]) -> Result<HashMap<String, Item>> {
        let mut unique: Vec<_> = keys.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let batches: Vec<_> = unique
            .chunks(MOST_BATCH_KEYS)
            .map(|batch| self.get_batch(side, batch.iter().map(|key| self.primary_key(side, key)).collect()))
            .collect();
        let found: Vec<Vec<Item>> =
            futures::stream::iter(batches).buffered(BATCHES_IN_FLIGHT).try_collect().await?;
        Ok(found.into_iter().flatten().map(|item| (item.key.clone(), item)).collect())
    }

    async fn get_batch(
        &self,
        side: Side,
        mut wanted: Vec<HashMap<String, AttributeValue>>,
    ) -> Result<Vec<Item>> {
        let table = self.name(side);
        let what = format!("reading {} keys of {table}", wanted.len());
        let mut found = Vec::with_capacity(wanted.len());
        let mut waiting = Waiting::new(self);
        loop {
            let before = wanted.len();
            let answer = self
                .attempt(&what, || async {
                    let asked = KeysAndAttributes::builder()
                        .set_keys(Some(wanted.clone()))
                        .consistent_read(true)
                        .build()
                        .map_err(Failure::build)?;
                    self.client
                        .batch_get_item()
                        .request_items(table, asked)
                        .return_consumed_capacity(ReturnConsumedCapacity::Total)
                        .send()
                        .await
                        .map_err(|error| Failure::of(&error))
                })
                .await?;
            self.meter.reads("BatchGetItem", answer.consumed_capacity());
            for attributes in answer.responses.unwrap_or_default().remove(table).unwrap_or_default() {
                found.push(Item::parse(attributes, side)?);
            }
            wanted = answer
                .unprocessed_keys
                .and_then(|mut tables| tables.remove(table))
                .map(|left| left.keys)
                .unwrap_or_default();
            if wanted.is_empty() {
                return Ok(found);
            }
            // A full answer (16 MB) leaves keys over without any throttling; only no progress at all is waited for.
            if wanted.len() == before {
                self.meter.failed(&Failure::Throttled);
                if !waiting.again().await {
                    return Err(Failure::Throttled.into_error(&what));
                }
            }
        }
    }

    /// Both copies of a key at one moment (TransactGetItems): v1's, v2's.
    ///
    /// A key that v2 cannot hold is read from v1 alone.
    pub async fn get_both(&self, key: &str) -> Result<(Option<Item>, Option<Item>)> {
        if key.len() > MOST_V2_KEY_BYTES {
            return Ok((self.get(Side::V1, key).await?, None));
        }
        let what = format!("reading both copies of {key:?}");
        let get = |side: Side| -> Result<TransactGetItem, Failure> {
            let get = Get::builder()
                .table_name(self.name(side))
                .set_key(Some(self.primary_key(side, key)))
                .build()
                .map_err(Failure::build)?;
            Ok(TransactGetItem::builder().get(get).build())
        };
        self.attempt(&what, || async {
            let answer = self
                .client
                .transact_get_items()
                .transact_items(get(Side::V1)?)
                .transact_items(get(Side::V2)?)
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| Failure::of_transact_get(&error))?;
            self.meter.reads("TransactGetItems", answer.consumed_capacity());
            let mut responses = answer.responses.unwrap_or_default().into_iter();
            let mut next = |side: Side| {
                let attributes = responses.next().and_then(|response| response.item);
                let present = attributes.filter(|attributes| !attributes.is_empty());
                present.map(|attributes| Item::parse(attributes, side)).transpose().map_err(Failure::Fatal)
            };
            Ok((next(Side::V1)?, next(Side::V2)?))
        })
        .await
    }

    /// Both copies of a key: at one moment, or, where other requests keep winning, as they were read one after the
    /// other.
    ///
    /// A TransactGetItems loses to every write that is in progress, so a key that is written all the time may never be
    /// read by one; a strongly consistent GetItem loses to none. Of copies that were read apart, two that agree were
    /// there at the same time or one after the other, as a mirror is; two that differ are given only where no two reads
    /// in a row agreed.
    pub async fn get_settled(&self, key: &str) -> Result<(Option<Item>, Option<Item>)> {
        match self.patient(self.patience.min(SETTLE_PATIENCE)).get_both(key).await {
            Err(error) if error.kind().class() == Class::RetryLater => self.get_apart(key).await,
            read => read,
        }
    }

    async fn get_apart(&self, key: &str) -> Result<(Option<Item>, Option<Item>)> {
        let agree = |v1: &Option<Item>, v2: &Option<Item>| match (v1, v2) {
            (Some(v1), Some(v2)) => v1.value().is_some() && v1.value() == v2.value(),
            (None, None) => true,
            _ => false,
        };
        let mut v1 = self.get(Side::V1, key).await?;
        let mut v2 = self.get(Side::V2, key).await?;
        for _ in 0..MOST_LOOKS {
            if agree(&v1, &v2) {
                break;
            }
            tokio::time::sleep(self.environment.jitter(FIRST_PAUSE)).await;
            v1 = self.get(Side::V1, key).await?;
            if agree(&v1, &v2) {
                break;
            }
            v2 = self.get(Side::V2, key).await?;
        }
        Ok((v1, v2))
    }

    /// One page of one segment of a parallel scan, every item of the table.
    ///
    /// `limit` is the most items that are evaluated: 1 or more. With `consistent` the page costs 1 read unit for
    /// each 4 KB, without it half.
    pub async fn scan(
        &self,
        side: Side,
        (segment, segments): (u32, u32),
        limit: u32,
        after: Option<&Position>,
        consistent: bool,
    ) -> Result<Page> {
        let what = format!("scanning segment {segment} of {}", self.name(side));
        self.attempt(&what, || async {
            let answer = self
                .client
                .scan()
                .table_name(self.name(side))
                .segment(i32::try_from(segment).unwrap_or(i32::MAX))
                .total_segments(i32::try_from(segments).unwrap_or(i32::MAX))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .consistent_read(consistent)
                .set_exclusive_start_key(after.map(|position| self.start_key(side, position)))
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| Failure::of(&error))?;
            self.meter.read(scan_name(side), answer.consumed_capacity());
            page(answer.items, answer.last_evaluated_key, side)
        })
        .await
    }

    /// One page of a prefix in v1: a Scan with a filter, that pays for every item it passes. For v1 authority only.
    pub async fn scan_prefix(&self, prefix: &str, limit: u32, after: Option<&Position>) -> Result<Page> {
        let what = format!("scanning {} for {prefix:?}", self.name(Side::V1));
        self.attempt(&what, || async {
            let answer = self
                .client
                .scan()
                .table_name(self.name(Side::V1))
                .filter_expression("begins_with(#pk, :prefix)")
                .expression_attribute_names("#pk", "pk")
                .expression_attribute_values(":prefix", AttributeValue::S(prefix.to_owned()))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .consistent_read(true)
                .set_exclusive_start_key(after.map(|position| self.start_key(Side::V1, position)))
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| Failure::of(&error))?;
            self.meter.read(scan_name(Side::V1), answer.consumed_capacity());
            page(answer.items, answer.last_evaluated_key, Side::V1)
        })
        .await
    }

    /// One page of a prefix in one bucket of v2: one strongly consistent Query that evaluates at most `limit` items.
    pub async fn query(&self, bucket: &str, prefix: &str, limit: u32, after: Option<&str>) -> Result<Page> {
        let what = format!("querying {bucket} of {} for {prefix:?}", self.name(Side::V2));
        self.attempt(&what, || async {
            let start = after.map(|key| Position { bucket: Some(bucket.to_owned()), pk: key.to_owned() });
            let answer = self
                .client
                .query()
                .table_name(self.name(Side::V2))
                .key_condition_expression("#bucket = :bucket AND begins_with(#pk, :prefix)")
                .expression_attribute_names("#bucket", "bucket")
                .expression_attribute_names("#pk", "pk")
                .expression_attribute_values(":bucket", AttributeValue::S(bucket.to_owned()))
                .expression_attribute_values(":prefix", AttributeValue::S(prefix.to_owned()))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX))
                .consistent_read(true)
                .set_exclusive_start_key(start.map(|position| self.start_key(Side::V2, &position)))
                .return_consumed_capacity(ReturnConsumedCapacity::Total)
                .send()
                .await
                .map_err(|error| Failure::of(&error))?;
            self.meter.read("Query", answer.consumed_capacity());
            page(answer.items, answer.last_evaluated_key, Side::V2)
        })
        .await
    }

    /// Sends a transaction until it commits or its conditions fail.
    ///
    /// `token` is 32 hex digits, drawn once for these actions and kept over every resend of them. `Ok(Err(reasons))`
    /// says that conditions failed, and only conditions. `Contended`, `Throttled` and `Unavailable` say that nothing
    /// was applied; `OutcomeUnknown` that an answer was lost and every resend within the patience too.
    ///
    /// Refused after a lost answer, an earlier copy of a mutation may still be on its way, and its conditions may hold
    /// again by the time it arrives. So its token is spent on a request that changes nothing before the refusal is
    /// believed: DynamoDB refuses every other request of that token for ten minutes, longer than a signature is good
    /// for. What is bound to a record of ours needs none of that: no record has the same bytes twice.
    ///
    /// Nothing is sent under a token that is four minutes old, whatever the process or its machine did meanwhile, and
    /// nothing that ends a request after a lost answer says what became of the first one: both are `OutcomeUnknown`. As
    /// long as every answer came, and each said that nothing was applied, an old token gives way to a new one.
    pub async fn transact(&self, transaction: &Transaction, token: &str) -> Result<Result<(), Vec<Reason>>> {
        transaction.check(&self.layout)?;
        let what = self.describe_transaction(transaction);
        let items: Result<Vec<_>, _> =
            transaction.actions.iter().map(|action| self.write_item(action)).collect();
        let items = items.map_err(|failure| failure.into_error(&what))?;
        let mut waiting = Waiting::new(self);
        let mut sending = Sending::new(token.to_owned(), &self.clock);
        let mut spending = None;
        let mut answer_lost = false;
        let bound = transaction.actions.iter().any(|action| action.role == Role::Record);
        let (mut refused, mut doubted) = (None, false);
        loop {
            let failure = match self.send(items.clone(), &sending).await {
                Ok(()) => return Ok(Ok(())),
                // The token was spent, and the answer to that was lost.
                Err(Failure::TokenUsed) if refused.is_some() && !doubted => {
                    return Ok(Err(refused.unwrap_or_default()));
                }
                Err(Failure::Cancelled(reasons)) => match classify(&reasons) {
                    Cancelled::Conditions(_) if !answer_lost || bound => return Ok(Err(reasons)),
                    // The server has said that the token was used, and judges its request as if it was not.
                    Cancelled::Conditions(_) if doubted => Failure::TokenUsed,
                    Cancelled::Conditions(_) => {
                        let spending = spending.get_or_insert_with(|| sending.of_another_body());
                        match self.spend(transaction, spending).await {
                            Ok(()) => return Ok(Err(reasons)),
                            // By this transaction, if the server is right: only a resend that succeeds says so.
                            Err(Failure::TokenUsed) => {
                                doubted = true;
                                continue;
                            }
                            Err(failure) => {
                                refused = Some(reasons);
                                failure
                            }
                        }
                    }
                    Cancelled::Conflict => Failure::Conflict,
                    Cancelled::Throttled => Failure::Throttled,
                    Cancelled::Unexplained => {
                        Failure::Passing("the transaction was cancelled without a reason".to_owned())
                    }
                    Cancelled::Invalid(index) => {
                        self.refused(transaction, index, ErrorKind::InvalidInput, "is not valid")
                    }
                    Cancelled::AccessDenied(index) => {
                        self.refused(transaction, index, ErrorKind::AccessDenied, "is not allowed")
                    }
                    Cancelled::Unknown(index) => {
                        let text =
                            format!("failed for a reason that this version does not know: {reasons:?}");
                        self.refused(transaction, index, ErrorKind::Internal, &text)
                    }
                },
                Err(failure) => failure,
            };
            self.meter.failed(&failure);
            answer_lost |= failure.is_lost();
            let stays_unknown = answer_lost && failure.needs_token();
            if failure.needs_token() && !answer_lost {
                sending = Sending::new(self.environment.id(), &self.clock);
            }
            if stays_unknown || !failure.may_pass() || !waiting.again().await {
                return Err(if answer_lost {
                    Error::new(ErrorKind::OutcomeUnknown, format!("{what}: the answer was lost: {failure}"))
                        .next("read the key; the write may or may not have landed")
                } else {
                    failure.into_error(&what)
                });
            }
        }
    }

    /// Uses a token up: on a check of an item that nobody ever writes, in a table that the transaction writes.
    async fn spend(&self, transaction: &Transaction, spending: &Sending) -> Result<(), Failure> {
        let check = transaction.actions.first().map(|first| Action {
            key: format!("{SPENT_PREFIX}{}", spending.token()),
            write: Write::Check,
            condition: Condition::Absent,
            role: Role::Record,
            ..first.clone()
        });
        let items = check.iter().map(|check| self.write_item(check)).collect::<Result<_, _>>()?;
        self.send(items, spending).await.map_err(|failure| match failure {
            Failure::Cancelled(reasons) => match classify(&reasons) {
                Cancelled::Throttled => Failure::Throttled,
                _ => Failure::Passing(format!("spending a token was refused: {reasons:?}")),
            },
            failure => failure,
        })
    }

    async fn send(&self, items: Vec<TransactWriteItem>, sending: &Sending) -> Result<(), Failure> {
        let signed = self.clock.now();
        let sent = self.bounded(Box::pin(async {
            let request = self
                .client
                .transact_write_items()
                .set_transact_items(Some(items))
                .client_request_token(sending.token())
                .return_consumed_capacity(ReturnConsumedCapacity::Total);
            let answer = request.customize().interceptor(sending.clone()).send().await;
            let answer = answer.map_err(|error| match sending.is_late() {
                true => Failure::Late,
                false => Failure::of_transact_write(&error),
            })?;
            self.meter.writes("TransactWriteItems", answer.consumed_capacity());
            Ok(())
        }));
        sent.await.map_err(|failure| self.judged(failure, signed))
    }

    fn describe_transaction(&self, transaction: &Transaction) -> String {
        let first = transaction.actions.first();
        let key = first.map(|action| format!("{:?} of {}", action.key, self.name(action.side)));
        format!(
            "writing {} and {} more",
            key.unwrap_or_default(),
            transaction.actions.len().saturating_sub(1)
        )
    }

    fn refused(&self, transaction: &Transaction, index: usize, kind: ErrorKind, text: &str) -> Failure {
        let action = transaction.actions.get(index);
        let item = action.map(|action| format!("{:?} of {}", action.key, self.name(action.side)));
        let error = Error::new(kind, format!("the write of {} {text}", item.unwrap_or_default()));
        Failure::Fatal(if kind == ErrorKind::AccessDenied {
            error.next(failure::GRANT_ACCESS)
        } else {
            error
        })
    }

    /// A record of the migrator and the bytes that it was read from, strongly consistent; `None` where there is none.
    ///
    /// `NewerRecord` where its version is newer, `Corruption` where it is not of the documented form.
    pub async fn load<R: Record>(&self, key: &str) -> Result<Option<Stored<R>>> {
        self.get(Side::V1, key).await?.map(|item| stored(item)).transpose()
    }

    /// Many records of the migrator, by key; those that do not exist are absent. Errors as those of [`Self::load`].
    pub async fn load_many<R: Record>(&self, keys: &[String]) -> Result<HashMap<String, Stored<R>>> {
        let asked: Vec<_> = keys.iter().map(String::as_str).collect();
        let items = self.get_many(Side::V1, &asked).await?;
        items.into_iter().map(|(key, item)| Ok((key, stored(item)?))).collect()
    }

    /// Writes one record on exactly what was read; `false`: it lost.
    ///
    /// The record's bytes must be ones that nobody else writes, or a lost answer cannot be told apart.
    pub async fn put_record<R: Record>(&self, key: &str, read: Option<&[u8]>, record: &R) -> Result<bool> {
        let bytes = records::encode(record)?;
        let write = Write::Put(bytes.clone());
        let transaction = Transaction { actions: vec![Action::record(key, read, write)] };
        match self.transact(&transaction, &self.environment.id()).await? {
            Ok(()) => Ok(true),
            Err(_) => Ok(self.get(Side::V1, key).await?.is_some_and(|item| item.value() == Some(&bytes[..]))),
        }
    }
}

fn stored<R: Record>(item: Item) -> Result<Stored<R>> {
    match item.content {
        Content::Value(bytes) => Ok(Stored { record: records::decode(&item.key, &bytes)?, bytes }),
        Content::Unsupported(detail) => {
            Err(Error::new(ErrorKind::Corruption, format!("record {}: {detail}", item.key)))
        }
    }
}

fn scan_name(side: Side) -> &'static str {
    match side {
        Side::V1 => "Scan v1",
        Side::V2 => "Scan v2",
    }
}

/// An empty `LastEvaluatedKey` is the end, as no `LastEvaluatedKey` is; an empty page with one is a page.
fn page(
    items: Option<Vec<HashMap<String, AttributeValue>>>,
    last: Option<HashMap<String, AttributeValue>>,
    side: Side,
) -> Result<Page, Failure> {
    let items: Result<Vec<_>> =
        items.unwrap_or_default().into_iter().map(|attributes| Item::parse(attributes, side)).collect();
    let next = last.filter(|key| !key.is_empty()).map(|key| convert::position(&key, side)).transpose();
    Ok(Page { items: items.map_err(Failure::Fatal)?, next: next.map_err(Failure::Fatal)? })
}
