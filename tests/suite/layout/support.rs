//! Tables on a server of the test's own, and ways to look at them apart from the product.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use metashift::environment::Environment;
use metashift::layout::cutover::Start;
use metashift::layout::generation::PlanWish;
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::OnFailure;
use metashift::layout::run::Run;
use metashift::layout::{Layout, MetaStore, Mode, Tables};
use metashift_sandbox::{Server, seed};

/// The table of every test.
pub(crate) const TABLE: &str = "lake";

/// A server with both tables, and the product's view of them.
pub(crate) struct Lake {
    /// Stops with the lake.
    _server: Server,
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
        Self { _server: server, client, tables }
    }

    pub(crate) async fn store(&self, mode: Mode) -> MetaStore {
        MetaStore::open(self.tables.metered(), mode).await.unwrap()
    }

    /// A run over this lake with `segments` segments.
    pub(crate) fn run(&self, segments: u32) -> Run {
        Run {
            tables: self.tables.clone(),
            wish: PlanWish { segments: None, default_segments: segments, new_generation: false },
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
        let users: BTreeMap<_, _> =
            v1.into_iter().filter(|(key, _)| !key.starts_with("__lake_internal/")).collect();
        let v2 = self.v2().await;
        for (key, (bucket, _)) in &v2 {
            assert_eq!(bucket.as_deref(), Some(layout.bucket(key).as_str()), "{key}");
        }
        let copies: BTreeMap<_, _> = v2.into_iter().map(|(key, (_, value))| (key, value)).collect();
        assert!(users == copies, "{} items in v1, {} in v2", users.len(), copies.len());
        users.len()
    }
}

/// The product's view of both tables through any client.
pub(crate) fn tables(client: Client) -> Tables {
    Tables::new(client, TABLE, None, Layout::default(), Environment::system())
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
    }
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
