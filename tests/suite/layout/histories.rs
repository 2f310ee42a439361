//! Seeded histories: nodes of every mode, migrators that freeze and die, operators and foul weather, everything that
//! was asked and answered on record, and a check of each key against one register.
//!
//! `METASHIFT_SEED` begins at another seed, `METASHIFT_HISTORIES` runs that many of them (12 unless it says so).

mod checker;
mod migrators;
mod nodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use metashift::ErrorKind;
use metashift::layout::cutover::Evidence;
use metashift::layout::key::is_internal;
use metashift::layout::transaction::Side;
use metashift::layout::{Authority, MetaStore, Mode, status};
use metashift_faults::{Fault, Proxy, Rule};
use metashift_sandbox::seed;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;

use self::checker::check;
use self::nodes::{KEYS, Log, Node};
use super::support::{Lake, number, start, tables_through};

/// Items beside the keys that nodes fight over.
const STILL: u32 = 24;

/// The copies differ, in an error's words.
pub(crate) const DIFFERS: [ErrorKind; 2] = [ErrorKind::VerificationFailed, ErrorKind::BlockedByDivergence];

/// Longest that one history may take before its migrators are told to end.
const LONGEST: Duration = Duration::from_secs(20);

/// What a history shares between its tasks.
pub(crate) struct Stage {
    pub(crate) lake: Lake,
    pub(crate) proxy: Proxy,
    pub(crate) log: Log,
    pub(crate) clock: AtomicU64,
    /// Migrators and operators end.
    pub(crate) stop: AtomicBool,
    /// Findings that no linearizability check sees.
    pub(crate) violations: std::sync::Mutex<Vec<String>>,
    /// No node writes v1 alone in this history: the copies never differ.
    pub(crate) always_dual: bool,
    /// A person removes the write barrier by hand.
    pub(crate) by_hand: Option<ByHand>,
}

/// When a person removes the write barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByHand {
    /// At any moment, a few times.
    Anytime,
    /// Between the end of a verification and the marker.
    Verified,
}

impl Stage {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A comparison may not find a difference: each mutation changed both copies, and none came between its reads.
    pub(crate) fn never_differs(&self) -> bool {
        self.always_dual && self.by_hand.is_none()
    }

    pub(crate) fn violation(&self, text: String) {
        self.violations.lock().unwrap().push(text);
    }
}

fn weather(proxy: &Proxy, random: &mut SmallRng) {
    let seed: u64 = random.random();
    let fault =
        |name: &str, fault: Fault, share: f64, salt: u64| Rule::new(name, fault).share(share, seed ^ salt);
    proxy.add(fault("lost", Fault::DropAnswer, 0.03, 1));
    proxy.add(fault("dropped", Fault::DropBefore, 0.02, 2));
    proxy.add(fault("500", Fault::Status { status: 500, forwarded: true }, 0.02, 3));
    proxy.add(fault("slow", Fault::Delay { millis: 40 }, 0.05, 4));
    proxy.add(fault("late", Fault::Delay { millis: 400 }, 0.01, 5).on("TransactWriteItems"));
    let conflict = Fault::Cancel { reasons: vec!["TransactionConflict".to_owned()] };
    proxy.add(fault("conflict", conflict, 0.04, 6).on("TransactWriteItems"));
    let throttled = Fault::Error { name: "ThrottlingException".to_owned() };
    proxy.add(fault("throttled", throttled, 0.03, 7));
}

/// What is planted, and a wider window between reading and writing: it shows sooner.
fn plant(proxy: &Proxy, planted: Option<&Rule>, seed: u64) {
    if let Some(rule) = planted {
        proxy.add(rule.clone());
        proxy.add(Rule::new("window", Fault::Delay { millis: 60 }).on("BatchGetItem").share(0.5, seed));
    }
}

