//! Comparing the tables: exactly the planted defects, none under load, resumable.

use std::time::Duration;

use metashift::layout::cutover::{
    Evidence, Installed, Published, Released, Why, install_barrier, publish_marker, release_barrier,
    summary_of,
};
use metashift::layout::records::segment::{MismatchKind, State, Walk};
use metashift::layout::records::{MARKER_KEY, encode};
use metashift::layout::transaction::Side;
use metashift::layout::verify::{Summary, verify};
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Mode, Tables};
use metashift::step::{Status, StepOutput};
use metashift::{ErrorKind, Result, crash};
use metashift_faults::{Fault, Rule};
use metashift_sandbox::{Workload, seed};
use serde_json::json;
use tokio::task::JoinHandle;

use super::support::{Freeze, Lake, TABLE, acknowledged, on, pages, start, tables_through};

/// A lake that is backfilled.
async fn migrated(items: u32, segments: u32) -> Lake {
    let lake = Lake::with_items(items).await;
    lake.run(segments).backfill().await.unwrap();
    lake
}

/// The four kinds of defects, none of which a correct node can make.
async fn plant_all(lake: &Lake) -> Vec<(String, MismatchKind)> {
    lake.remove(Side::V2, &seed::key(3)).await;
    lake.put(Side::V2, "tbl/ns/extra", b"v").await;
    lake.put(Side::V2, &seed::key(60), b"wrong").await;
    let moved = seed::key(99);
    lake.remove(Side::V2, &moved).await;
    lake.put_in(Side::V2, "root#zz", &moved, &seed::value(99)).await;
    let mut planted = vec![
        (seed::key(3), MismatchKind::Missing),
        ("tbl/ns/extra".to_owned(), MismatchKind::Extra),
        (seed::key(60), MismatchKind::WrongValue),
        (moved, MismatchKind::WrongBucket),
    ];
    planted.sort();
    planted
}

fn found(summary: &Summary) -> Vec<(String, MismatchKind)> {
    assert_eq!(summary.mismatched, summary.mismatches.len() as u64);
    summary.mismatches.iter().map(|one| (one.key.clone(), one.kind)).collect()
}

/// Verifies every segment of a direction to its end.
async fn verify_all(tables: &Tables, segments: u32, side: Side, exact: bool) -> Result<()> {
    for segment in 0..segments {
        let input = SegmentInput { segment, segments, page_size: 50 };
        while verify(tables, "e1", side, exact, input.clone(), pages(1)).await?.status != Status::Done {}
    }
    Ok(())
}

#[tokio::test]
async fn a_rehearsal_finds_exactly_the_planted_defects_and_a_repair_leaves_none() {
    let lake = migrated(300, 3).await;
    let run = lake.run(3);
    assert_eq!(found(&run.compare().await.unwrap().0), []);
    let planted = plant_all(&lake).await;
    let (summary, _) = run.compare().await.unwrap();
    assert!(summary.is_complete() && summary.exact);
    assert_eq!(found(&summary), planted);
    let error = run.rehearse().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(error.message().starts_with("4 differences"), "{error}");
    let refused = run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::VerificationFailed);
    let (_, summary) = run.repair().await.unwrap();
    assert_eq!(found(&summary), []);
    assert_eq!(lake.assert_equal().await, 300);
}

#[tokio::test]
async fn a_verification_under_the_barrier_finds_exactly_the_planted_defects() {
    let lake = migrated(300, 3).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let planted = plant_all(&lake).await;
    for exact in [false, true] {
        for side in [Side::V1, Side::V2] {
            verify_all(&lake.tables, 3, side, exact).await.unwrap();
        }
        if !exact {
            assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::VerifyExactly);
        }
    }
    let plan = lake.plan().await.unwrap();
    let summary = summary_of(&lake.tables, &plan, "e1").await.unwrap();
    assert!(summary.is_complete() && summary.exact);
    assert_eq!(found(&summary), planted);
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
}

