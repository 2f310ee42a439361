//! Signaled mutations, and the keys that lake keeps beside the migrator's: user items like all others.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use metashift::ErrorKind;
use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::key::{INTERNAL_PREFIX, LAKE_SIGNAL_KEY, is_internal};
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE};
use metashift::layout::transaction::Side;
use metashift::layout::{MetaStore, Mode, Mutation};
use metashift_faults::{Fault, Rule};
use metashift_sandbox::Workload;
use serde_json::Value;
use tokio::process::Command;

use super::support::{Lake, TABLE, start, tables_through};

const AUTHORITATIVE: &str = "__lake_internal/catalog-directory-authoritative";
const KEY: &str = "tbl/ns/video";
const GUARD: &str = "lease";
const SIGNAL: (&str, &[u8]) = (LAKE_SIGNAL_KEY, b"2");

async fn both(lake: &Lake, key: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    (lake.value(Side::V1, key).await, lake.value(Side::V2, key).await)
}

async fn set(lake: &Lake, key: &str, v1: Option<&[u8]>, v2: Option<&[u8]>) {
    for (side, value) in [(Side::V1, v1), (Side::V2, v2)] {
        match value {
            Some(value) => lake.put(side, key, value).await,
            None => lake.remove(side, key).await,
        }
    }
}

/// What both copies of target and guard hold before, and what a signaled update from `e` to `n` answers then.
struct Row {
    target: (Option<&'static [u8]>, Option<&'static [u8]>),
    guard: Option<(Option<&'static [u8]>, Option<&'static [u8]>)>,
    answer: Result<Mutation, ErrorKind>,
}

fn rows(authority: Side) -> Vec<Row> {
    let (e, x, g) = (Some(&b"e"[..]), Some(&b"x"[..]), Some(&b"g"[..]));
    let conflict = |current: Option<&[u8]>| Ok(Mutation::Conflict { current: current.map(<[u8]>::to_vec) });
    let row = |target, guard, answer| Row { target, guard, answer };
    if authority == Side::V2 {
        return vec![
            row((e, e), None, Ok(Mutation::Applied)),
            row((x, e), None, Ok(Mutation::Applied)),
            row((e, x), None, conflict(x)),
            row((e, None), None, conflict(None)),
            row((e, e), Some((g, g)), Ok(Mutation::Applied)),
            row((e, e), Some((x, g)), Ok(Mutation::Applied)),
            row((e, e), Some((g, x)), Ok(Mutation::GuardLost)),
            row((e, x), Some((g, x)), Ok(Mutation::GuardLost)),
        ];
    }
    vec![
        row((e, e), None, Ok(Mutation::Applied)),
        row((e, None), None, Ok(Mutation::Applied)),
        row((x, x), None, conflict(x)),
        row((None, None), None, conflict(None)),
        row((e, x), None, Err(ErrorKind::Divergence)),
        row((e, e), Some((g, g)), Ok(Mutation::Applied)),
        row((e, e), Some((g, None)), Ok(Mutation::Applied)),
        row((e, e), Some((x, x)), Ok(Mutation::GuardLost)),
        row((x, x), Some((x, x)), Ok(Mutation::GuardLost)),
        row((e, e), Some((g, x)), Err(ErrorKind::Divergence)),
    ]
}

