//! Nodes and workers that stand still, machines whose clocks do, and requests that are sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use jiff::Timestamp;
use metashift::environment::{Clock, Entropy, Environment, SystemClock, SystemEntropy};
use metashift::layout::backfill::backfill_page;
use metashift::layout::cutover::Evidence;
use metashift::layout::generation::{PlanWish, open_plan};
use metashift::layout::key::LAKE_SIGNAL_KEY;
use metashift::layout::transaction::Side;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Layout, MetaStore, Mode, Mutation, Tables};
use metashift::step::Budget;
use metashift::{Error, ErrorKind};
use metashift_faults::{Fault, Proxy, Rule};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;

use super::support::{Lake, ShiftedClock, TABLE, start, tables_through};

const MINUTES_12: i64 = 12 * 60 * 1000;

fn error(name: &str) -> Fault {
    Fault::Error { name: name.to_owned() }
}

fn cancel(reason: &str) -> Fault {
    Fault::Cancel { reasons: vec![reason.to_owned()] }
}

/// Draws zeros, so that no pause is long, and does something as the n-th number is drawn: the first is a mutation's
/// token, the next is the length of its first pause.
struct AtDraw<F> {
    drawn: AtomicU32,
    at: u32,
    act: F,
}

impl<F> std::fmt::Debug for AtDraw<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AtDraw").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<F: Fn() + Send + Sync> Entropy for AtDraw<F> {
    fn next(&self) -> u128 {
        let drawn = self.drawn.fetch_add(1, Ordering::SeqCst) + 1;
        if drawn == self.at {
            (self.act)();
        }
        // Random in the upper half, which tokens have and pauses do not.
        SystemEntropy.next() << 64
    }
}

/// Tables behind a proxy, whose process stands still in its first pause while the clocks go on by so many milliseconds.
fn frozen_in_the_pause(proxy: &Proxy, wall: i64, boot: i64) -> Tables {
    let clock = Arc::new(ShiftedClock::default());
    let shifted = Arc::clone(&clock);
    let entropy = AtDraw { drawn: AtomicU32::new(0), at: 2, act: move || shifted.shift(wall, boot) };
    tables_in(proxy, Environment { clock, entropy: Arc::new(entropy) })
}

fn tables_in(proxy: &Proxy, environment: Environment) -> Tables {
    let client = metashift_sandbox::server::client(&proxy.endpoint());
    Tables::new(client, TABLE, None, Layout::default(), environment)
}

fn sent(proxy: &Proxy) -> u64 {
    proxy.statistics().calls.get("TransactWriteItems").copied().unwrap_or_default()
}

