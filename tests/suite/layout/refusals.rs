//! What another migrator left, records and tables of another kind, and endpoints that are not there: one typed error
//! each, and nothing changed.

use std::time::Duration;

use aws_sdk_dynamodb::config::{BehaviorVersion, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use metashift::environment::Environment;
use metashift::layout::cutover::install_barrier;
use metashift::layout::generation::PlanWish;
use metashift::layout::preflight::{Accepted, preflight};
use metashift::layout::records::plan::State;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE};
use metashift::layout::run::Run;
use metashift::layout::status::Overview;
use metashift::layout::transaction::Side;
use metashift::layout::{Layout, MetaStore, Mode, Mutation, Tables};
use metashift::{Error, ErrorKind};
use metashift_faults::{Fault, Proxy, Rule};
use metashift_sandbox::Server;

use super::support::{Lake, TABLE, acknowledged, start, tables, tables_through};

/// A run is refused with this, by every verb that would write, and nothing is changed.
async fn assert_refused(lake: &Lake, run: &Run, kind: ErrorKind) {
    let before = lake.everything().await;
    for error in
        [run.backfill().await.unwrap_err(), run.finalize(&start("e1"), &acknowledged()).await.unwrap_err()]
    {
        assert_one_line(&error, kind);
    }
    assert!(before == lake.everything().await, "{kind}: something was changed");
}

fn assert_one_line(error: &Error, kind: ErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.next_step().is_some(), "no next step: {error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[tokio::test]
async fn a_field_migrators_cursor_is_refused_until_it_is_discarded_by_name() {
    let lake = Lake::with_items(30).await;
    lake.put(Side::V1, FOREIGN_CURSOR_KEY, b"append-operation/v1/00000007").await;
    // It got as far as half of the items.
    for n in 0..15 {
        lake.put(Side::V2, &metashift_sandbox::seed::key(n), &metashift_sandbox::seed::value(n)).await;
    }
    let run = lake.run(2);
    assert_refused(&lake, &run, ErrorKind::ForeignLeftovers).await;
    let accepted = Accepted { discard_foreign_cursor: true, ..Accepted::default() };
    let total = Run { accepted, ..run }.backfill().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.already_live), (15, 15));
    assert_eq!(lake.value(Side::V1, FOREIGN_CURSOR_KEY).await, None);
    lake.run(2).finalize(&start("e1"), &acknowledged()).await.unwrap();
    assert_eq!(lake.assert_equal().await, 30);
}

#[tokio::test]
async fn a_barrier_without_a_plan_of_ours_is_refused_until_it_is_adopted_by_name() {
    let lake = Lake::with_items(30).await;
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    let run = lake.run(2);
    assert_refused(&lake, &run, ErrorKind::ForeignLeftovers).await;
    let accepted = Accepted { adopt_foreign_barrier: true, ..Accepted::default() };
    let run = Run { accepted, ..run };
    run.backfill().await.unwrap();
    let begin = start("e1");
    let refused = run.finalize(&begin, &acknowledged()).await.unwrap_err();
    assert_one_line(&refused, ErrorKind::ForeignLeftovers);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
    let begin = metashift::layout::cutover::Start { adopt_foreign_barrier: true, ..start("e2") };
    run.finalize(&begin, &acknowledged()).await.unwrap();
    assert_eq!(lake.assert_equal().await, 30);
}

#[tokio::test]
async fn a_marker_without_a_plan_of_ours_is_followed_by_a_final_plan() {
    let lake = Lake::with_items(5).await;
    lake.publish().await;
    let overview = Overview::load(&lake.tables).await.unwrap();
    assert!(overview.leftovers.marker && overview.plan.is_none());
    assert_one_line(&lake.run(2).backfill().await.unwrap_err(), ErrorKind::AlreadyFinalized);
    assert_eq!(lake.plan().await.unwrap().state, State::Final);
    assert!(lake.v2().await.is_empty(), "nothing is copied after the marker");
    // Nodes work under v2 all the same.
    let store = lake.store(Mode::Dual).await;
    assert_eq!(store.cas("tbl/a", None, Some(b"v")).await.unwrap(), Mutation::Applied);
}

#[tokio::test]
async fn a_foreign_marker_over_an_open_plan_stops_the_run_and_is_never_removed() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    lake.publish().await;
    let copies = lake.v2().await;
    assert_one_line(&lake.run(2).backfill().await.unwrap_err(), ErrorKind::AlreadyFinalized);
    let wish = PlanWish { segments: Some(2), new_generation: true };
    let error = Run { wish, ..lake.run(2) }.backfill().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyFinalized);
    let error = lake.run(2).repair().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyFinalized);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await.as_deref(), Some(MARKER_VALUE));
    assert_eq!(lake.plan().await.unwrap().state, State::Final);
    assert!(copies == lake.v2().await);
}