#[tokio::test]
async fn each_defect_alone_stops_the_marker_and_is_named() {
    for (number, kind) in
        [MismatchKind::Missing, MismatchKind::Extra, MismatchKind::WrongValue, MismatchKind::WrongBucket]
            .into_iter()
            .enumerate()
    {
        let lake = std::sync::Arc::new(migrated(120, 2).await);
        let planter = std::sync::Arc::clone(&lake);
        // After the rehearsal, so that only the final verification can see it.
        let hook = on("barrier-installed", move || {
            let lake = std::sync::Arc::clone(&planter);
            async move {
                let key = seed::key(7);
                match kind {
                    MismatchKind::Missing => lake.remove(Side::V2, &key).await,
                    MismatchKind::Extra => lake.put(Side::V2, "tbl/extra", b"v").await,
                    MismatchKind::WrongValue => lake.put(Side::V2, &key, b"wrong").await,
                    _ => {
                        lake.remove(Side::V2, &key).await;
                        lake.put_in(Side::V2, "tbl#00", &key, &seed::value(7)).await;
                    }
                }
            }
        });
        let run = lake.run(2);
        let begin = start(&format!("e{number}"));
        let finalized = crash::with_hook(hook, run.finalize(&begin, &Evidence::Acknowledged(true))).await;
        let error = finalized.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VerificationFailed, "{kind:?}");
        let named = if kind == MismatchKind::Extra { "tbl/extra".to_owned() } else { seed::key(7) };
        assert!(error.message().starts_with("1 differences") && error.message().contains(&named), "{error}");
        assert_eq!(lake.value(Side::V1, MARKER_KEY).await, None);
        let store = lake.store(Mode::Dual).await;
        store.cas("tbl/after", None, Some(b"v")).await.expect("writers go on after the release");
    }
}

#[tokio::test]
async fn differences_do_not_cancel_out() {
    let (a, b) = (seed::key(3), seed::key(4));
    for swapped in [false, true] {
        let lake = migrated(50, 2).await;
        install_barrier(&lake.tables, &start("e1")).await.unwrap();
        if swapped {
            // Two keys whose values have changed places.
            lake.put(Side::V2, &a, &seed::value(4)).await;
            lake.put(Side::V2, &b, &seed::value(3)).await;
        } else {
            // One key under another name.
            lake.remove(Side::V2, &a).await;
            lake.put(Side::V2, "tbl/extra", &seed::value(3)).await;
        }
        for side in [Side::V1, Side::V2] {
            verify_all(&lake.tables, 2, side, false).await.unwrap();
        }
        let summary = summary_of(&lake.tables, &lake.plan().await.unwrap(), "e1").await.unwrap();
        assert_eq!((summary.v1_items, summary.v2_items, summary.mismatched), (50, 50, 0));
        assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::VerifyExactly);
        for side in [Side::V1, Side::V2] {
            verify_all(&lake.tables, 2, side, true).await.unwrap();
        }
        let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VerificationFailed);
        assert!(error.message().starts_with("2 differences") && error.message().contains(&a), "{error}");
    }
}

#[tokio::test]
async fn an_item_that_v2_cannot_hold_stops_the_marker_though_nothing_else_differs() {
    let lake = migrated(50, 2).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    // The same key and nothing in it, in both tables: it is no metadata in either.
    for side in [Side::V1, Side::V2] {
        lake.put_bare(side, "tbl/odd").await;
        verify_all(&lake.tables, 2, side, false).await.unwrap();
    }
    assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::VerifyExactly);
    for side in [Side::V1, Side::V2] {
        verify_all(&lake.tables, 2, side, true).await.unwrap();
    }
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(error.message().contains("\"tbl/odd\" (unsupportedItem)"), "{error}");
}

#[tokio::test]
async fn a_verification_reads_each_table_once_and_a_second_cutover_digests_under_another_key() {
    let lake = migrated(400, 2).await;
    let mut digests = Vec::new();
    for epoch in ["e1", "e2"] {
        install_barrier(&lake.tables, &start(epoch)).await.unwrap();
        let metered = lake.tables.metered();
        for side in [Side::V1, Side::V2] {
            for segment in 0..2 {
                let input = SegmentInput { segment, segments: 2, page_size: 1000 };
                let output = verify(&metered, epoch, side, false, input, pages(9)).await.unwrap();
                assert_eq!(output.status, Status::Done);
                // Far less than the 200 units that reading this segment's other copies would cost.
                assert!(output.consumed.read_units < 40.0, "{}", output.consumed.read_units);
            }
        }
        let summary = summary_of(&lake.tables, &lake.plan().await.unwrap(), epoch).await.unwrap();
        assert_eq!(summary.v1_digest, summary.v2_digest);
        digests.push(summary.v1_digest);
        let released = release_barrier(&lake.tables, Some(epoch), Why::Abort).await.unwrap();
        assert!(matches!(released, Released::Released(_)));
    }
    assert_ne!(digests.first(), digests.last());
}