#[tokio::test]
async fn a_node_that_stood_still_with_its_answer_lost_sends_nothing_more_under_the_old_token() {
    let lake = Lake::empty().await;
    let other = lake.store(Mode::Dual).await;
    for (wall, boot) in [(MINUTES_12, MINUTES_12), (0, MINUTES_12), (MINUTES_12, 0), (-MINUTES_12, 241_000)] {
        let proxy = lake.proxy().await;
        proxy.add(Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems").times(1));
        let store = MetaStore::open(frozen_in_the_pause(&proxy, wall, boot), Mode::Dual).await.unwrap();
        let unknown = store.cas("tbl/x", None, Some(b"v")).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{wall} {boot}: {unknown}");
        assert_eq!(sent(&proxy), 1, "{wall} {boot}: it was sent again");
        assert_eq!(other.delete("tbl/x", b"v").await.unwrap(), Mutation::Applied, "it had landed");
    }
    // A stop that the token outlives is none: the same request says that it has landed.
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems").times(1));
    let store = MetaStore::open(frozen_in_the_pause(&proxy, 200_000, 200_000), Mode::Dual).await.unwrap();
    assert_eq!(store.cas("tbl/x", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    assert_eq!(sent(&proxy), 2);
}

#[tokio::test]
async fn a_node_that_stood_still_with_every_answer_in_hand_goes_on_under_a_new_token() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("busy", cancel("TransactionConflict")).on("TransactWriteItems").times(1).keeping());
    proxy.add(Rule::new("then", Fault::Delay { millis: 0 }).on("TransactWriteItems").keeping());
    let store =
        MetaStore::open(frozen_in_the_pause(&proxy, MINUTES_12, MINUTES_12), Mode::Dual).await.unwrap();
    assert_eq!(store.cas("tbl/x", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    let (busy, then) = (proxy.kept("busy"), proxy.kept("then"));
    assert_eq!((busy.len(), then.len()), (1, 1));
    assert_ne!(busy[0].body, then[0].body, "the same token");
}

/// A node whose first copy never arrives, and whose second one is held: gives it and its clock once it is.
async fn held_before_its_refusal(
    lake: &Lake,
    proxy: &Proxy,
) -> (tokio::task::JoinHandle<Result<Mutation, Error>>, Arc<ShiftedClock>) {
    let clock = Arc::new(ShiftedClock::default());
    let environment = Environment { clock: Arc::clone(&clock) as _, entropy: Arc::new(SystemEntropy) };
    proxy.add(Rule::new("first", Fault::DropBefore).on("TransactWriteItems").times(1));
    proxy.add(Rule::new("second", Fault::Hold).on("TransactWriteItems").times(1));
    let store = MetaStore::open(tables_in(proxy, environment), Mode::Dual).await.unwrap();
    let node = tokio::spawn(async move { store.cas("tbl/x", None, Some(b"v")).await });
    proxy.reached("second", 1).await;
    let other = lake.store(Mode::Dual).await;
    assert_eq!(other.cas("tbl/x", None, Some(b"other")).await.unwrap(), Mutation::Applied);
    (node, clock)
}

#[tokio::test]
async fn a_token_that_grew_old_before_it_is_spent_is_not_spent_and_the_refusal_is_not_believed() {
    let lake = Lake::empty().await;
    for (frozen, spends) in [(false, 1), (true, 0)] {
        let proxy = lake.proxy().await;
        let (node, clock) = held_before_its_refusal(&lake, &proxy).await;
        if frozen {
            clock.advance(Duration::from_secs(720));
        }
        proxy.add(Rule::new("spent", Fault::Delay { millis: 0 }).mentioning("/spent/"));
        proxy.release("second");
        let answer = node.await.unwrap();
        assert_eq!(proxy.hits("spent"), spends, "{answer:?}");
        if frozen {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
        } else {
            assert_eq!(answer.unwrap(), Mutation::Conflict { current: Some(b"other".to_vec()) });
            lake.store(Mode::Dual).await.delete("tbl/x", b"other").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_token_that_is_said_to_be_used_and_a_resend_that_is_refused_again_are_an_unknown_outcome() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    let (node, _) = held_before_its_refusal(&lake, &proxy).await;
    let mismatch = error("IdempotentParameterMismatchException");
    proxy.add(Rule::new("spent", mismatch).mentioning("/spent/"));
    proxy.release("second");
    assert_eq!(node.await.unwrap().unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(proxy.hits("spent"), 1);
}

#[tokio::test]
async fn whatever_ends_a_request_after_a_lost_answer_is_an_unknown_outcome() {
    let lake = Lake::empty().await;
    for fault in [
        error("AccessDeniedException"),
        error("ExpiredTokenException"),
        error("InvalidSignatureException"),
        error("ResourceNotFoundException"),
        error("ValidationException"),
        cancel("AccessDenied"),
        cancel("ValidationError"),
        cancel("SomethingNew"),
        Fault::Clock { ahead: 7200, refuses: true },
    ] {
        let proxy = lake.proxy().await;
        proxy.add(Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems").times(1));
        let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
        proxy.add(Rule::new("then", fault.clone()).on("TransactWriteItems"));
        let unknown = store.cas("tbl/x", None, Some(b"v")).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{fault:?}: {unknown}");
        assert_eq!((proxy.hits("then"), sent(&proxy)), (1, 2), "{fault:?}: sent again");
        lake.store(Mode::Dual).await.delete("tbl/x", b"v").await.unwrap();
    }
}

#[tokio::test]
async fn twenty_resends_are_one_body_to_the_byte_and_so_are_the_requests_that_spend_a_token() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    let entropy = Arc::new(AtDraw { drawn: AtomicU32::new(0), at: 0, act: || {} });
    let environment = Environment { clock: Arc::new(SystemClock), entropy };
    let store = MetaStore::open(tables_in(&proxy, environment.clone()), Mode::Dual).await.unwrap();
    store.cas("lease", None, Some(b"held")).await.unwrap();
    proxy.add(Rule::new("busy", error("ThrottlingException")).on("TransactWriteItems").times(20).keeping());
    proxy.add(Rule::new("last", Fault::Delay { millis: 0 }).on("TransactWriteItems").keeping());
    let signal = (LAKE_SIGNAL_KEY, &b"1"[..]);
    let changed = store.signaled_mutate(signal, Some(("lease", b"held")), "tbl/x", None, Some(b"v")).await;
    assert_eq!(changed.unwrap(), Mutation::Applied);
    let mut bodies = proxy.kept("busy");
    bodies.extend(proxy.kept("last"));
    assert_eq!(bodies.len(), 21);
    bodies.dedup_by(|one, other| one.body == other.body);
    assert_eq!(bodies.len(), 1, "{bodies:?}");

    // After the marker a token is spent in v2, whose keys have two attributes.
    proxy.clear();
    lake.publish().await;
    let store = MetaStore::open(tables_in(&proxy, environment), Mode::Dual).await.unwrap();
    proxy.add(Rule::new("spent", Fault::DropBefore).mentioning("/spent/").times(20).keeping());
    proxy.add(Rule::new("last", Fault::Delay { millis: 0 }).mentioning("/spent/").keeping());
    proxy.add(Rule::new("first", Fault::DropBefore).on("TransactWriteItems").times(1));
    let refused = store.cas("tbl/x", None, Some(b"w")).await.unwrap();
    assert_eq!(refused, Mutation::Conflict { current: Some(b"v".to_vec()) });
    let mut bodies = proxy.kept("spent");
    bodies.extend(proxy.kept("last"));
    assert_eq!(bodies.len(), 21);
    bodies.dedup_by(|one, other| one.body == other.body);
    assert_eq!(bodies.len(), 1, "{bodies:?}");
}

#[tokio::test]
async fn a_clock_that_is_hours_from_the_servers_ends_no_run_and_is_corrected_once() {
    for ahead in [7200, -7200] {
        let lake = Lake::with_items(60).await;
        let proxy = lake.proxy().await;
        proxy.add(Rule::new("clock", Fault::Clock { ahead, refuses: true }).keeping());
        let run = lake.run_with(&tables_through(&proxy), 2, 20);
        run.backfill().await.unwrap();
        let finished = run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
        assert_eq!(finished.verified, 60);
        assert_eq!(lake.assert_equal().await, 60);
        // The first ones of a step may go out side by side.
        let usage = run.tables.usage();
        assert!((1..=8).contains(&usage.failures), "{usage:?}");
        // A write that was refused for its time was not applied, and goes out under another token.
        let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
        assert_eq!(store.cas("tbl/x", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    }
}

#[tokio::test]
async fn a_refused_write_takes_the_servers_time_and_another_token() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
    proxy.add(Rule::new("clock", Fault::Clock { ahead: 7200, refuses: true }).keeping());
    assert_eq!(store.cas("tbl/x", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    let kept = proxy.kept("clock");
    assert_eq!(kept.len(), 2);
    assert_ne!(kept[0].body, kept[1].body, "the same token");
}

#[tokio::test]
async fn an_answer_that_refuses_nothing_moves_no_clock() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("clock", Fault::Clock { ahead: 7200, refuses: false }).keeping());
    let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
    for _ in 0..3 {
        store.get("tbl/x").await.unwrap();
    }
    let hour = |text: &str| text[..11].to_owned();
    let now = SystemClock.now();
    let near =
        [now - Duration::from_secs(60), now].map(|at| hour(&at.strftime("%Y%m%dT%H%M%SZ").to_string()));
    for request in proxy.kept("clock") {
        assert!(near.contains(&hour(&request.signed)), "{request:?} is not signed with {near:?}");
    }
}

#[tokio::test]
async fn a_stop_of_twenty_five_seconds_with_all_connections_lost_spends_no_patience() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, "tbl/a", b"v").await;
    for operation in ["GetItem", "TransactWriteItems"] {
        let proxy = lake.proxy().await;
        let clock = Arc::new(ShiftedClock::default());
        let shifted = Arc::clone(&clock);
        let act = move || shifted.shift(25_000, 25_000);
        let at = if operation == "GetItem" { 1 } else { 2 };
        let entropy = Arc::new(AtDraw { drawn: AtomicU32::new(0), at, act });
        let store =
            MetaStore::open(tables_in(&proxy, Environment { clock, entropy }), Mode::Dual).await.unwrap();
        proxy.add(Rule::new("gone", Fault::DropBefore).on(operation).times(3));
        if operation == "GetItem" {
            assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"v"[..]));
        } else {
            assert_eq!(store.cas("tbl/b", None, Some(b"v")).await.unwrap(), Mutation::Applied);
        }
        assert_eq!(proxy.hits("gone"), 3);
    }
}

#[tokio::test]
async fn a_table_that_is_stuck_takes_no_step_past_its_deadline() {
    let lake = Lake::with_items(60).await;
    open_plan(&lake.tables, PlanWish { segments: Some(1), new_generation: false }).await.unwrap();
    let proxy = lake.proxy().await;
    let client = metashift_sandbox::server::client(&proxy.endpoint());
    // Each attempt is given up in time for another: what bounds the step is not the attempt.
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_secs(3)).build();
    let client = Client::from_conf(client.config().to_builder().timeout_config(timeouts).build());
    let tables = Tables::new(client, TABLE, None, Layout::default(), Environment::system());
    let started = tokio::time::Instant::now();
    let deadline = SystemClock.now() + Duration::from_secs(12);
    let step = tokio::spawn(async move {
        let input = SegmentInput { segment: 0, segments: 1, page_size: 100 };
        let budget = Budget::until(Environment::system(), deadline);
        backfill_page(&tables, 0, input, budget).await
    });
    proxy.add(Rule::new("commit", Fault::Hold).on("TransactWriteItems"));
    proxy.add(Rule::new("read again", Fault::Hold).on("GetItem").mentioning("/backfill/0/0").skip(1));
    let ended = step.await.unwrap().unwrap_err();
    assert!(proxy.hits("commit") > 0 && proxy.hits("read again") > 0, "{ended}");
    assert_eq!(ended.kind(), ErrorKind::Timeout, "{ended}");
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}: {ended}", started.elapsed());
}

#[tokio::test]
async fn a_marker_is_found_by_a_node_whose_wall_clock_was_set_back_and_by_one_that_slept() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, "tbl/a", b"old").await;
    lake.put(Side::V2, "tbl/a", b"new").await;
    for (wall, boot) in [(-3_600_000, 31_000), (31_000, 0)] {
        let clock = Arc::new(ShiftedClock::default());
        let store = MetaStore::open(lake.tables_at(&clock), Mode::Dual).await.unwrap();
        lake.publish().await;
        assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"old"[..]));
        clock.shift(wall, boot);
        assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"new"[..]), "{wall} {boot}");
        lake.remove(Side::V1, metashift::layout::records::MARKER_KEY).await;
    }
}

