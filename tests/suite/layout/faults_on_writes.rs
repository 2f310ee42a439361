//! Each fault on each kind of write: what was lost is recognised, what was refused is sent again or typed.

use std::time::Duration;

use metashift::layout::cutover::Evidence;
use metashift::layout::records::{MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Side;
use metashift::layout::{MetaStore, Mode, Mutation};
use metashift::{ErrorKind, Result};
use metashift_faults::{Fault, Proxy, Rule};

use super::support::{Lake, start, tables_through};

fn cancel(reasons: &[&str]) -> Fault {
    Fault::Cancel { reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect() }
}

fn error(name: &str) -> Fault {
    Fault::Error { name: name.to_owned() }
}

/// Every fault that passes, and how often in a row.
fn passing() -> Vec<(&'static str, Fault, u64)> {
    vec![
        ("answer dropped", Fault::DropAnswer, 1),
        ("answer dropped twice", Fault::DropAnswer, 2),
        ("answer cut", Fault::Cut, 1),
        ("request dropped", Fault::DropBefore, 1),
        ("500 after the write", Fault::Status { status: 500, forwarded: true }, 1),
        ("500 before the write", Fault::Status { status: 500, forwarded: false }, 1),
        ("503", Fault::Status { status: 503, forwarded: false }, 2),
        ("internal error", error("InternalServerError"), 1),
        ("conflict", cancel(&["TransactionConflict"]), 2),
        ("conflict of the second action", cancel(&["None", "TransactionConflict"]), 2),
        ("throttled action", cancel(&["ThrottlingError"]), 2),
        ("conflict and throttle", cancel(&["TransactionConflict", "ThrottlingError"]), 3),
        ("condition and conflict", cancel(&["ConditionalCheckFailed", "TransactionConflict"]), 2),
        ("no reason given", cancel(&["None", "None"]), 1),
        ("no reasons at all", cancel(&[]), 1),
        ("in progress", error("TransactionInProgressException"), 2),
        ("throttled", error("ProvisionedThroughputExceededException"), 2),
        ("throttled by the service", error("ThrottlingException"), 2),
    ]
}

/// One rule for each kind of write of a whole migration: its name, what its request mentions, how many come before.
const KINDS: [(&str, &str, u64); 10] = [
    ("marker", "prefix-v2-authority", 1),
    ("barrier", "finalize-barrier", 0),
    ("segment created", "/backfill/0/0", 0),
    ("data group", "/backfill/0/0", 1),
    ("cursor alone", "/rehearse/", 1),
    ("verification begun", "/verify/e1/v1/0", 0),
    ("verified page", "/verify/e1/v1/0", 1),
    ("verification done", "/verify/e1/v2/1", 2),
    ("plan opening", "dynamo-prefix-v2/plan", 0),
    ("plan open", "dynamo-prefix-v2/plan", 1),
];

async fn migrate(lake: &Lake, proxy: &Proxy) -> Result<u64> {
    let run = lake.run_with(&tables_through(proxy), 2, 30);
    run.backfill().await?;
    Ok(run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await?.verified)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_whose_every_kind_of_write_suffers_each_fault_ends_as_one_that_suffers_none() {
    for (name, fault, times) in passing() {
        let lake = Lake::with_items(110).await;
        let proxy = lake.proxy().await;
        for (kind, mentions, skip) in KINDS {
            proxy.add(
                Rule::new(kind, fault.clone())
                    .on("TransactWriteItems")
                    .mentioning(mentions)
                    .skip(skip)
                    .times(times),
            );
        }
        let verified = migrate(&lake, &proxy).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(verified, 110, "{name}");
        for (kind, ..) in KINDS {
            assert_eq!(proxy.hits(kind), times, "{name}: {kind}");
        }
        assert_eq!(lake.assert_equal().await, 110, "{name}");
        assert_eq!(lake.value(Side::V1, MARKER_KEY).await.as_deref(), Some(MARKER_VALUE), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mutation_of_a_node_lands_once_under_each_fault() {
    for (name, fault, times) in passing() {
        let lake = Lake::empty().await;
        let proxy = lake.proxy().await;
        for (published, mode) in
            [(false, Mode::Dual), (false, Mode::V1Only), (true, Mode::Dual), (true, Mode::V2Only)]
        {
            if published {
                lake.publish().await;
            }
            let store = MetaStore::open(tables_through(&proxy), mode).await.unwrap();
            let key = format!("tbl/{published}/{mode:?}");
            let guard = format!("lease-{published}-{mode:?}");
            assert_eq!(store.cas(&guard, None, Some(b"held")).await.unwrap(), Mutation::Applied);
            // Created, deleted, created equal again: a token that came from the content would swallow the last.
            let changes: [(Option<&[u8]>, Option<&[u8]>); 5] = [
                (None, Some(b"1")),
                (Some(b"1"), Some(b"2")),
                (Some(b"2"), None),
                (None, Some(b"1")),
                (Some(b"1"), Some(b"3")),
            ];
            for (number, (expected, new)) in changes.into_iter().enumerate() {
                proxy.add(Rule::new("fault", fault.clone()).on("TransactWriteItems").times(times));
                let answer = if number == 4 {
                    store.guarded_mutate((&guard, b"held"), &key, expected, new).await
                } else {
                    store.cas(&key, expected, new).await
                };
                let what = format!("{name}: {key} change {number}");
                assert_eq!(answer.unwrap(), Mutation::Applied, "{what}");
                assert_eq!(proxy.hits("fault"), times, "{what}");
                assert_eq!(store.get(&key).await.unwrap().as_deref(), new, "{what}");
            }
            proxy.clear();
        }
    }
}

#[tokio::test]
async fn a_conflict_twice_then_success_is_three_requests_and_one_write() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
    proxy.add(
        Rule::new("conflict", cancel(&["TransactionConflict", "None"])).times(2).on("TransactWriteItems"),
    );
    assert_eq!(store.cas("tbl/a", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    assert_eq!(proxy.statistics().calls.get("TransactWriteItems"), Some(&3));
    assert_eq!(store.usage().conflicts, 2);
}

#[tokio::test]
async fn what_no_retry_mends_fails_after_one_request_and_names_table_and_key() {
    let lake = Lake::empty().await;
    let before = lake.everything().await;
    let proxy = lake.proxy().await;
    for (fault, kind, named) in [
        (cancel(&["ValidationError", "None"]), ErrorKind::InvalidInput, Some("lake")),
        (
            cancel(&["TransactionConflict", "ValidationError"]),
            ErrorKind::InvalidInput,
            Some("lake_prefix_v2"),
        ),
        (cancel(&["ThrottlingError", "AccessDenied"]), ErrorKind::AccessDenied, Some("lake_prefix_v2")),
        (
            cancel(&["None", "ItemCollectionSizeLimitExceeded"]),
            ErrorKind::InvalidInput,
            Some("lake_prefix_v2"),
        ),
        (cancel(&["SomethingNew"]), ErrorKind::Internal, Some("lake")),
        (error("ValidationException"), ErrorKind::InvalidInput, None),
        (error("AccessDeniedException"), ErrorKind::AccessDenied, None),
        (error("ResourceNotFoundException"), ErrorKind::TableMismatch, None),
        (error("IdempotentParameterMismatchException"), ErrorKind::Internal, None),
    ] {
        let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
        proxy.add(Rule::new("fault", fault.clone()).on("TransactWriteItems"));
        let error = store.cas("tbl/a", None, Some(b"v")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.message().contains("tbl/a"), "{fault:?}: {error}");
        assert!(named.is_none_or(|table| error.message().contains(&format!("of {table} "))), "{error}");
        assert_eq!(proxy.hits("fault"), 1, "{fault:?}");
    }
    assert!(before == lake.everything().await);
}

#[tokio::test]
async fn what_does_not_pass_backs_off_and_ends_typed_within_the_patience() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    for (fault, kind) in [
        (cancel(&["TransactionConflict"]), ErrorKind::Contended),
        (cancel(&["TransactionConflict", "ThrottlingError"]), ErrorKind::Throttled),
        (error("ThrottlingException"), ErrorKind::Throttled),
        (error("TransactionInProgressException"), ErrorKind::Contended),
        (cancel(&[]), ErrorKind::Unavailable),
        (Fault::Status { status: 500, forwarded: false }, ErrorKind::OutcomeUnknown),
        (Fault::DropBefore, ErrorKind::OutcomeUnknown),
    ] {
        let tables = tables_through(&proxy).patient(Duration::from_millis(600));
        let store = MetaStore::open(tables, Mode::Dual).await.unwrap();
        proxy.add(Rule::new("fault", fault.clone()).on("TransactWriteItems"));
        let started = tokio::time::Instant::now();
        let error = store.cas("tbl/a", None, Some(b"v")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.next_step().is_some());
        assert!(started.elapsed() < Duration::from_secs(3), "{fault:?}");
        // Pauses double from 25 ms: a loop without any would send hundreds.
        assert!((2..=40).contains(&proxy.hits("fault")), "{fault:?}: {} requests", proxy.hits("fault"));
        proxy.clear();
        assert_eq!(lake.value(Side::V1, "tbl/a").await, None, "{fault:?}");
    }
}

#[tokio::test]
async fn an_answer_that_stays_lost_is_an_unknown_outcome_and_the_node_asks_what_became_of_it() {
    let lake = Lake::empty().await;
    let proxy = lake.proxy().await;
    for (fault, landed) in [(Fault::DropAnswer, true), (Fault::DropBefore, false)] {
        let tables = tables_through(&proxy).patient(Duration::from_millis(400));
        let store = MetaStore::open(tables, Mode::Dual).await.unwrap();
        proxy.add(Rule::new("fault", fault).on("TransactWriteItems"));
        let error = store.cas("tbl/a", None, Some(b"v")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        proxy.clear();
        assert_eq!(store.get("tbl/a").await.unwrap().is_some(), landed);
        if landed {
            store.delete("tbl/a", b"v").await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_migration_whose_answers_stay_lost_ends_typed_and_the_next_run_goes_on() {
    for (kind, mentions, skip) in KINDS.into_iter().filter(|(kind, ..)| *kind != "barrier") {
        let lake = Lake::with_items(110).await;
        let proxy = lake.proxy().await;
        proxy.add(
            Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems").mentioning(mentions).skip(skip),
        );
        // Nor can it read whether the write landed.
        proxy.add(Rule::new("blind", Fault::DropBefore).on("GetItem").mentioning(mentions).skip(9));
        let tables = tables_through(&proxy).patient(Duration::from_millis(150));
        let run = lake.run_with(&tables, 2, 30);
        let ended = match run.backfill().await {
            Ok(_) => run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.map(|_| ()),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            let expected = [ErrorKind::OutcomeUnknown, ErrorKind::Unavailable, ErrorKind::Superseded];
            assert!(expected.contains(&error.kind()), "{kind}: {error}");
        }
        assert!(proxy.hits("lost") > 0, "{kind}");
        proxy.clear();
        lake.run(2)
            .finalize(&start("e2"), &Evidence::Acknowledged(true))
            .await
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(lake.assert_equal().await, 110, "{kind}");
    }
}
