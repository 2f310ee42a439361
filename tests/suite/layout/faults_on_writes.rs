//! Each fault on each kind of write: what was lost is recognised, what was refused is sent again or typed.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use metashift::layout::cutover::{Evidence, install_barrier, release_barrier};
use metashift::layout::records::{MARKER_KEY, MARKER_VALUE};
use metashift::layout::transaction::Side;
use metashift::layout::{MetaStore, Mode, Mutation, Tables};
use metashift::{ErrorKind, Result};
use metashift_faults::{Fault, Proxy, Rule};

use super::support::{ABORT, Lake, start, tables, tables_through};

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
                lake.publish_audited().await;
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
        // The answer's Date is what this machine's clock says: it is not the time that is wrong.
        (error("InvalidSignatureException"), ErrorKind::AccessDenied, None),
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

/// A node that waits half a second for an answer, behind a proxy.
fn impatient(proxy: &Proxy) -> Tables {
    let client = metashift_sandbox::server::client(&proxy.endpoint());
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_millis(500));
    tables(Client::from_conf(client.config().to_builder().timeout_config(timeouts.build()).build()))
}

#[tokio::test]
async fn a_mutation_that_was_refused_never_lands_though_an_earlier_copy_of_it_arrives_later() {
    let lake = Lake::empty().await;
    let other = lake.store(Mode::Dual).await;
    let proxy = lake.proxy().await;
    let hold = |times: u64| Rule::new("late", Fault::Hold).on("TransactWriteItems").times(times);

    // Refused because the key was there; then it was deleted. The answer that the token is spent is lost too.
    proxy.add(hold(1));
    proxy.add(Rule::new("lost", Fault::DropAnswer).on("TransactWriteItems").mentioning("/spent/").times(1));
    let store = MetaStore::open(impatient(&proxy), Mode::Dual).await.unwrap();
    let node = tokio::spawn(async move { store.cas("tbl/a", None, Some(b"late")).await });
    proxy.reached("late", 1).await;
    assert_eq!(other.cas("tbl/a", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    let refused = node.await.unwrap().unwrap();
    assert_eq!(refused, Mutation::Conflict { current: Some(b"v".to_vec()) });
    assert_eq!(proxy.hits("lost"), 1);
    other.delete("tbl/a", b"v").await.unwrap();
    proxy.release("late");
    proxy.idle().await;
    assert_eq!(lake.value(Side::V1, "tbl/a").await, None, "what was refused has landed");

    // Refused by the barrier of a cutover that was aborted then.
    proxy.clear();
    lake.run(1).backfill().await.unwrap();
    proxy.add(hold(1));
    let store = MetaStore::open(impatient(&proxy), Mode::Dual).await.unwrap();
    let node = tokio::spawn(async move { store.cas("tbl/b", None, Some(b"late")).await });
    proxy.reached("late", 1).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    assert_eq!(node.await.unwrap().unwrap_err().kind(), ErrorKind::BarrierHeld);
    release_barrier(&lake.tables, Some("e1"), ABORT).await.unwrap();
    proxy.release("late");
    proxy.idle().await;
    assert_eq!(lake.value(Side::V1, "tbl/b").await, None, "what was refused has landed");
}

#[tokio::test]
async fn a_mutation_whose_earlier_copy_lands_between_its_refusal_and_the_spending_of_its_token_is_applied() {
    let lake = Lake::empty().await;
    let other = lake.store(Mode::Dual).await;
    other.cas("tbl/a", None, Some(b"v")).await.unwrap();
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("late", Fault::Hold).on("TransactWriteItems").times(1));
    proxy
        .add(Rule::new("spent", Fault::Delay { millis: 400 }).on("TransactWriteItems").mentioning("/spent/"));
    let store = MetaStore::open(impatient(&proxy), Mode::Dual).await.unwrap();
    let node = tokio::spawn(async move { store.cas("tbl/a", None, Some(b"late")).await });
    tokio::time::timeout(Duration::from_secs(30), proxy.reached("spent", 1)).await.expect("it is spent");
    other.delete("tbl/a", b"v").await.unwrap();
    proxy.release("late");
    assert_eq!(node.await.unwrap().unwrap(), Mutation::Applied);
    assert_eq!(other.get("tbl/a").await.unwrap().as_deref(), Some(&b"late"[..]));
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