/// A process's clocks, sixty times as fast: a stop of five seconds is one of five minutes.
#[derive(Debug)]
struct Fast {
    started: (Timestamp, Duration),
}

impl Clock for Fast {
    fn now(&self) -> Timestamp {
        self.started.0 + self.boot()
    }

    fn boot(&self) -> Duration {
        (SystemClock.boot() - self.started.1) * 60
    }
}

/// Draws the longest pauses.
#[derive(Debug)]
struct Long;

impl Entropy for Long {
    fn next(&self) -> u128 {
        (SystemEntropy.next() << 64) | 0x7fff_ffff_ffff
    }
}

const CHILD: &str = "METASHIFT_FROZEN_NODE";

/// The process of the test below; for itself it does nothing.
#[tokio::test]
async fn the_node_of_a_process_that_is_stopped() {
    let Ok(endpoint) = std::env::var(CHILD) else { return };
    let clock = Arc::new(Fast { started: (SystemClock.now(), SystemClock.boot()) });
    let environment = Environment { clock, entropy: Arc::new(Long) };
    let client = metashift_sandbox::server::client(&endpoint);
    let tables = Tables::new(client, TABLE, None, Layout::default(), environment);
    let store = MetaStore::open(tables.patient(Duration::from_secs(3600)), Mode::Dual).await.unwrap();
    let answer = store.cas("tbl/x", None, Some(b"v")).await;
    println!("ended: {:?}", answer.map_err(|error| error.kind()));
}

#[tokio::test]
async fn a_process_that_is_stopped_while_its_answers_are_lost_sends_nothing_after_it_goes_on() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems"));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "layout::frozen::the_node_of_a_process_that_is_stopped", "--nocapture"])
        .env(CHILD, proxy.endpoint())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap());
    // Pauses are longer than half a second by now.
    proxy.reached("lost", 6).await;
    kill(pid, Signal::SIGSTOP).unwrap();
    // The stop itself.
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.idle().await;
    let before = proxy.hits("lost");
    let other = lake.store(Mode::Dual).await;
    assert_eq!(other.delete("tbl/x", b"v").await.unwrap(), Mutation::Applied);
    kill(pid, Signal::SIGCONT).unwrap();
    let output = child.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("ended: Err(OutcomeUnknown)"), "{said}");
    assert_eq!(proxy.hits("lost"), before, "it was sent again");
    assert_eq!(lake.value(Side::V1, "tbl/x").await, None, "a deleted key is back");
}
