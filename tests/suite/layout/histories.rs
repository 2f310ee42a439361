//! Seeded histories: nodes of every mode, migrators that freeze and die, operators and foul weather, everything that
//! was asked and answered on record, and a check of each key against one register.
//!
//! What a seed's history is about is its [`Kind`]: seeds take turns. `METASHIFT_SEED` begins at another seed,
//! `METASHIFT_HISTORIES` runs that many of them (30 unless it says so).

mod cast;
mod checker;
mod foreign;
mod migrators;
mod nodes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use metashift::ErrorKind;
use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::generation::PlanWish;
use metashift::layout::key::is_internal;
use metashift::layout::transaction::Side;
use metashift::layout::{Authority, MetaStore, Mode, status};
use metashift_faults::{Fault, Proxy, Rule};
use metashift_sandbox::seed;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::cast::{Cast, Kind};
use self::checker::check;
use self::nodes::{KEYS, Log, Node};
use super::support::{Lake, number, start, tables_through};

/// A key and a value that become another key and another value by one byte, and are the same bytes together.
pub(crate) const CARVED: [&str; 2] = ["tbl/carved0", "tbl/carved"];

/// The copies differ, in an error's words.
pub(crate) const DIFFERS: [ErrorKind; 2] = [ErrorKind::VerificationFailed, ErrorKind::BlockedByDivergence];

/// Longest that one history may take before its migrators are told to end.
const LONGEST: Duration = Duration::from_secs(90);