#[tokio::test]
async fn a_record_of_a_newer_version_or_of_no_known_form_is_refused_and_kept_as_it_is() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    for (key, verbs_see_it) in [
        ("__lake_internal/dynamo-prefix-v2/plan", true),
        ("__lake_internal/dynamo-prefix-v2/backfill/0/1", true),
        ("__lake_internal/dynamo-prefix-v2/control", true),
    ] {
        let kept = lake.value(Side::V1, key).await;
        for (bytes, kind) in [
            (&br#"{"version":3,"later":true}"#[..], ErrorKind::NewerRecord),
            (b"{}", ErrorKind::Corruption),
            (b"\xff\x00", ErrorKind::Corruption),
        ] {
            lake.put(Side::V1, key, bytes).await;
            let before = lake.everything().await;
            let error = lake.run(2).backfill().await.unwrap_err();
            assert_one_line(&error, kind);
            assert!(error.message().contains(key), "{error}");
            assert!(before == lake.everything().await, "{key}: something was changed");
            assert!(verbs_see_it);
        }
        match kept {
            Some(bytes) => lake.put(Side::V1, key, &bytes).await,
            None => lake.remove(Side::V1, key).await,
        }
    }
    lake.run(2).finalize(&start("e1"), &acknowledged()).await.unwrap();
}

#[tokio::test]
async fn another_layout_and_another_number_of_segments_are_refused() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    let layout = Layout::from_json(br#"{"version":1,"default":9,"families":{}}"#).unwrap();
    let other = Tables::new(lake.client.clone(), TABLE, None, layout, Environment::system());
    assert_refused(&lake, &lake.run_with(&other, 2, 10), ErrorKind::LayoutMismatch).await;
    let error = lake.run_with(&other, 2, 10).repair().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    let wish = PlanWish { segments: Some(3), new_generation: false };
    assert_refused(&lake, &Run { wish, ..lake.run(3) }, ErrorKind::PlanMismatch).await;
    let wish = PlanWish { new_generation: true, ..wish };
    Run { wish, ..lake.run(3) }.backfill().await.unwrap();
    assert_eq!(lake.plan().await.unwrap().segments, 3);
}

#[tokio::test]
async fn the_plan_keeps_the_name_of_its_companion_and_another_one_is_refused() {
    use KeyType::{Hash, Range};
    use ScalarAttributeType::S;
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    assert_eq!(lake.plan().await.unwrap().companion.as_deref(), Some("lake_prefix_v2"));
    create(&lake.server, "another_v2", &[("bucket", Hash, S), ("pk", Range, S)]).await;
    let named = |companion: &str| {
        let companion = Some(companion.to_owned());
        Tables::new(lake.client.clone(), TABLE, companion, Layout::default(), Environment::system())
    };
    let other = named("another_v2");
    let run = lake.run_with(&other, 2, 10);
    assert_refused(&lake, &run, ErrorKind::PlanMismatch).await;
    let before = lake.everything().await;
    let begin = install_barrier(&other, &start("e1")).await.unwrap_err();
    for error in [begin, run.repair().await.unwrap_err(), run.compare().await.unwrap_err()] {
        assert_one_line(&error, ErrorKind::PlanMismatch);
        assert!(error.next_step().unwrap().contains("--companion lake_prefix_v2"), "{error}");
    }
    assert!(before == lake.everything().await);
    lake.run_with(&named("lake_prefix_v2"), 2, 10).finalize(&start("e1"), &acknowledged()).await.unwrap();
    assert_eq!(lake.assert_equal().await, 20);
}

async fn create(server: &Server, name: &str, keys: &[(&str, KeyType, ScalarAttributeType)]) {
    let client = server.client();
    let mut request = client.create_table().table_name(name).billing_mode(BillingMode::PayPerRequest);
    for (attribute, kind, scalar) in keys {
        let element = KeySchemaElement::builder().attribute_name(*attribute).key_type(kind.clone());
        let definition =
            AttributeDefinition::builder().attribute_name(*attribute).attribute_type(scalar.clone());
        request =
            request.key_schema(element.build().unwrap()).attribute_definitions(definition.build().unwrap());
    }
    request.send().await.unwrap();
}

