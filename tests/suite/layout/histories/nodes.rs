//! Metadata nodes that write and read a few hot keys and put down what they were answered.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metashift::layout::{Authority, MetaStore, Mode, Mutation};
use metashift::{Error, ErrorKind, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Stage;
use super::cast::tables_at;
use super::checker::{Call, Operation, Value};

/// The keys that nodes fight over, in several families and buckets.
pub(super) const KEYS: [&str; 8] = [
    "tbl/hot/a",
    "tbl/hot/b",
    "append-operation/v1/hot",
    "lance-manifest/ns/hot",
    "lease-hot",
    "root/hot",
    "tbl/hot/é",
    "append-active/v1/hot",
];

/// Operations by number of key, in no order.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<(usize, Operation)>>);

impl Log {
    fn put(&self, key: usize, operation: Operation) {
        self.0.lock().unwrap().push((key, operation));
    }

    pub(super) fn take(&self) -> Vec<(usize, Operation)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// One node.
pub(super) struct Node {
    stage: Arc<Stage>,
    name: String,
    store: MetaStore,
    random: SmallRng,
    seed: u64,
    /// What it last saw of each key.
    seen: HashMap<usize, Value>,
    written: u32,
}

fn text(value: Option<Vec<u8>>) -> Value {
    value.map(|value| String::from_utf8(value).unwrap())
}

impl Node {
    /// A node behind the weather that does not wait long for anything.
    pub(super) async fn open(
        stage: &Arc<Stage>,
        name: &str,
        mode: Mode,
        seed: u64,
        initial: &[Value],
    ) -> Self {
        let store = open_store(stage, mode, seed).await;
        Self::over(stage, name, store, seed, initial)
    }

    pub(super) fn over(
        stage: &Arc<Stage>,
        name: &str,
        store: MetaStore,
        seed: u64,
        initial: &[Value],
    ) -> Self {
        Self {
            stage: Arc::clone(stage),
            name: name.to_owned(),
            store,
            random: SmallRng::seed_from_u64(seed),
            seed,
            seen: initial.iter().cloned().enumerate().collect(),
            written: 0,
        }
    }

    pub(super) async fn work(mut self, operations: u32) {
        for _ in 0..operations {
            self.act().await;
            let pause = self.random.random_range(0..12_u64);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Rolled back to v1-only for a while, then in dual mode again.
    pub(super) async fn work_then_roll_forward(mut self, before: u32, after: u32) {
        for _ in 0..before {
            self.act().await;
        }
        self.store = open_store(&self.stage, Mode::Dual, self.seed).await;
        self.name = format!("{}-again", self.name);
        self.work(after).await;
    }

    pub(super) async fn read_all(&mut self) {
        for key in 0..KEYS.len() {
            self.read(key).await;
        }
    }

    pub(super) async fn write_all(&mut self) {
        for key in 0..KEYS.len() {
            self.write(key).await;
        }
    }

    /// A node that has not looked since before the marker: what it knows of v1 is old, and it begins by writing.
    pub(super) async fn wake(mut self, operations: u32) {
        self.write_all().await;
        if self.store.authority() == Authority::V2 {
            self.work(operations).await;
        }
    }

    fn tick(&self) -> u64 {
        self.stage.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn put(&self, key: usize, begin: u64, call: Call) {
        let end = self.tick();
        self.stage.log.put(key, Operation { node: self.name.clone(), begin, end, call });
    }

    async fn act(&mut self) {
        let key = self.random.random_range(0..self.stage.cast.hot);
        if self.random.random_range(0..10_u32) < 3 {
            self.read(key).await;
        } else {
            self.write(key).await;
        }
    }

    async fn read(&mut self, key: usize) {
        let begin = self.tick();
        match self.store.get(KEYS[key]).await {
            Ok(value) => {
                let value = text(value);
                self.seen.insert(key, value.clone());
                self.put(key, begin, Call::Read(value));
            }
            Err(error) => self.judge(&error),
        }
    }

    async fn write(&mut self, key: usize) {
        let expected = self.seen.get(&key).cloned().flatten();
        self.written += 1;
        let delete = expected.is_some() && self.random.random_range(0..10_u32) < self.stage.cast.deletes;
        let new = (!delete).then(|| format!("{}-{}", self.name, self.written));
        let begin = self.tick();
        let bytes = |value: &Value| value.as_ref().map(|value| value.as_bytes().to_vec());
        let (from, to) = (bytes(&expected), bytes(&new));
        match self.store.cas(KEYS[key], from.as_deref(), to.as_deref()).await {
            Ok(Mutation::Applied) => {
                self.seen.insert(key, new.clone());
                self.put(key, begin, Call::Applied { expected, new });
            }
            Ok(Mutation::Conflict { current }) => {
                let current = text(current);
                self.seen.insert(key, current.clone());
                self.put(key, begin, Call::Conflict { expected, current });
            }
            Ok(Mutation::GuardLost) => self.stage.violation(format!("{}: a guard was lost", self.name)),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                self.put(key, begin, Call::Unknown { expected, new });
            }
            Err(error) => self.judge(&error),
        }
    }

    /// Errors that say that nothing was applied and that a node lives with.
    fn judge(&self, error: &Error) {
        let lives_with = match error.kind() {
            ErrorKind::BarrierHeld
            | ErrorKind::Contended
            | ErrorKind::Throttled
            | ErrorKind::Unavailable
            | ErrorKind::AlreadyFinalized => true,
            ErrorKind::Divergence => !self.stage.cast.always_dual,
            _ => false,
        };
        if !lives_with {
            self.stage.violation(format!("{}: {error}", self.name));
        }
    }
}

/// Opens a store through the weather.
async fn open_store(stage: &Stage, mode: Mode, seed: u64) -> MetaStore {
    let tables = tables_at(&stage.proxy, stage.cast.clock(seed)).patient(Duration::from_millis(300));
    loop {
        let opened: Result<_> = MetaStore::open(tables.metered(), mode).await;
        match opened {
            Ok(store) => return store,
            // Rolled back too late: it can only work in dual mode.
            Err(error) if error.kind() == ErrorKind::AlreadyFinalized => {
                return stage.lake.store(Mode::Dual).await;
            }
            Err(_) => {}
        }
    }
}