/// Runs each row, with the signal absent, equal and different in the two tables; `sees`: the tables that are written.
async fn hold(lake: &Lake, store: &MetaStore, rows: &[Row], sees: (bool, bool)) {
    let signals: [(Option<&[u8]>, Option<&[u8]>); 4] =
        [(None, None), (Some(b"1"), None), (Some(b"1"), Some(b"1")), (Some(b"1"), Some(b"0"))];
    for (number, row) in rows.iter().enumerate() {
        for (v1, v2) in signals {
            set(lake, KEY, row.target.0, row.target.1).await;
            let guard = row.guard.unwrap_or_default();
            set(lake, GUARD, guard.0, guard.1).await;
            set(lake, SIGNAL.0, v1, v2).await;
            let guard = row.guard.map(|_| (GUARD, &b"g"[..]));
            let answer = store.signaled_mutate(SIGNAL, guard, KEY, Some(b"e"), Some(b"n")).await;
            let what = format!("row {number}, signal {v1:?} {v2:?}: {answer:?}");
            assert_eq!(answer.map_err(|error| error.kind()), row.answer, "{what}");
            let applied = row.answer == Ok(Mutation::Applied);
            let after = |before: Option<&[u8]>, sees: bool, new: &[u8]| {
                (if applied && sees { Some(new) } else { before }).map(<[u8]>::to_vec)
            };
            let target = (after(row.target.0, sees.0, b"n"), after(row.target.1, sees.1, b"n"));
            assert_eq!(both(lake, KEY).await, target, "{what}");
            let signal = (after(v1, sees.0, SIGNAL.1), after(v2, sees.1, SIGNAL.1));
            assert_eq!(both(lake, SIGNAL.0).await, signal, "{what}: the signal follows the target");
        }
    }
}

#[tokio::test]
async fn a_signal_is_put_in_every_table_that_the_target_is_written_in_and_only_with_it() {
    let lake = Lake::empty().await;
    hold(&lake, &lake.store(Mode::Dual).await, &rows(Side::V1), (true, true)).await;
    let alone = |row: &Row| matches!(row.target, (a, b) if a == b) && row.guard.is_none_or(|(a, b)| a == b);
    let of_v1: Vec<_> = rows(Side::V1).into_iter().filter(alone).collect();
    hold(&lake, &lake.store(Mode::V1Only).await, &of_v1, (true, false)).await;
    lake.publish_audited().await;
    hold(&lake, &lake.store(Mode::Dual).await, &rows(Side::V2), (true, true)).await;
    hold(&lake, &lake.store(Mode::V2Only).await, &rows(Side::V2), (false, true)).await;
}

#[tokio::test]
async fn a_signaled_create_and_delete_signal_too_and_the_barrier_holds_them() {
    let lake = Lake::empty().await;
    let store = lake.store(Mode::Dual).await;
    let create = |n: &'static [u8]| store.signaled_mutate((SIGNAL.0, n), None, KEY, None, Some(b"v"));
    assert_eq!(create(b"1").await.unwrap(), Mutation::Applied);
    assert_eq!(both(&lake, SIGNAL.0).await, (Some(b"1".to_vec()), Some(b"1".to_vec())));
    assert_eq!(create(b"2").await.unwrap(), Mutation::Conflict { current: Some(b"v".to_vec()) });
    let deleted = store.signaled_mutate((SIGNAL.0, b"3"), None, KEY, Some(b"v"), None).await.unwrap();
    assert_eq!(deleted, Mutation::Applied);
    assert_eq!(both(&lake, SIGNAL.0).await, (Some(b"3".to_vec()), Some(b"3".to_vec())));
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    assert_eq!(create(b"4").await.unwrap_err().kind(), ErrorKind::BarrierHeld);
    assert_eq!(both(&lake, SIGNAL.0).await, (Some(b"3".to_vec()), Some(b"3".to_vec())));
}

#[tokio::test]
async fn a_signal_that_is_the_target_or_the_guard_or_that_no_table_holds_is_refused_before_anything_is_sent()
{
    let lake = Lake::empty().await;
    for (published, mode) in
        [(false, Mode::Dual), (false, Mode::V1Only), (true, Mode::Dual), (true, Mode::V2Only)]
    {
        if published {
            lake.publish_audited().await;
        }
        let store = lake.store(mode).await;
        let sent = store.usage().all_requests();
        let long = "k".repeat(if mode == Mode::V1Only { 2049 } else { 1025 });
        let too_long = if mode == Mode::V1Only { ErrorKind::InvalidKey } else { ErrorKind::KeyTooLong };
        let big = vec![0; 409_600];
        let internal = format!("{INTERNAL_PREFIX}/plan");
        for (signal, guard, kind) in [
            ((KEY, &b"1"[..]), None, ErrorKind::InvalidInput),
            ((GUARD, b"1"), Some((GUARD, &b"g"[..])), ErrorKind::InvalidInput),
            ((&internal, b"1"), None, ErrorKind::InvalidKey),
            (("", b"1"), None, ErrorKind::InvalidKey),
            ((&long, b"1"), None, too_long),
            ((SIGNAL.0, &big), None, ErrorKind::ItemTooLarge),
            (SIGNAL, Some((KEY, b"g")), ErrorKind::InvalidInput),
            (SIGNAL, Some((&long, b"g")), too_long),
        ] {
            let refused = store.signaled_mutate(signal, guard, KEY, None, Some(b"v")).await.unwrap_err();
            assert_eq!(refused.kind(), kind, "{mode:?}: {refused}");
        }
        assert_eq!(store.usage().all_requests(), sent, "{mode:?}");
    }
}

