//! Tables on a server of the test's own, and ways to look at them apart from the product.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ConditionCheck, Delete, TransactWriteItem};
use jiff::{SignedDuration, Timestamp};
use metashift::crash::{self, Hook};
use metashift::environment::{Clock, Environment, SystemClock, SystemEntropy};
use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::generation::{PlanWish, load_plan};
use metashift::layout::key::is_internal;
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::{self, Audited, OnFailure, Plan, State};
use metashift::layout::records::segment::{Segment, Walk};
use metashift::layout::records::{self, BARRIER_KEY, BARRIER_VALUE, MARKER_KEY, MARKER_VALUE};
use metashift::layout::run::Run;
use metashift::layout::transaction::Side;
use metashift::layout::{Layout, MetaStore, Mode, Tables};
use metashift::step::Budget;
use metashift_faults::Proxy;
use metashift_sandbox::{Server, seed};
use tokio::sync::Semaphore;

/// The table of every test.
pub(crate) const TABLE: &str = "lake";

/// A server with both tables, and the product's view of them.
pub(crate) struct Lake {
    /// Stops with the lake.
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) tables: Tables,
}

impl Lake {
    /// Both tables, v1 seeded with `items` items.
    pub(crate) async fn with_items(items: u32) -> Self {
        let server = Server::start(0).await.unwrap();
        let client = server.client();
        seed::create_tables(&client, TABLE, true).await.unwrap();
        seed::fill(&client, TABLE, items).await.unwrap();
        let tables = tables(client.clone());
        Self { server, client, tables }
    }

    /// Both tables, empty.
    pub(crate) async fn empty() -> Self {
        Self::with_items(0).await
    }

    /// Puts an item as it is, as nobody in the field would, to make a state for a test.
    pub(crate) async fn put(&self, side: Side, key: &str, value: &[u8]) {
        self.put_in(side, &Layout::default().bucket(key), key, value).await;
    }

    /// As [`Self::put`]; for v2 in any bucket.
    pub(crate) async fn put_in(&self, side: Side, bucket: &str, key: &str, value: &[u8]) {
        self.put_item(side, bucket, key, Some(value)).await;
    }

    /// Puts an item that has a key and nothing else.
    pub(crate) async fn put_bare(&self, side: Side, key: &str) {
        self.put_item(side, &Layout::default().bucket(key), key, None).await;
    }

    async fn put_item(&self, side: Side, bucket: &str, key: &str, value: Option<&[u8]>) {
        let table = self.tables.name(side);
        let mut put = self.client.put_item().table_name(table).item("pk", AttributeValue::S(key.to_owned()));
        if let Some(value) = value {
            put = put.item("val", AttributeValue::B(Blob::new(value)));
        }
        if side == Side::V2 {
            put = put.item("bucket", AttributeValue::S(bucket.to_owned()));
        }
        put.send().await.unwrap();
    }

    /// Deletes an item as it is.
    pub(crate) async fn remove(&self, side: Side, key: &str) {
        let mut delete = self
            .client
            .delete_item()
            .table_name(self.tables.name(side))
            .key("pk", AttributeValue::S(key.to_owned()));
        if side == Side::V2 {
            delete = delete.key("bucket", AttributeValue::S(Layout::default().bucket(key)));
        }
        delete.send().await.unwrap();
    }

