//! Empty pages, unprocessed keys, lost reads, and a table that throttles for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metashift::crash;
use metashift::layout::backfill::backfill_page;
use metashift::layout::generation::{PlanWish, open_plan};
use metashift::layout::records::segment::{State, Walk};
use metashift::layout::transaction::Side;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{MetaStore, Mode};
use metashift::step::Status;
use metashift::{Error, ErrorKind};
use metashift_faults::{Fault, Rule};
use metashift_sandbox::Workload;

use super::support::{Lake, dump, number, on, pages, start, tables_through};

const WALK: Walk = Walk::Backfill { generation: 0 };

async fn open(lake: &Lake, segments: u32) {
    let wish = PlanWish { segments: Some(segments), new_generation: false };
    open_plan(&lake.tables, wish).await.unwrap();
}

#[tokio::test]
async fn five_hundred_empty_pages_in_a_row_keep_the_cursor_moving_and_the_budget_kept() {
    let lake = Lake::with_items(90).await;
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    // After the first page, each a little further; the last of them where the first page ended.
    let first = lake.tables.scan(Side::V1, (0, 1), 50, None, true).await.unwrap();
    let body = |key: &str| {
        format!(r#"{{"Items":[],"Count":0,"ScannedCount":0,"LastEvaluatedKey":{{"pk":{{"S":"{key}"}}}}}}"#)
    };
    proxy.add(Rule::new("empty", Fault::Answer { body: body("!{n}") }).on("Scan").skip(1).times(499));
    let back = Fault::Answer { body: body(&first.next.unwrap().pk) };
    proxy.add(Rule::new("back", back).on("Scan").skip(1).times(1));
    let tables = tables_through(&proxy);
    let input = SegmentInput { segment: 0, segments: 1, page_size: 50 };
    let mut steps = 0;
    let mut cursor = None;
    loop {
        let output = backfill_page(&tables, 0, input.clone(), pages(60)).await.unwrap();
        steps += 1;
        if output.status == Status::Done {
            break;
        }
        let moved = lake.segment(&WALK, 0).await.unwrap().cursor;
        assert_ne!(moved, cursor, "the cursor stood still in step {steps}");
        cursor = moved;
        assert!(steps < 20);
    }
    assert!(steps >= 8, "{steps} steps of 60 pages");
    assert_eq!((proxy.hits("empty"), proxy.hits("back")), (499, 1));
    assert_eq!(lake.assert_equal().await, 90);
}

#[tokio::test]
async fn an_empty_last_evaluated_key_is_the_end() {
    let lake = Lake::with_items(10).await;
    open(&lake, 1).await;
    let proxy = lake.proxy().await;
    let body = r#"{"Items":[],"Count":0,"ScannedCount":0,"LastEvaluatedKey":{}}"#;
    proxy.add(Rule::new("end", Fault::Answer { body: body.to_owned() }).on("Scan"));
    let input = SegmentInput { segment: 0, segments: 1, page_size: 50 };
    let output = backfill_page(&tables_through(&proxy), 0, input, pages(60)).await.unwrap();
    assert_eq!((output.status, proxy.hits("end")), (Status::Done, 1));
}

#[tokio::test]
async fn unprocessed_keys_are_asked_for_again_until_none_is_left() {
    let lake = Lake::with_items(300).await;
    // Half of it is there already, so that a key left unread would be put again and refused.
    for n in 0..150 {
        lake.put(Side::V2, &metashift_sandbox::seed::key(n), &metashift_sandbox::seed::value(n)).await;
    }
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("half", Fault::Unprocessed).on("BatchGetItem"));
    let run = lake.run_with(&tables_through(&proxy), 1, 200);
    let total = run.backfill().await.unwrap();
    assert_eq!((total.progress.copied, total.progress.already_live), (150, 150));
    assert!(proxy.hits("half") > 10);
    assert_eq!(lake.assert_equal().await, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_throttles_nine_writes_of_ten_loses_nothing_and_then_runs_at_full_speed_again() {
    let seconds: u32 = number("METASHIFT_THROTTLED_SECONDS", 5).try_into().unwrap();
    let items = 600 * seconds;
    let lake = Lake::with_items(items).await;
    open(&lake, 2).await;
    let proxy = lake.proxy().await;
    let tables = tables_through(&proxy);
    let throttled = Fault::Error { name: "ProvisionedThroughputExceededException".to_owned() };
    proxy.add(
        Rule::new("throttled", throttled).on("TransactWriteItems").table("lake_prefix_v2").share(0.9, 5),
    );
    // A live writer through the same weather.
    let store = MetaStore::open(tables.metered(), Mode::Dual).await.unwrap();
    let reader = lake.store(Mode::Dual).await;
    let workload = Workload::start(vec![store], reader, items, Duration::from_millis(20), 13);
    let until = tokio::time::Instant::now() + Duration::from_secs(seconds.into());
    let run = lake.run_with(&tables, 2, 100);
    while tokio::time::Instant::now() < until {
        match tokio::time::timeout_at(until, run.backfill()).await {
            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Throttled, "{error}"),
            Ok(Ok(_)) => panic!("{items} items went through nine throttles of ten in {seconds} s"),
            Err(_) => {}
        }
    }
    assert!(proxy.hits("throttled") > 30);
    proxy.clear();
    // Healed: the same client, in the same process, in groups as large as before.
    for segment in 0..2 {
        let before = lake.segment(&WALK, segment).await.unwrap();
        assert_eq!(before.state, State::Open);
        let written = proxy.statistics().calls["TransactWriteItems"];
        let input = SegmentInput { segment, segments: 2, page_size: 98 };
        let metered = tables.metered();
        let output = backfill_page(&metered, 0, input, pages(10_000)).await.unwrap();
        assert_eq!(output.status, Status::Done);
        assert_eq!(output.details["step"]["throttled"], 0);
        // The live writer sends some too; small groups would be many more.
        let sent = proxy.statistics().calls["TransactWriteItems"] - written;
        let least = (output.progress.scanned - before.scanned).div_ceil(49);
        assert!(sent < least * 2 + 60, "{sent} writes where {least} would do");
    }
    let counts = workload.finish(&lake.store(Mode::Dual).await).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
    assert!(counts.applied > 0, "{counts:?}");
    lake.assert_equal().await;
}

#[tokio::test]
async fn a_hot_family_is_written_to_all_its_buckets_at_once_and_never_bucket_by_bucket() {
    let lake = Lake::empty().await;
    for n in 0..400 {
        lake.put(Side::V1, &format!("append-operation/v1/{n:08}"), b"v").await;
    }
    open(&lake, 1).await;
    let (client, groups) = (lake.client.clone(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&groups);
    let hook = on("backfill-group", move || {
        let (client, seen) = (client.clone(), Arc::clone(&seen));
        async move {
            let written = dump(&client, "lake_prefix_v2").await;
            seen.lock().unwrap().push(written);
        }
    });
    let input = SegmentInput { segment: 0, segments: 1, page_size: 100 };
    crash::with_hook(hook, backfill_page(&lake.tables, 0, input, pages(100))).await.unwrap();
    let groups = std::mem::take(&mut *groups.lock().unwrap());
    assert!(groups.len() >= 8, "{} groups", groups.len());
    let mut before = BTreeSet::new();
    for written in groups {
        let fresh: Vec<_> = written.iter().filter(|(key, _)| !before.contains(*key)).collect();
        let mut shares = BTreeMap::<_, usize>::new();
        for (_, (bucket, _)) in &fresh {
            *shares.entry(bucket.clone()).or_default() += 1;
        }
        // 64 buckets: by chance alone a key in three shares its bucket with another one of its group.
        assert!(shares.len() * 2 > fresh.len(), "{} keys went to {} buckets", fresh.len(), shares.len());
        assert!(shares.values().all(|share| *share <= 6), "{shares:?}");
        before.extend(written.into_keys());
    }
    assert_eq!(lake.assert_equal().await, 400);
}

#[tokio::test]
async fn while_one_hot_bucket_throttles_the_other_segments_are_finished() {
    let lake = Lake::with_items(400).await;
    open(&lake, 4).await;
    let proxy = lake.proxy().await;
    let hot = metashift_sandbox::seed::key(17);
    let throttled = Fault::Cancel { reasons: vec!["None".to_owned(), "ThrottlingError".to_owned()] };
    proxy.add(Rule::new("hot", throttled).on("TransactWriteItems").mentioning(&hot));
    let tables = tables_through(&proxy).patient(Duration::from_millis(400));
    let step = |segment: u32| {
        let input = SegmentInput { segment, segments: 4, page_size: 30 };
        backfill_page(&tables, 0, input, pages(1000))
    };
    let ended = futures::join!(step(0), step(1), step(2), step(3));
    let ended = [ended.0, ended.1, ended.2, ended.3];
    let failed: Vec<_> = ended.iter().filter_map(|ended| ended.as_ref().err()).map(Error::kind).collect();
    assert_eq!(failed, [ErrorKind::Throttled]);
    let mut done = 0;
    for segment in 0..4 {
        done += u32::from(lake.segment(&WALK, segment).await.unwrap().state == State::Done);
    }
    assert_eq!(done, 3);
    proxy.clear();
    lake.run(4).backfill().await.unwrap();
    assert_eq!(lake.assert_equal().await, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_in_foul_weather_with_writers_in_it_loses_and_revives_nothing() {
    let seed = number("METASHIFT_SEED", 42);
    println!("METASHIFT_SEED={seed}");
    let lake = Lake::with_items(400).await;
    let proxy = lake.proxy().await;
    let fault =
        |name: &str, fault: Fault, share: f64, salt: u64| Rule::new(name, fault).share(share, seed ^ salt);
    proxy.add(fault("lost", Fault::DropAnswer, 0.03, 1));
    proxy.add(fault("dropped", Fault::DropBefore, 0.03, 2));
    proxy.add(fault("cut", Fault::Cut, 0.02, 3));
    proxy.add(fault("500", Fault::Status { status: 500, forwarded: true }, 0.03, 4));
    proxy.add(fault("slow", Fault::Delay { millis: 30 }, 0.05, 5));
    let conflict = Fault::Cancel { reasons: vec!["TransactionConflict".to_owned()] };
    proxy.add(fault("conflict", conflict, 0.05, 6).on("TransactWriteItems"));
    let throttled = Fault::Error { name: "ThrottlingException".to_owned() };
    proxy.add(fault("throttled", throttled, 0.05, 7));
    let progress = Fault::Error { name: "TransactionInProgressException".to_owned() };
    proxy.add(fault("in progress", progress, 0.03, 8).on("TransactWriteItems"));
    proxy.add(fault("unprocessed", Fault::Unprocessed, 0.2, 9).on("BatchGetItem"));
    let tables = tables_through(&proxy);
    let mut stores = Vec::new();
    for _ in 0..2 {
        stores.push(MetaStore::open(tables.metered(), Mode::Dual).await.unwrap());
    }
    let reader = MetaStore::open(tables.metered(), Mode::Dual).await.unwrap();
    let workload = Workload::start(stores, reader, 400, Duration::from_millis(5), seed);
    let run = lake.run_with(&tables, 3, 50);
    run.backfill().await.unwrap();
    let begin = metashift::layout::cutover::Start { writes_paused: false, under_load: true, ..start("e1") };
    let acknowledged = metashift::layout::cutover::Evidence::Acknowledged(true);
    run.finalize(&begin, &acknowledged).await.unwrap();
    let after = MetaStore::open(lake.tables.metered(), Mode::Dual).await.unwrap();
    let counts = workload.finish(&after).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new(), "METASHIFT_SEED={seed}");
    let hits = proxy.statistics().hits;
    assert!(hits.values().all(|hits| *hits > 0), "{hits:?}");
    lake.assert_equal().await;
}