#[tokio::test]
async fn unequal_totals_ask_for_an_exact_pass_that_names_every_extra_key() {
    let lake = migrated(50, 2).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    for n in 0..30 {
        lake.put(Side::V2, &format!("tbl/extra/{n:02}"), b"v").await;
    }
    for side in [Side::V1, Side::V2] {
        verify_all(&lake.tables, 2, side, false).await.unwrap();
    }
    assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::VerifyExactly);
    // Half of an exact comparison is none.
    verify_all(&lake.tables, 2, Side::V2, true).await.unwrap();
    assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::VerifyExactly);
    verify_all(&lake.tables, 2, Side::V1, true).await.unwrap();
    let summary = summary_of(&lake.tables, &lake.plan().await.unwrap(), "e1").await.unwrap();
    assert_eq!(summary.mismatched, 30);
    assert!(summary.mismatches.iter().all(|one| one.kind == MismatchKind::Extra));
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rehearsal_under_two_hundred_writes_a_second_on_a_hundred_keys_finds_nothing_false() {
    let lake = migrated(100, 2).await;
    lake.put(Side::V1, "zz/planted", b"v1").await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(lake.store(Mode::Dual).await);
    }
    let workload = Workload::start(stores, lake.store(Mode::Dual).await, 100, Duration::from_millis(15), 11);
    let run = lake.run(2);
    let mut passes = 0;
    while workload.counts().applied < 600 {
        let (summary, _) = run.compare().await.unwrap();
        assert_eq!(found(&summary), [("zz/planted".to_owned(), MismatchKind::Missing)]);
        passes += 1;
    }
    assert!(passes >= 3, "{passes} passes");
    let counts = workload.finish(&lake.store(Mode::Dual).await).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_verification_that_is_stopped_anywhere_goes_on_by_its_cursor_and_counts_no_item_twice() {
    let lake = migrated(230, 2).await;
    assert!(matches!(install_barrier(&lake.tables, &start("e1")).await.unwrap(), Installed::Held(_)));
    for (exact, side) in [(false, Side::V1), (false, Side::V2), (true, Side::V1), (true, Side::V2)] {
        for segment in 0..2 {
            let input = SegmentInput { segment, segments: 2, page_size: 20 };
            let walk = Walk::Verify { epoch: "e1".to_owned(), side };
            let mut seen = 0;
            loop {
                // A worker that dies after its second page, and one that takes over.
                let (tables, input) = (lake.tables.metered(), input.clone());
                let freeze = Freeze::at_nth("verify-page", 2);
                let hook = std::sync::Arc::clone(&freeze.hook);
                let dying = tokio::spawn(crash::with_hook(hook, async move {
                    verify(&tables, "e1", side, exact, input, pages(100)).await
                }));
                let abort = dying.abort_handle();
                tokio::select! {
                    () = freeze.reached() => abort.abort(),
                    ended = dying => assert_eq!(ended.unwrap().unwrap().status, Status::Done),
                }
                let record = lake.segment(&walk, segment).await.unwrap();
                assert!(record.scanned >= seen);
                seen = record.scanned;
                if record.state == State::Done {
                    break;
                }
            }
        }
    }
    let plan = lake.plan().await.unwrap();
    let summary = summary_of(&lake.tables, &plan, "e1").await.unwrap();
    assert_eq!((summary.v1_items, summary.v2_items, summary.mismatched), (230, 230, 0));
    assert!(summary.exact && summary.is_equal());
    assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::Marker { verified: 230 });
}

/// A worker that counts the only segment of `side` and stands still after its first page.
async fn frozen_at_its_first_page(lake: &Lake, side: Side) -> (Freeze, JoinHandle<Result<StepOutput>>) {
    let freeze = Freeze::at("verify-page");
    let input = SegmentInput { segment: 0, segments: 1, page_size: 20 };
    let (tables, hook) = (lake.tables.metered(), std::sync::Arc::clone(&freeze.hook));
    let frozen = tokio::spawn(crash::with_hook(hook, async move {
        verify(&tables, "e1", side, false, input, pages(100)).await
    }));
    freeze.reached().await;
    (freeze, frozen)
}

#[tokio::test]
async fn a_second_verifier_of_a_segment_is_superseded_and_the_count_stays_right() {
    let lake = migrated(90, 1).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let (freeze, frozen) = frozen_at_its_first_page(&lake, Side::V1).await;
    verify_all(&lake.tables, 1, Side::V1, false).await.unwrap();
    freeze.thaw();
    assert_eq!(frozen.await.unwrap().unwrap_err().kind(), ErrorKind::Superseded);
    let walk = Walk::Verify { epoch: "e1".to_owned(), side: Side::V1 };
    assert_eq!(lake.segment(&walk, 0).await.unwrap().scanned, 90);
    // The publish waits for the other direction.
    let early = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::PlanMismatch);
}