    /// Takes the write barrier away where it stands and no marker is there; `false` where not.
    pub(crate) async fn remove_barrier(&self) -> bool {
        let key = |name: &str| HashMap::from([("pk".to_owned(), AttributeValue::S(name.to_owned()))]);
        let delete = Delete::builder()
            .table_name(TABLE)
            .set_key(Some(key(BARRIER_KEY)))
            .condition_expression("attribute_exists(pk)");
        let check = ConditionCheck::builder()
            .table_name(TABLE)
            .set_key(Some(key(MARKER_KEY)))
            .condition_expression("attribute_not_exists(pk)");
        let delete = TransactWriteItem::builder().delete(delete.build().unwrap()).build();
        let check = TransactWriteItem::builder().condition_check(check.build().unwrap()).build();
        let sent =
            self.client.transact_write_items().transact_items(delete).transact_items(check).send().await;
        match sent.map_err(|error| error.into_service_error()) {
            Ok(_) => true,
            Err(error) if error.is_transaction_canceled_exception() => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// An item's value as it is stored.
    pub(crate) async fn value(&self, side: Side, key: &str) -> Option<Vec<u8>> {
        self.tables.get(side, key).await.unwrap().map(|item| item.value().unwrap().to_vec())
    }

    /// Puts barrier, marker and a final plan as a finalization and a clean audit leave them.
    pub(crate) async fn publish_audited(&self) {
        self.publish().await;
        let first = || Plan::first(Layout::default().fingerprint(), 1);
        let plan = self.plan().await.unwrap_or_else(first);
        self.put_plan(&Plan { state: State::Final, ..plan }).await;
        self.stamp_audit().await;
    }

    /// Puts barrier and marker as another migrator's finalization leaves them.
    pub(crate) async fn publish(&self) {
        self.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
        self.put(Side::V1, MARKER_KEY, MARKER_VALUE).await;
    }

    /// Says in the plan that an audit after the marker was clean.
    pub(crate) async fn stamp_audit(&self) {
        let audited = Some(Audited { at: SystemClock.now(), run: "audit".to_owned() });
        let plan = self.plan().await.unwrap();
        self.put_plan(&Plan { audited, ..plan }).await;
    }

    /// Puts a plan as it is.
    pub(crate) async fn put_plan(&self, plan: &Plan) {
        self.put(Side::V1, plan::KEY, &records::encode(plan).unwrap()).await;
    }

    /// Everything in both tables, for "nothing was changed".
    pub(crate) async fn everything(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        (self.v1().await, self.v2().await)
    }

    /// A proxy in front of the lake's server, without rules.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(&self.server.endpoint(), 0).await.unwrap()
    }

    /// A run over `tables` with `segments` segments and pages of `page_size` items.
    pub(crate) fn run_with(&self, tables: &Tables, segments: u32, page_size: u32) -> Run {
        Run { tables: tables.clone(), page_size, ..self.run(segments) }
    }

    /// A segment's record.
    pub(crate) async fn segment(&self, walk: &Walk, segment: u32) -> Option<Segment> {
        self.tables.load(&walk.key(segment)).await.unwrap().map(|stored| stored.record)
    }

    /// The plan.
    pub(crate) async fn plan(&self) -> Option<Plan> {
        load_plan(&self.tables).await.unwrap().map(|stored| stored.record)
    }

    /// The same tables under a clock that a test moves.
    pub(crate) fn tables_at(&self, clock: &Arc<ShiftedClock>) -> Tables {
        let clock: Arc<dyn Clock> = Arc::clone(clock) as _;
        let environment = Environment { clock, entropy: Arc::new(SystemEntropy) };
        Tables::new(self.client.clone(), TABLE, None, Layout::default(), environment)
    }

    pub(crate) async fn store(&self, mode: Mode) -> MetaStore {
        MetaStore::open(self.tables.metered(), mode).await.unwrap()
    }

    /// A run over this lake with `segments` segments.
    pub(crate) fn run(&self, segments: u32) -> Run {
        Run {
            tables: self.tables.clone(),
            wish: PlanWish { segments: Some(segments), new_generation: false },
            accepted: Accepted::default(),
            page_size: 200,
            pages_per_step: 2,
            observer: Arc::new(|_| {}),
        }
    }

    /// Every item of v1 by key, internal ones apart.
    pub(crate) async fn v1(&self) -> BTreeMap<String, Vec<u8>> {
        dump(&self.client, TABLE).await.into_iter().map(|(key, (_, value))| (key, value)).collect()
    }

    /// Every item of v2 by key, with its bucket.
    pub(crate) async fn v2(&self) -> BTreeMap<String, (Option<String>, Vec<u8>)> {
        dump(&self.client, &format!("{TABLE}_prefix_v2")).await
    }

    /// v1 and v2 hold the same user items, each of v2 in its bucket; gives how many.
    pub(crate) async fn assert_equal(&self) -> usize {
        let layout = Layout::default();
        let v1 = self.v1().await;
        let users: BTreeMap<_, _> = v1.into_iter().filter(|(key, _)| !is_internal(key)).collect();
        let v2 = self.v2().await;
        for (key, (bucket, _)) in &v2 {
            assert_eq!(bucket.as_deref(), Some(layout.bucket(key).as_str()), "{key}");
        }
        let copies: BTreeMap<_, _> = v2.into_iter().map(|(key, (_, value))| (key, value)).collect();
        assert!(users == copies, "{} items in v1, {} in v2", users.len(), copies.len());
        users.len()
    }
}

/// The system's clocks, ahead by as much as a test says.
#[derive(Debug, Default)]
pub(crate) struct ShiftedClock {
    wall: AtomicI64,
    boot: AtomicI64,
}

impl ShiftedClock {
    /// Both go ahead by `time`.
    pub(crate) fn advance(&self, time: Duration) {
        let millis = i64::try_from(time.as_millis()).unwrap();
        self.shift(millis, millis);
    }