/// The filter of the scan that `retire` prints, run as it is: what the printed commands would remove.
async fn what_retire_removes(lake: &Lake) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout", "retire", "--dry-run", "--table", TABLE, "--endpoint"]);
    let output = command.arg(lake.server.endpoint()).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let printed = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .flat_map(|line| line["commands"].as_array().cloned().unwrap_or_default())
        .filter_map(|command| command.as_str().map(str::to_owned))
        .find(|command| command.contains("--filter-expression"))
        .expect("retire prints a scan");
    let quoted = |flag: &str| {
        let rest = printed.split_once(flag).unwrap().1;
        rest.split('\'').nth(1).unwrap().to_owned()
    };
    let values: Value = serde_json::from_str(&quoted("--expression-attribute-values")).unwrap();
    let mut scan = lake.client.scan().table_name(TABLE).filter_expression(quoted("--filter-expression"));
    for (name, value) in values.as_object().unwrap() {
        let text = value["S"].as_str().unwrap().to_owned();
        scan = scan.expression_attribute_values(name, AttributeValue::S(text));
    }
    let items = scan.send().await.unwrap().items.unwrap_or_default();
    items.iter().map(|item| item["pk"].as_s().unwrap().clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lakes_own_keys_under_live_signals_are_copied_compared_finalized_read_and_never_retired() {
    let items = 400;
    let lake = Lake::with_items(items).await;
    // As lake leaves them: one only in v1, one in both tables with other values.
    lake.put(Side::V1, AUTHORITATIVE, b"yes").await;
    lake.put(Side::V1, LAKE_SIGNAL_KEY, b"0").await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(lake.store(Mode::Dual).await);
    }
    let workload = Workload::start(stores, lake.store(Mode::Dual).await, items, Duration::from_millis(2), 29);
    let run = lake.run(3);
    run.backfill().await.unwrap();
    let (summary, _) = run.rehearse().await.unwrap();
    assert_eq!(summary.mismatched, 0, "{summary:?}");
    let (repaired, summary) = run.repair().await.unwrap();
    let touched = (repaired.progress.copied, repaired.progress.rejected, repaired.progress.diverged);
    assert_eq!((touched, summary.mismatched), ((0, 0, 0), 0), "{summary:?}");
    let under_load = Start { writes_paused: false, under_load: true, ..start("e1") };
    let finished = run.finalize(&under_load, &Evidence::Acknowledged(true)).await.unwrap();
    let family = finished.families.iter().find(|one| one.family == "__lake_internal").unwrap();
    assert_eq!((family.verified, family.read), (2, 2));
    let node = lake.store(Mode::Dual).await;
    let counts = workload.finish(&node).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
    lake.assert_equal().await;

    let (of_v1, of_v2) = both(&lake, LAKE_SIGNAL_KEY).await;
    assert!(of_v1 == of_v2 && of_v1.as_deref() != Some(b"0"), "{of_v1:?} {of_v2:?}");
    assert_eq!(node.get(LAKE_SIGNAL_KEY).await.unwrap(), of_v2);
    assert_eq!(both(&lake, AUTHORITATIVE).await, (Some(b"yes".to_vec()), Some(b"yes".to_vec())));
    assert_eq!(node.get(AUTHORITATIVE).await.unwrap().as_deref(), Some(&b"yes"[..]));
    let listed = node.list("__lake_internal/").await.unwrap();
    assert_eq!(listed, [AUTHORITATIVE, LAKE_SIGNAL_KEY], "by prefix, the migrator's own left out");

    let removed = what_retire_removes(&lake).await;
    let mut users: Vec<_> = lake.v1().await.into_keys().filter(|key| !is_internal(key)).collect();
    users.retain(|key| key != AUTHORITATIVE && key != LAKE_SIGNAL_KEY);
    let mut sorted = removed.clone();
    sorted.sort();
    assert_eq!(sorted, users, "everything but what lake needs");
}