#[tokio::test]
async fn a_worker_that_counts_is_superseded_by_one_that_compares() {
    let lake = migrated(90, 1).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let (freeze, frozen) = frozen_at_its_first_page(&lake, Side::V2).await;
    verify_all(&lake.tables, 1, Side::V2, true).await.unwrap();
    freeze.thaw();
    assert_eq!(frozen.await.unwrap().unwrap_err().kind(), ErrorKind::Superseded);
    let walk = Walk::Verify { epoch: "e1".to_owned(), side: Side::V2 };
    let record = lake.segment(&walk, 0).await.unwrap();
    assert_eq!((record.exact, record.scanned), (true, 90));
}

#[tokio::test]
async fn a_cutover_without_a_secret_compares_every_key() {
    let lake = migrated(60, 1).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let mut plan = lake.plan().await.unwrap();
    plan.cutover.as_mut().unwrap().digest_key.clear();
    lake.put(Side::V1, metashift::layout::records::plan::KEY, &encode(&plan).unwrap()).await;
    lake.put(Side::V2, &seed::key(7), b"wrong").await;
    for side in [Side::V1, Side::V2] {
        verify_all(&lake.tables, 1, side, false).await.unwrap();
    }
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert!(error.message().contains(&seed::key(7)), "{error}");
}

#[tokio::test]
async fn tables_that_change_under_the_barrier_are_not_published_though_no_key_differs_any_more() {
    let lake = migrated(60, 1).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    verify_all(&lake.tables, 1, Side::V1, true).await.unwrap();
    for side in [Side::V1, Side::V2] {
        lake.put(side, &seed::key(7), b"later").await;
    }
    verify_all(&lake.tables, 1, Side::V2, true).await.unwrap();
    let error = publish_marker(&lake.tables, "e1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(error.message().contains("changed under the barrier"), "{error}");
}

#[tokio::test]
async fn where_naming_the_keys_ends_early_the_run_still_says_that_the_tables_differ() {
    let lake = std::sync::Arc::new(migrated(60, 1).await);
    let proxy = std::sync::Arc::new(lake.proxy().await);
    let (planter, rules) = (std::sync::Arc::clone(&lake), std::sync::Arc::clone(&proxy));
    let hook = on("barrier-installed", move || {
        let (lake, proxy) = (std::sync::Arc::clone(&planter), std::sync::Arc::clone(&rules));
        async move {
            lake.put(Side::V2, &seed::key(7), b"wrong").await;
            // Counting needs no reads by key.
            let denied = Fault::Error { name: "AccessDeniedException".to_owned() };
            proxy.add(Rule::new("denied", denied).on("BatchGetItem").mentioning("lake_prefix_v2"));
        }
    });
    let run = lake.run_with(&tables_through(&proxy), 1, 50);
    let ended = crash::with_hook(hook, run.finalize(&start("e1"), &Evidence::Acknowledged(true))).await;
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(error.message().contains("naming the keys ended early: AccessDenied"), "{error}");
    assert!(lake.store(Mode::Dual).await.cas("tbl/after", None, Some(b"v")).await.is_ok());
}

#[tokio::test]
async fn many_and_odd_families_leave_bounded_records_and_results() {
    let lake = Lake::empty().await;
    for n in 0..120 {
        lake.put(Side::V1, &format!("family-{n:03}/k"), b"v").await;
    }
    // As JSON six bytes each: names of 100 such families alone would exceed an item.
    for n in 0..20 {
        lake.put(Side::V1, &format!("{}{n:02}/k", "\u{1}".repeat(1000)), b"v").await;
    }
    let finished = lake.run(2).finalize(&start("e1"), &acknowledged()).await.unwrap();
    assert_eq!(finished.verified, 140);
    for segment in 0..2 {
        let walk = Walk::Verify { epoch: "e1".to_owned(), side: Side::V2 };
        let bytes = lake.value(Side::V1, &walk.key(segment)).await.unwrap().len();
        assert!(bytes < 64 * 1024, "{bytes}");
    }
    let mut input = json!({ "version": 1, "table": TABLE });
    let (mut calls, mut read) = (0, 0);
    loop {
        let parsed = metashift::layout::input::parse(input.clone()).unwrap();
        let output =
            metashift::layout::steps::verify_prefix_reads(&lake.tables, parsed, &pages(9)).await.unwrap();
        let text = serde_json::to_string(&output).unwrap();
        assert!(text.len() < 32 * 1024, "{} bytes", text.len());
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        read += answer["progress"]["scanned"].as_u64().unwrap();
        calls += 1;
        assert_eq!(answer["status"], if answer["after"].is_null() { "done" } else { "continue" });
        if answer["after"].is_null() {
            break;
        }
        input["after"] = answer["after"].clone();
    }
    assert_eq!(calls, 3);
    assert!((120..=140).contains(&read), "{read}");
}