    /// Each goes by so many milliseconds, ahead or back.
    pub(crate) fn shift(&self, wall: i64, boot: i64) {
        self.wall.fetch_add(wall, Ordering::SeqCst);
        self.boot.fetch_add(boot, Ordering::SeqCst);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Timestamp {
        SystemClock.now() + SignedDuration::from_millis(self.wall.load(Ordering::SeqCst))
    }

    fn boot(&self) -> Duration {
        SystemClock.boot() + Duration::from_millis(self.boot.load(Ordering::SeqCst).try_into().unwrap())
    }
}

/// The product's view of both tables through any client.
pub(crate) fn tables(client: Client) -> Tables {
    Tables::new(client, TABLE, None, Layout::default(), Environment::system())
}

/// The product's view of both tables through a proxy.
pub(crate) fn tables_through(proxy: &Proxy) -> Tables {
    tables(metashift_sandbox::server::client(&proxy.endpoint()))
}

/// No bound but the number of pages.
pub(crate) fn pages(pages: u32) -> Budget {
    Budget::unbounded(Environment::system()).with_pages(Some(pages))
}

/// A hook that waits at `point` the first time: `reached` says that it is there, `thaw` lets it go on.
pub(crate) struct Freeze {
    pub(crate) hook: Hook,
    reached: Arc<Semaphore>,
    thaw: Arc<Semaphore>,
}

impl Freeze {
    pub(crate) fn at(point: &'static str) -> Self {
        Self::at_nth(point, 1)
    }

    pub(crate) fn at_nth(point: &'static str, nth: u32) -> Self {
        assert!(crash::ALL.contains(&point), "{point}");
        let (reached, thaw) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (signal, wait) = (Arc::clone(&reached), Arc::clone(&thaw));
        let seen = Arc::new(AtomicU32::new(0));
        let hook: Hook = Arc::new(move |at| {
            let (signal, wait, seen) = (Arc::clone(&signal), Arc::clone(&wait), Arc::clone(&seen));
            Box::pin(async move {
                if at == point && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
                    signal.add_permits(1);
                    wait.acquire().await.unwrap().forget();
                }
            })
        });
        Self { hook, reached, thaw }
    }

    pub(crate) async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }

    pub(crate) fn thaw(&self) {
        self.thaw.add_permits(1);
    }
}

/// A hook that does something each time at `point`.
pub(crate) fn on<F>(point: &'static str, act: impl Fn() -> F + Send + Sync + 'static) -> Hook
where
    F: Future<Output = ()> + Send + 'static,
{
    assert!(crash::ALL.contains(&point), "{point}");
    Arc::new(move |at| if at == point { Box::pin(act()) } else { Box::pin(async {}) })
}

/// A person's word that every writer is dual.
pub(crate) fn acknowledged() -> Evidence {
    Evidence::Acknowledged(true)
}

/// A cutover with a fresh epoch and paused writers.
pub(crate) fn start(epoch: &str) -> Start {
    Start {
        epoch: epoch.to_owned(),
        deadline: Duration::from_secs(600),
        on_failure: OnFailure::Release,
        writes_paused: true,
        under_load: false,
        owner: "local:test".to_owned(),
        adopt_foreign_barrier: false,
        seen: None,
    }
}

/// A number that the environment gives, or the default.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}: {error}")))
}

/// A whole table, read by plain scans.
pub(crate) async fn dump(client: &Client, table: &str) -> BTreeMap<String, (Option<String>, Vec<u8>)> {
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
            .unwrap();
        for item in page.items.unwrap_or_default() {
            let text = |name: &str| item.get(name).and_then(|value| value.as_s().ok()).cloned();
            let value = match item.get("val") {
                Some(AttributeValue::B(value)) => value.clone().into_inner(),
                _ => Vec::new(),
            };
            found.insert(text("pk").unwrap(), (text("bucket"), value));
        }
        start = page.last_evaluated_key.filter(|key| !key.is_empty());
        if start.is_none() {
            return found;
        }
    }
}

/// A person ends a cutover.
pub(crate) const ABORT: metashift::layout::cutover::Why = metashift::layout::cutover::Why::Abort;