/// Runs one history; `Err` says what it violates.
async fn history(seed_number: u64, planted: Option<&Rule>, by_hand: Option<ByHand>) -> Result<(), String> {
    let mut random = SmallRng::seed_from_u64(seed_number);
    let lake = Lake::with_items(STILL).await;
    for (n, key) in KEYS.iter().enumerate() {
        if n % 4 != 3 {
            lake.put(Side::V1, key, format!("first-{n}").as_bytes()).await;
        }
    }
    let initial: Vec<_> = (0..KEYS.len()).map(|n| (n % 4 != 3).then(|| format!("first-{n}"))).collect();
    let proxy = lake.proxy().await;
    plant(&proxy, planted, seed_number);
    weather(&proxy, &mut random);
    let always_dual = planted.is_some() || random.random_range(0..2_u32) == 0;
    let meddled_with = match random.random_range(0..6_u32) {
        0 if planted.is_none() => Some(ByHand::Anytime),
        1 if planted.is_none() => Some(ByHand::Verified),
        _ => None,
    };
    let by_hand = by_hand.or(meddled_with);
    let stage = Arc::new(Stage {
        lake,
        proxy,
        log: Log::default(),
        clock: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        violations: std::sync::Mutex::default(),
        always_dual,
        by_hand,
    });

    let mut nodes = JoinSet::new();
    let sleeper = Node::open(&stage, "sleeper", Mode::Dual, random.random(), &initial).await;
    let operations = 36;
    for n in 0..3_u64 {
        let node = Node::open(&stage, &format!("dual-{n}"), Mode::Dual, random.random(), &initial).await;
        nodes.spawn(node.work(operations));
    }
    if !always_dual {
        let node = Node::open(&stage, "v1-only", Mode::V1Only, random.random(), &initial).await;
        nodes.spawn(node.work_then_roll_forward(operations / 3, operations));
    }
    let mut migrators = JoinSet::new();
    for n in 0..2_u64 {
        migrators.spawn(migrators::migrate(Arc::clone(&stage), n, random.random()));
    }
    migrators.spawn(migrators::operate(Arc::clone(&stage), random.random()));
    let mut meddlers = JoinSet::new();
    if let Some(by_hand) = by_hand {
        meddlers.spawn(migrators::remove_barriers(Arc::clone(&stage), by_hand, random.random()));
    }

    let work = async {
        while let Some(ended) = nodes.join_next().await {
            ended.unwrap();
        }
    };
    let in_time = tokio::time::timeout(LONGEST, work).await.is_ok();
    stage.stop.store(true, Ordering::Relaxed);
    while let Some(ended) = migrators.join_next().await {
        ended.unwrap();
    }
    if !in_time {
        return Err("nodes did not come to an end".to_owned());
    }
    finish(&stage, sleeper, planted, random.random()).await;
    verdict(&stage, &initial)
}

/// The weather clears: the migration is finished, then nodes of both modes write in turn, then everything is read.
async fn finish(stage: &Arc<Stage>, mut sleeper: Node, planted: Option<&Rule>, seed_number: u64) {
    stage.proxy.clear();
    stage.proxy.idle().await;
    plant(&stage.proxy, planted, seed_number);
    let lake = &stage.lake;
    status::change_control(&lake.tables, |control| control.paused = false).await.unwrap();
    let run = lake.run_with(&tables_through(&stage.proxy), 2, 200);
    for round in 0..20 {
        let begin = start(&format!("last-{round}"));
        let ended = run.finalize(&begin, &Evidence::Acknowledged(true)).await;
        match ended {
            Ok(_) => break,
            Err(error) => {
                if stage.always_dual && DIFFERS.contains(&error.kind()) {
                    return stage.violation(format!("copies differ though every node is dual: {error}"));
                }
                if round == 19 {
                    return stage.violation(format!("the migration does not finish: {error}"));
                }
                if let Err(error) = run.repair().await {
                    // A cutover that a dead migrator left: a person ends it.
                    let ended = metashift::layout::cutover::release_barrier(
                        &lake.tables,
                        None,
                        super::support::ABORT,
                    )
                    .await;
                    ended.unwrap_or_else(|second| panic!("{error}; {second}"));
                }
            }
        }
    }
    // Restarted, as the operator is told; only then may a node write v2 alone.
    let reader = lake.store(Mode::Dual).await;
    assert_eq!(reader.authority(), Authority::V2);
    let unknown: Vec<_> = vec![None; KEYS.len()];
    // Reads v1 for the last time, while nobody writes v2 alone; later it may only try to write.
    sleeper.read_all().await;
    lake.stamp_audit().await;
    let mut late = JoinSet::new();
    for (n, mode) in [Mode::Dual, Mode::V2Only].into_iter().enumerate() {
        let tables = tables_through(&stage.proxy);
        let store = MetaStore::open(tables, mode).await.unwrap();
        let name = format!("{mode:?}-after");
        let mut node = Node::over(stage, &name, store, seed_number ^ n as u64, &unknown);
        node.read_all().await;
        if mode == Mode::V2Only {
            node.write_all().await;
        }
        late.spawn(node.work(16));
    }
    late.spawn(sleeper.wake(8));
    while let Some(ended) = late.join_next().await {
        ended.unwrap();
    }
    for mode in [Mode::Dual, Mode::V2Only] {
        let store = MetaStore::open(lake.tables.metered(), mode).await.unwrap();
        Node::over(stage, "last", store, 0, &unknown).read_all().await;
    }
    // Keys that nobody touched are what they were.
    for n in 0..STILL {
        if reader.get(&seed::key(n)).await.unwrap() != Some(seed::value(n)) {
            stage.violation(format!("{} is not what was seeded", seed::key(n)));
        }
    }
    let strangers = lake.v2().await.into_keys().filter(|key| {
        !KEYS.contains(&key.as_str()) && (is_internal(key) || !(0..STILL).any(|n| seed::key(n) == *key))
    });
    for key in strangers {
        stage.violation(format!("{key:?} came from nowhere"));
    }
}

