//! Metadata nodes that write and read a few hot keys and put down what they were answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use metashift::environment::{Clock, Entropy, SystemEntropy};
use metashift::layout::{Authority, MetaStore, Mode, Mutation, Tables};
use metashift::{Error, ErrorKind, Result};
use metashift_faults::{Fault, Proxy, Rule};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Stage;
use super::cast::{Kind, tables_at, tables_in};
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
    let tables = match stage.cast.kind {
        Kind::Frozen => Frozen::tables(stage, seed).await,
        _ => tables_at(&stage.proxy, stage.cast.clock(seed)),
    };
    let tables = tables.patient(Duration::from_millis(300));
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

/// A process that now and then stands still for 12 minutes: its clock goes on, and the server forgets its tokens. Time that
/// a history owns: no test waits for it. Most of what a node draws are its tokens and the lengths of its pauses.
struct Frozen {
    random: Mutex<SmallRng>,
    clock: Arc<Going>,
    proxy: Proxy,
    times: AtomicU32,
}

impl Frozen {
    async fn tables(stage: &Stage, seed: u64) -> Tables {
        let clock = Arc::new(Going { clock: stage.cast.clock(seed), ahead: AtomicI64::new(0) });
        let proxy = Proxy::start(&stage.proxy.endpoint(), 0).await.unwrap();
        // One token from now on is always forwarded as one token.
        proxy.add(forgotten(0));
        let endpoint = proxy.endpoint();
        let random = Mutex::new(SmallRng::seed_from_u64(seed ^ 0xf0));
        let entropy = Self { random, clock: Arc::clone(&clock), proxy, times: AtomicU32::new(0) };
        tables_in(&endpoint, clock, Arc::new(entropy))
    }
}

fn forgotten(times: u32) -> Rule {
    Rule::new("forgotten", Fault::Forgotten { times }).on("TransactWriteItems")
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frozen").finish_non_exhaustive()
    }
}

impl Entropy for Frozen {
    fn next(&self) -> u128 {
        let mut random = self.random.lock().unwrap();
        if random.random_range(0..8_u32) == 0 {
            self.clock.ahead.fetch_add(12 * 60, Ordering::SeqCst);
            self.proxy.add(forgotten(self.times.fetch_add(1, Ordering::SeqCst) + 1));
        }
        SystemEntropy.next()
    }
}

/// A clock that a history moves.
#[derive(Debug)]
struct Going {
    clock: Arc<dyn Clock>,
    ahead: AtomicI64,
}

impl Clock for Going {
    fn now(&self) -> Timestamp {
        self.clock.now() + SignedDuration::from_secs(self.ahead.load(Ordering::SeqCst))
    }
}