#[tokio::test]
async fn tables_that_are_missing_or_keyed_otherwise_are_named() {
    use KeyType::{Hash, Range};
    use ScalarAttributeType::{B, N, S};
    let v1_keys = || vec![("pk", Hash, S)];
    let v2_keys = || vec![("bucket", Hash, S), ("pk", Range, S)];
    type Keys = Vec<(&'static str, KeyType, ScalarAttributeType)>;
    let cases: [(Option<Keys>, Option<Keys>, &str); 8] = [
        (None, None, "lake"),
        (Some(v1_keys()), None, "lake_prefix_v2"),
        (None, Some(v2_keys()), "lake"),
        (Some(vec![("id", Hash, S)]), Some(v2_keys()), "lake"),
        (Some(vec![("pk", Hash, B)]), Some(v2_keys()), "lake"),
        (Some(vec![("pk", Hash, S), ("sk", Range, S)]), Some(v2_keys()), "lake"),
        (Some(v1_keys()), Some(vec![("pk", Hash, S), ("bucket", Range, S)]), "lake_prefix_v2"),
        (Some(v1_keys()), Some(vec![("bucket", Hash, S), ("pk", Range, N)]), "lake_prefix_v2"),
    ];
    for (v1, v2, named) in cases {
        let server = Server::start(0).await.unwrap();
        for (name, keys) in [("lake", v1), ("lake_prefix_v2", v2)] {
            if let Some(keys) = keys {
                create(&server, name, &keys).await;
            }
        }
        let run = Run {
            tables: tables(server.client()),
            wish: PlanWish { segments: Some(2), new_generation: false },
            accepted: Accepted::default(),
            page_size: 10,
            pages_per_step: 1,
            observer: std::sync::Arc::new(|_| {}),
        };
        for error in [
            run.backfill().await.unwrap_err(),
            run.finalize(&start("e1"), &acknowledged()).await.unwrap_err(),
        ] {
            assert_one_line(&error, ErrorKind::TableMismatch);
            assert!(error.message().contains(named), "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_lacks_the_calls_for_backups_is_no_obstacle() {
    let lake = Lake::with_items(5).await;
    let report = preflight(&lake.tables, Accepted::default(), None).await.unwrap();
    assert!(report.check().is_ok());
    assert_eq!(report.v1.point_in_time_recovery.unwrap(), None);
    assert!(report.warnings.iter().any(|warning| warning.contains("point-in-time recovery")));
}

#[tokio::test]
async fn an_endpoint_that_nobody_listens_on_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let tables = tables(metashift_sandbox::server::client(&format!("http://{address}")))
        .patient(Duration::from_millis(200));
    let error = MetaStore::open(tables.clone(), Mode::Dual).await.unwrap_err();
    assert_one_line(&error, ErrorKind::Unavailable);
    let error = preflight(&tables, Accepted::default(), None).await.unwrap_err();
    assert_one_line(&error, ErrorKind::Unavailable);
}

#[tokio::test]
async fn missing_credentials_are_access_denied_at_once() {
    let lake = Lake::with_items(5).await;
    let config = aws_sdk_dynamodb::config::Builder::new()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::from_static("us-east-1"))
        .endpoint_url(lake.server.endpoint());
    let tables = tables(metashift::layout::tables::client(config));
    let started = tokio::time::Instant::now();
    let error = MetaStore::open(tables.clone(), Mode::Dual).await.unwrap_err();
    assert_one_line(&error, ErrorKind::AccessDenied);
    let error = preflight(&tables, Accepted::default(), None).await.unwrap_err();
    assert_one_line(&error, ErrorKind::AccessDenied);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_denied_call_is_typed_names_the_table_and_is_not_tried_again() {
    let lake = Lake::with_items(20).await;
    let proxy: Proxy = lake.proxy().await;
    for operation in ["DescribeTable", "GetItem", "BatchGetItem", "Scan", "TransactWriteItems"] {
        let denied = Fault::Error { name: "AccessDeniedException".to_owned() };
        proxy.add(Rule::new("denied", denied).on(operation));
        let error = lake.run_with(&tables_through(&proxy), 2, 10).backfill().await.unwrap_err();
        assert_one_line(&error, ErrorKind::AccessDenied);
        assert!(proxy.hits("denied") <= 4, "{operation} was tried {} times", proxy.hits("denied"));
    }
    proxy.clear();
    let cancelled = Fault::Cancel { reasons: vec!["None".to_owned(), "AccessDenied".to_owned()] };
    proxy.add(Rule::new("denied", cancelled).on("TransactWriteItems").table("lake_prefix_v2"));
    let store = MetaStore::open(tables_through(&proxy), Mode::Dual).await.unwrap();
    let error = store.cas("tbl/a", None, Some(b"v")).await.unwrap_err();
    assert_one_line(&error, ErrorKind::AccessDenied);
    assert!(error.message().contains("lake_prefix_v2") && error.message().contains("tbl/a"), "{error}");
    assert_eq!(proxy.hits("denied"), 1);
}

#[tokio::test]
async fn a_barrier_of_our_own_that_is_released_while_preflight_looks_is_nobody_elses() {
    let lake = Lake::with_items(5).await;
    lake.run(1).backfill().await.unwrap();
    metashift::layout::cutover::install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("plan", Fault::Hold).on("GetItem").mentioning("dynamo-prefix-v2/plan").times(1));
    let tables = tables_through(&proxy);
    let looking = tokio::spawn(async move { preflight(&tables, Accepted::default(), None).await });
    proxy.reached("plan", 1).await;
    metashift::layout::cutover::release_barrier(&lake.tables, None, super::support::ABORT).await.unwrap();
    proxy.release("plan");
    looking.await.unwrap().unwrap().check().unwrap();
}

#[tokio::test]
async fn what_a_probe_cannot_find_out_blocks_where_a_yes_would_and_warns_where_a_no_would() {
    let lake = Lake::with_items(5).await;
    let proxy = lake.proxy().await;
    let tables = tables_through(&proxy).patient(Duration::from_millis(200));
    let run = lake.run_with(&tables, 2, 10);
    let allowed = Accepted { ttl: true, ..Accepted::default() };
    let error = |name: &str| Fault::Error { name: name.to_owned() };
    let failures = [
        (error("AccessDeniedException"), ErrorKind::AccessDenied),
        (error("InternalServerError"), ErrorKind::Unavailable),
        (error("ThrottlingException"), ErrorKind::Throttled),
        (Fault::DropBefore, ErrorKind::Unavailable),
    ];
    let before = lake.everything().await;
    for (fault, kind) in failures.clone() {
        proxy.add(Rule::new("ttl", fault).on("DescribeTimeToLive").table(TABLE));
        let refused = run.backfill().await.unwrap_err();
        assert_one_line(&refused, kind);
        assert!(refused.message().contains("(TTL) could not be found out"), "{refused}");
        assert!(refused.next_step().unwrap().contains("--allow-ttl"), "{refused}");
        let report = preflight(&tables, allowed, None).await.unwrap();
        assert!(report.check().is_ok());
        assert!(report.warnings.iter().any(|one| one.contains("TTL")), "{:?}", report.warnings);
    }
    proxy.add(Rule::new("ttl", error("UnknownOperationException")).on("DescribeTimeToLive"));
    let report = preflight(&tables, Accepted::default(), None).await.unwrap();
    assert!(
        report.check().is_ok() && report.v1.ttl.unwrap().is_none(),
        "a server without TTL expires nothing"
    );
    proxy.clear();
    for (fault, _) in failures.clone() {
        proxy.add(Rule::new("backups", fault).on("DescribeContinuousBackups"));
        let report = preflight(&tables, Accepted::default(), None).await.unwrap();
        assert!(report.check().is_ok());
        for name in ["v1", "v2"] {
            let warning = format!("whether {name} has point-in-time recovery could not be found out");
            assert!(report.warnings.iter().any(|one| one.contains(&warning)), "{:?}", report.warnings);
        }
    }
    proxy.clear();
    for table in [TABLE, "lake_prefix_v2"] {
        for (fault, kind) in failures.clone() {
            proxy.add(Rule::new("table", fault).on("DescribeTable").table(table));
            assert_eq!(preflight(&tables, allowed, None).await.unwrap_err().kind(), kind, "{table}");
        }
        proxy.clear();
    }
    // Without a status, and with replicas of the companion.
    let keys = r#""KeySchema":[{"AttributeName":"bucket","KeyType":"HASH"},{"AttributeName":"pk","KeyType":"RANGE"}],
        "AttributeDefinitions":[{"AttributeName":"bucket","AttributeType":"S"},{"AttributeName":"pk","AttributeType":"S"}]"#;
    for (more, says) in [
        (String::new(), "is not active"),
        (
            r#","TableStatus":"ACTIVE","Replicas":[{"RegionName":"eu-west-1"}]"#.to_owned(),
            "v2 has replicas in eu-west-1",
        ),
    ] {
        let body = format!(r#"{{"Table":{{{keys}{more}}}}}"#);
        proxy.add(Rule::new("table", Fault::Answer { body }).on("DescribeTable").table("lake_prefix_v2"));
        let refused = run.backfill().await.unwrap_err();
        assert_one_line(&refused, ErrorKind::TableMismatch);
        assert!(refused.message().contains(says), "{refused}");
    }
    assert!(before == lake.everything().await, "something was changed");
}