/// What a history shares between its tasks.
pub(crate) struct Stage {
    pub(crate) lake: Lake,
    pub(crate) proxy: Proxy,
    /// Between migrators and the weather: holds a few of their requests until v2-only nodes have written.
    pub(crate) ghosts: Proxy,
    pub(crate) cast: Cast,
    /// A migrator begins to compare the tables.
    pub(crate) rehearsing: Notify,
    /// A migrator has compared the tables and is about to take the barrier.
    pub(crate) rehearsed: Notify,
    /// A migrator of the field may still send something.
    pub(crate) foreign_alive: AtomicBool,
    /// It published the marker.
    pub(crate) foreign_published: AtomicBool,
    pub(crate) log: Log,
    pub(crate) clock: AtomicU64,
    /// Migrators and operators end.
    pub(crate) stop: AtomicBool,
    /// Findings that no linearizability check sees.
    pub(crate) violations: std::sync::Mutex<Vec<String>>,
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
        self.cast.always_dual && self.by_hand.is_none()
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

/// Copies of requests that arrive long after their connection is gone.
fn strays(proxy: &Proxy, random: &mut SmallRng) {
    for (name, millis, share) in [("stray", 120, 0.08), ("far stray", 500, 0.08)] {
        let rule = Rule::new(name, Fault::Stray { millis }).share(share, random.random());
        proxy.add(rule.on("TransactWriteItems"));
    }
}

/// Holds some requests of migrators: their senders have been replaced long before they arrive.
fn haunt(ghosts: &Proxy, random: &mut SmallRng) {
    for (name, words, most) in [("copy", "/backfill/", 12), ("follow", "/repair/", 6), ("plan", "v2/plan", 8)]
    {
        let rule = Rule::new(name, Fault::Hold).on("TransactWriteItems").mentioning(words);
        ghosts.add(rule.skip(random.random_range(0..most)).times(2));
    }
}

/// What is planted, and a wider window between reading and writing: it shows sooner.
fn plant(proxy: &Proxy, planted: Option<&Rule>, seed: u64) {
    if let Some(rule) = planted {
        proxy.add(rule.clone());
        proxy.add(Rule::new("window", Fault::Delay { millis: 60 }).on("BatchGetItem").share(0.5, seed));
    }
}

/// What is not drawn from the seed.
#[derive(Debug, Clone, Default)]
struct Given {
    planted: Option<Rule>,
    by_hand: Option<ByHand>,
    kind: Option<Kind>,
}

/// Runs one history; `Err` says what it violates.
async fn history(seed_number: u64, given: &Given) -> Result<(), String> {
    let planted = given.planted.as_ref();
    let mut random = SmallRng::seed_from_u64(seed_number);
    let kind = given.kind.unwrap_or(Kind::of(seed_number));
    let mut cast = Cast::of(kind, &mut random);
    cast.always_dual |= planted.is_some();
    cast.wiped |= planted.is_some();
    let lake = Lake::with_items(cast.still).await;
    for (n, key) in KEYS.iter().enumerate() {
        if n % 4 != 3 {
            lake.put(Side::V1, key, format!("first-{n}").as_bytes()).await;
        }
    }
    lake.put(Side::V1, CARVED[0], b"-x").await;
    let initial: Vec<_> = (0..KEYS.len()).map(|n| (n % 4 != 3).then(|| format!("first-{n}"))).collect();
    let proxy = lake.proxy().await;
    plant(&proxy, planted, seed_number);
    if kind == Kind::Frozen {
        strays(&proxy, &mut random);
    }
    weather(&proxy, &mut random);
    let ghosts = Proxy::start(&proxy.endpoint(), 0).await.unwrap();
    haunt(&ghosts, &mut random);
    let meddled_with = match random.random_range(0..6_u32) {
        0 if planted.is_none() && kind == Kind::Hot => Some(ByHand::Anytime),
        1 if planted.is_none() && kind == Kind::Hot => Some(ByHand::Verified),
        _ => None,
    };
    let by_hand = given.by_hand.or(meddled_with);
    let always_dual = cast.always_dual;
    let stage = Arc::new(Stage {
        lake,
        proxy,
        ghosts,
        cast,
        rehearsing: Notify::new(),
        rehearsed: Notify::new(),
        foreign_alive: AtomicBool::new(kind == Kind::Foreign),
        foreign_published: AtomicBool::new(false),
        log: Log::default(),
        clock: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        violations: std::sync::Mutex::default(),
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
    for n in 0..2_usize {
        migrators.spawn(migrators::migrate(Arc::clone(&stage), n, random.random()));
    }
    migrators.spawn(migrators::operate(Arc::clone(&stage), random.random()));
    match kind {
        Kind::Foreign => drop(migrators.spawn(foreign::migrate(Arc::clone(&stage), random.random()))),
        Kind::Hot | Kind::Groups | Kind::Operators | Kind::Frozen => {}
    }
    let mut meddlers = JoinSet::new();
    if kind == Kind::Operators {
        meddlers.spawn(migrators::carve(Arc::clone(&stage)));
        meddlers.spawn(migrators::rival(Arc::clone(&stage)));
    }
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
    finish(&stage, sleeper, meddlers, planted, random.random()).await;
    verdict(&stage, &initial)
}

/// The weather clears: the migration is finished, then nodes of both modes write in turn, then everything is read.
async fn finish(
    stage: &Arc<Stage>,
    mut sleeper: Node,
    mut meddlers: JoinSet<()>,
    planted: Option<&Rule>,
    seed_number: u64,
) {
    stage.proxy.clear();
    stage.proxy.idle().await;
    plant(&stage.proxy, planted, seed_number);
    let lake = &stage.lake;
    status::change_control(&lake.tables, |control| control.paused = false).await.unwrap();
    let mut run = lake.run_with(&tables_through(&stage.proxy), 2, 200);
    run.wish.segments = None;
    run.observer = migrators::observer(stage);
    if stage.cast.kind == Kind::Operators {
        let late = Rule::new("barrier", Fault::Delay { millis: 40 }).on("TransactWriteItems");
        stage.proxy.add(late.mentioning("finalize-barrier").mentioning("v2/plan"));
    }
    // The migrator of the field is dead by now, and its operator says so.
    let foreign = stage.cast.kind == Kind::Foreign;
    run.accepted.discard_foreign_cursor = foreign;
    run.accepted.adopt_foreign_barrier = foreign;
    for round in 0..20 {
        let last = stage.cast.last_segments.filter(|_| round < 3);
        run.wish = PlanWish { segments: last, new_generation: last.is_some() };
        let begin = Start { adopt_foreign_barrier: foreign, ..start(&format!("last-{round}")) };
        let ended = run.finalize(&begin, &Evidence::Acknowledged(true)).await;
        match ended {
            Ok(_) => break,
            Err(error) => {
                if stage.cast.always_dual && DIFFERS.contains(&error.kind()) {
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
    meddlers.shutdown().await;
    // Restarted, as the operator is told; only then may a node write v2 alone.
    let reader = lake.store(Mode::Dual).await;
    assert_eq!(reader.authority(), Authority::V2);
    let unknown: Vec<_> = vec![None; KEYS.len()];
    let (v1, v2) = users(stage).await;
    if v1 != v2 {
        let keys = v1.keys().chain(v2.keys()).filter(|key| v1.get(*key) != v2.get(*key));
        let keys: std::collections::BTreeSet<_> = keys.collect();
        return stage.violation(format!("the marker is there and the copies differ: {keys:?}"));
    }
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
    if stage.cast.wiped {
        let alone = MetaStore::open(lake.tables.metered(), Mode::V2Only).await.unwrap();
        for n in 0..stage.cast.still {
            alone.delete(&seed::key(n), &seed::value(n)).await.unwrap();
        }
    }
    // What migrators decided long ago arrives now.
    let before = lake.v2().await;
    stage.ghosts.clear();
    stage.ghosts.idle().await;
    let after = lake.v2().await;
    for key in after.iter().filter(|(key, item)| before.get(*key) != Some(item)).map(|(key, _)| key) {
        stage.violation(format!("a late request put {key:?} into v2"));
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        stage.violation(format!("a late request removed {key:?} from v2"));
    }
    for mode in [Mode::Dual, Mode::V2Only] {
        let store = MetaStore::open(lake.tables.metered(), mode).await.unwrap();
        Node::over(stage, "last", store, 0, &unknown).read_all().await;
    }
    // Keys that nobody touched are what they were.
    for n in 0..stage.cast.still {
        let expected = (!stage.cast.wiped).then(|| seed::value(n));
        if reader.get(&seed::key(n)).await.unwrap() != expected {
            stage.violation(format!("{} is not what was seeded", seed::key(n)));
        }
    }
    let known = |key: &str| {
        KEYS.contains(&key) || CARVED.contains(&key) || (0..stage.cast.still).any(|n| seed::key(n) == key)
    };
    for key in lake.v2().await.into_keys().filter(|key| is_internal(key) || !known(key)) {
        stage.violation(format!("{key:?} came from nowhere"));
    }
}

/// What users see of both tables.
async fn users(stage: &Stage) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, Vec<u8>>) {
    let mut v1 = stage.lake.v1().await;
    v1.retain(|key, _| !is_internal(key));
    let v2 = stage.lake.v2().await.into_iter().map(|(key, (_, value))| (key, value)).collect();
    (v1, v2)
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
    let count = number("METASHIFT_HISTORIES", 20);
    futures::stream::iter(first..first + count)
        .for_each_concurrent(3, async |seed| {
            println!("METASHIFT_SEED={seed} {:?}", Kind::of(seed));
            if let Err(violation) = history(seed, &Given::default()).await {
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
async fn assert_found(name: &str, kind: Kind, given: Given) {
    let given = Given { kind: Some(kind), ..given };
    let first = number("METASHIFT_SEED", 1);
    for seed in first..first + 120 {
        if let Err(violation) = history(seed, &given).await {
            println!("{name}: found by seed {seed}\n{violation}");
            return;
        }
    }
    panic!("{name}: not found by 120 histories from seed {first}");
}

fn planted(rule: Rule) -> Given {
    Given { planted: Some(rule), ..Given::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_without_its_v1_check_is_found() {
    let rule = blind("ConditionCheck", "lake", "!__lake_internal", false).mentioning("/backfill/");
    assert_found("backfill without its v1 check", Kind::Hot, planted(rule)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_that_moves_without_its_data_is_found() {
    let rule = blind("Put", "lake_prefix_v2", "", true).mentioning("/backfill/").share(0.5, 1);
    assert_found("cursor before data", Kind::Hot, planted(rule)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_does_not_check_its_cursor_is_found() {
    let rule = blind("Put", "lake", "/backfill/", false).mentioning("lake_prefix_v2");
    assert_found("group without its cursor's condition", Kind::Hot, planted(rule)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_is_believed_without_spending_its_token_is_found() {
    let spent = Fault::Answer { body: "{}".to_owned() };
    let rule = Rule::new("planted", spent).on("TransactWriteItems").mentioning("/spent/");
    assert_found("token not spent", Kind::Frozen, planted(rule)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutation_that_ignores_the_barrier_is_found() {
    let rule = blind("ConditionCheck", "lake", "finalize-barrier", false).mentioning("lake_prefix_v2");
    assert_found("mutation without its barrier check", Kind::Hot, planted(rule)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_that_ignores_the_barrier_is_found() {
    let rule = blind("ConditionCheck", "lake", "finalize-barrier", false).mentioning("prefix-v2-authority");
    let given = Given { by_hand: Some(ByHand::Verified), ..planted(rule) };
    assert_found("marker without its barrier check", Kind::Hot, given).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_ignores_v2_is_found() {
    let rule = blind("Delete", "lake_prefix_v2", "", false);
    assert_found("delete that ignores v2", Kind::Hot, planted(rule)).await;
}