/// Every transaction of these operations that mentions the signal key meets another one.
fn busy(operation: &str) -> Rule {
    let conflict = Fault::Cancel { reasons: vec!["TransactionConflict".to_owned()] };
    Rule::new(operation, conflict).on(operation).mentioning(LAKE_SIGNAL_KEY)
}

#[tokio::test]
async fn a_key_that_no_transaction_can_read_is_read_apart_and_ends_neither_rehearsal_nor_backfill_nor_repair()
{
    let lake = Lake::with_items(60).await;
    lake.run(2).backfill().await.unwrap();
    lake.put(Side::V1, LAKE_SIGNAL_KEY, b"new").await;
    lake.put(Side::V2, LAKE_SIGNAL_KEY, b"old").await;
    let proxy = lake.proxy().await;
    proxy.add(busy("TransactGetItems"));
    let run = lake.run_with(&tables_through(&proxy), 2, 20);
    let (summary, _) = run.compare().await.unwrap();
    assert_eq!(summary.mismatches.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), [LAKE_SIGNAL_KEY]);
    assert!(proxy.hits("TransactGetItems") > 1);
    let (repaired, summary) = run.repair().await.unwrap();
    assert_eq!((repaired.progress.copied, summary.mismatched), (1, 0), "{summary:?}");
    assert_eq!(lake.assert_equal().await, 61);
    // Written while the comparison reads it apart: the mirror is seen to follow.
    lake.put(Side::V2, LAKE_SIGNAL_KEY, b"behind").await;
    proxy.add(Rule::new("looked", Fault::Hold).on("GetItem").table("lake_prefix_v2").times(1));
    let comparing = tokio::spawn(async move { run.compare().await });
    proxy.reached("looked", 1).await;
    let node = lake.store(Mode::Dual).await;
    let signaled = node.signaled_mutate((LAKE_SIGNAL_KEY, b"3"), None, "tbl/x", None, Some(b"v")).await;
    assert_eq!(signaled.unwrap(), Mutation::Applied);
    proxy.release("looked");
    let (summary, _) = comparing.await.unwrap().unwrap();
    assert_eq!(summary.mismatched, 0, "{summary:?}");
}

#[tokio::test]
async fn a_key_that_no_transaction_can_copy_is_left_while_all_others_move_and_copied_by_the_next_run() {
    let lake = Lake::with_items(60).await;
    lake.put(Side::V1, LAKE_SIGNAL_KEY, b"1").await;
    let proxy = lake.proxy().await;
    proxy.add(busy("TransactWriteItems").mentioning("/backfill/"));
    let impatient = tables_through(&proxy).patient(Duration::from_millis(60));
    let run = lake.run_with(&impatient, 2, 20);
    let error = run.backfill().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BlockedByDivergence, "{error}");
    assert_eq!(lake.v2().await.len(), 60, "all but one");
    proxy.clear();
    let total = run.backfill().await.unwrap();
    assert_eq!(total.progress.diverged, 0);
    assert_eq!(lake.assert_equal().await, 61);

    // The same under a repair: it ends, and what it left is said.
    lake.put(Side::V1, LAKE_SIGNAL_KEY, b"2").await;
    proxy.add(busy("TransactWriteItems").mentioning("/repair/"));
    let (repaired, summary) = run.repair().await.unwrap();
    assert!(repaired.progress.diverged > 0, "{:?}", repaired.progress);
    assert_eq!(summary.mismatches.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), [LAKE_SIGNAL_KEY]);
    proxy.clear();
    assert_eq!(run.repair().await.unwrap().1.mismatched, 0);
}