fn verdict(stage: &Stage, initial: &[checker::Value]) -> Result<(), String> {
    let violations = std::mem::take(&mut *stage.violations.lock().unwrap());
    if !violations.is_empty() {
        return Err(violations.join("\n"));
    }
    let log = stage.log.take();
    for (n, (key, first)) in KEYS.iter().zip(initial).enumerate() {
        let operations: Vec<_> = log.iter().filter(|(at, _)| *at == n).map(|(_, one)| one.clone()).collect();
        check(key, first.clone(), operations)?;
    }
    assert!(log.len() >= 100, "a history of {} operations", log.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_seeded_history_is_that_of_one_register_for_each_key() {
    let first = number("METASHIFT_SEED", 1);
    let count = number("METASHIFT_HISTORIES", 12);
    futures::stream::iter(first..first + count)
        .for_each_concurrent(3, async |seed| {
            println!("METASHIFT_SEED={seed}");
            if let Err(violation) = history(seed, None, None).await {
                panic!("METASHIFT_SEED={seed} METASHIFT_HISTORIES=1\n{violation}");
            }
        })
        .await;
}

fn blind(action: &str, table: &str, key: &str, idle: bool) -> Rule {
    let fault =
        Fault::Blind { action: action.to_owned(), table: table.to_owned(), key: key.to_owned(), idle };
    Rule::new("planted", fault).on("TransactWriteItems")
}

/// Runs histories until one is violated.
async fn assert_found(name: &str, planted: Rule, by_hand: Option<ByHand>) {
    let first = number("METASHIFT_SEED", 1);
    for seed in first..first + 120 {
        if let Err(violation) = history(seed, Some(&planted), by_hand).await {
            println!("{name}: found by seed {seed}\n{violation}");
            return;
        }
    }
    panic!("{name}: not found by 120 histories from seed {first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_without_its_v1_check_is_found() {
    let planted = blind("ConditionCheck", "lake", "!__lake_internal", false).mentioning("/backfill/");
    assert_found("backfill without its v1 check", planted, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_that_moves_without_its_data_is_found() {
    let planted = blind("Put", "lake_prefix_v2", "", true).mentioning("/backfill/").share(0.5, 1);
    assert_found("cursor before data", planted, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutation_that_ignores_the_barrier_is_found() {
    let planted = blind("ConditionCheck", "lake", "finalize-barrier", false).mentioning("lake_prefix_v2");
    assert_found("mutation without its barrier check", planted, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_that_ignores_the_barrier_is_found() {
    let planted =
        blind("ConditionCheck", "lake", "finalize-barrier", false).mentioning("prefix-v2-authority");
    assert_found("marker without its barrier check", planted, Some(ByHand::Verified)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_ignores_v2_is_found() {
    assert_found("delete that ignores v2", blind("Delete", "lake_prefix_v2", "", false), None).await;
}
