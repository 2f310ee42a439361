//! Live writers and a reader that checks every acknowledged value, running beside a migration.
//!
//! Each writer owns its keys, so the last acknowledged value of a key is known. A reader's answer counts only where
//! no write of that key was in flight around it. One mutation in ten puts lake's signal key too, which has no owner.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metashift::layout::key::LAKE_SIGNAL_KEY;
use metashift::layout::{MetaStore, Mutation};
use metashift::{ErrorKind, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use crate::seed;

/// What a write put; `None`: it deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written(Option<Vec<u8>>);

/// What is known of a key.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Last acknowledged value.
    value: Option<Vec<u8>>,
    /// A write whose outcome is not known: the value may be this instead.
    maybe: Option<Written>,
    /// Acknowledged or unknown writes so far.
    version: u64,
    /// A write is in flight.
    writing: bool,
}

/// How much the workload did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Creates, updates and deletes acknowledged.
    pub applied: u64,
    /// Mutations refused while the barrier stood.
    pub barrier_held: u64,
    /// Mutations refused or failed for another reason that a node retries.
    pub retried: u64,
    /// Answers of the reader that were checked.
    pub checked: u64,
    /// Acknowledged values that a read did not show; must stay empty.
    pub violations: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<HashMap<String, Known>>,
    applied: AtomicU64,
    barrier_held: AtomicU64,
    retried: AtomicU64,
    checked: AtomicU64,
    violations: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Shared {
    fn known<T>(&self, key: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        change(known.entry(key.to_owned()).or_default())
    }

    fn violation(&self, text: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// Running writers and a reader.
#[derive(Debug)]
pub struct Workload {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Workload {
    /// Starts one writer for each store and one reader over `reader`, on a table seeded with `items` items.
    ///
    /// Each writer makes one mutation every `pause`; `seed` decides what they do.
    pub fn start(stores: Vec<MetaStore>, reader: MetaStore, items: u32, pause: Duration, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        {
            let mut known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
            for n in 0..items {
                known.insert(seed::key(n), Known { value: Some(seed::value(n)), ..Known::default() });
            }
        }
        let mut tasks = JoinSet::new();
        let writers = u32::try_from(stores.len()).unwrap_or(u32::MAX);
        for (number, store) in (0_u32..).zip(stores) {
            let writer = Writer {
                store,
                shared: Arc::clone(&shared),
                random: SmallRng::seed_from_u64(seed ^ (u64::from(number) << 32)),
                number,
                writers,
                items,
                written: 0,
            };
            tasks.spawn(writer.run(pause));
        }
        let random = SmallRng::seed_from_u64(seed ^ u64::MAX);
        tasks.spawn(read(reader, Arc::clone(&shared), random, pause));
        Self { shared, tasks }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            applied: load(&self.shared.applied),
            barrier_held: load(&self.shared.barrier_held),
            retried: load(&self.shared.retried),
            checked: load(&self.shared.checked),
            violations: self.shared.violations.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Stops everything, then reads every key once more through `store` and checks it.
    pub async fn finish(mut self, store: &MetaStore) -> Result<Counts> {
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let known = self.shared.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (key, known) in &known {
            let found = store.get(key).await?;
            self.shared.checked.fetch_add(1, Ordering::Relaxed);
            if found != known.value && known.maybe.as_ref().map(|written| &written.0) != Some(&found) {
                self.shared.violation(format!("{key:?} at the end"));
            }
        }
        Ok(self.counts())
    }
}

struct Writer {
    store: MetaStore,
    shared: Arc<Shared>,
    random: SmallRng,
    number: u32,
    writers: u32,
    items: u32,
    written: u64,
}

impl Writer {
    async fn run(mut self, pause: Duration) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.mutate().await;
            tokio::time::sleep(pause).await;
        }
    }

    /// A seeded key of this writer or one of its own.
    fn pick(&mut self) -> String {
        let own = self.random.random_range(0..4_u32) == 0;
        if own || self.items < self.writers {
            let n = self.random.random_range(0..200_u32);
            let family = if n % 3 == 0 { "tbl/live" } else { "append-operation/live" };
            return format!("{family}/{}/{n}", self.number);
        }
        let slot = self.random.random_range(0..self.items / self.writers);
        seed::key(slot * self.writers + self.number)
    }

    async fn mutate(&mut self) {
        let key = self.pick();
        let (expected, unknown) =
            self.shared.known(&key, |known| (known.value.clone(), known.maybe.is_some()));
        let expected = if unknown {
            // A write with an unknown outcome: ask, then go on from there.
            let Ok(found) = self.store.get(&key).await else { return };
            self.shared.known(&key, |known| {
                known.value.clone_from(&found);
                known.maybe = None;
                known.version += 1;
            });
            found
        } else {
            expected
        };
        self.written += 1;
        let value = format!("live-{}-{}:{}", self.number, self.written, "x".repeat(150)).into_bytes();
        let delete = expected.is_some() && self.random.random_range(0..10_u32) < 3;
        let new = (!delete).then_some(value);
        self.shared.known(&key, |known| known.writing = true);
        let guard = format!("lease-guard-{}", self.number);
        let guarded = self.random.random_range(0..5_u32) == 0 && self.has_guard(&guard).await;
        let guard = guarded.then_some((guard.as_str(), &b"held"[..]));
        let (expected, changed) = (expected.as_deref(), new.as_deref());
        let signaled = self.random.random_range(0..10_u32) == 0;
        let answer = match guard {
            _ if signaled => {
                let signal = format!("{}:{}", self.number, self.written);
                let signal = (LAKE_SIGNAL_KEY, signal.as_bytes());
                self.store.signaled_mutate(signal, guard, &key, expected, changed).await
            }
            Some(guard) => self.store.guarded_mutate(guard, &key, expected, changed).await,
            None => self.store.cas(&key, expected, changed).await,
        };
        self.take(&key, new, answer);
    }

    async fn has_guard(&self, guard: &str) -> bool {
        self.store.cas(guard, None, Some(b"held")).await.is_ok()
    }

    fn take(&self, key: &str, new: Option<Vec<u8>>, answer: Result<Mutation>) {
        let shared = &self.shared;
        match answer {
            Ok(Mutation::Applied) => {
                shared.applied.fetch_add(1, Ordering::Relaxed);
                shared.known(key, |known| {
                    known.value = new;
                    known.version += 1;
                });
            }
            Ok(other) => shared.violation(format!("{key:?} was refused to its only writer: {other:?}")),
            Err(error) => match error.kind() {
                ErrorKind::BarrierHeld => {
                    shared.barrier_held.fetch_add(1, Ordering::Relaxed);
                }
                ErrorKind::OutcomeUnknown => {
                    shared.retried.fetch_add(1, Ordering::Relaxed);
                    shared.known(key, |known| {
                        known.maybe = Some(Written(new));
                        known.version += 1;
                    });
                }
                ErrorKind::Contended | ErrorKind::Throttled | ErrorKind::Unavailable => {
                    shared.retried.fetch_add(1, Ordering::Relaxed);
                }
                _ => shared.violation(format!("{key:?}: {error}")),
            },
        }
        shared.known(key, |known| known.writing = false);
    }
}

async fn read(store: MetaStore, shared: Arc<Shared>, mut random: SmallRng, pause: Duration) {
    while !shared.stop.load(Ordering::Relaxed) {
        let key = {
            let known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
            let place = random.random_range(0..known.len().max(1));
            known.keys().nth(place).cloned()
        };
        if let Some(key) = key {
            let before = shared.known(&key, |known| known.clone());
            let found = store.get(&key).await;
            let after = shared.known(&key, |known| known.clone());
            let still = !before.writing && !after.writing && before.version == after.version;
            match found {
                Ok(found) if still && before.maybe.is_none() => {
                    shared.checked.fetch_add(1, Ordering::Relaxed);
                    if found != before.value {
                        shared.violation(format!("a read of {key:?} did not show what was acknowledged"));
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                Err(error) => shared.violation(format!("a read of {key:?} failed: {error}")),
            }
        }
        tokio::time::sleep(pause).await;
    }
}
