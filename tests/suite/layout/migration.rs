//! The whole migration, with writers at work.

use std::time::Duration;

use metashift::layout::cutover::{Evidence, Start};
use metashift::layout::preflight::Estimate;
use metashift::layout::records::segment::Walk;
use metashift::layout::run::Run;
use metashift::layout::{Authority, Mode, status};
use metashift_sandbox::Workload;

use super::support::{Lake, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_writers_at_work_is_migrated_and_cut_over_without_losing_or_reviving_a_key() {
    let items = 2000;
    let lake = Lake::with_items(items).await;
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(lake.store(Mode::Dual).await);
    }
    let reader = lake.store(Mode::Dual).await;
    let workload = Workload::start(stores, reader, items, Duration::from_millis(2), 7);
    let run = lake.run(4);
    let total = run.backfill().await.unwrap();
    assert!(total.progress.copied > 0);
    let under_load = Start { writes_paused: false, under_load: true, ..start("e1") };
    let finished = run.finalize(&under_load, &Evidence::Acknowledged(true)).await.unwrap();
    assert!(finished.verified > 1000, "{finished:?}");
    let after = lake.store(Mode::Dual).await;
    assert_eq!(after.authority(), Authority::V2);
    let counts = workload.finish(&after).await.unwrap();
    assert_eq!(counts.violations, Vec::<String>::new());
    assert!(counts.applied > 100 && counts.checked > 1000, "{counts:?}");
    lake.assert_equal().await;
}

#[tokio::test]
async fn what_a_plan_estimates_from_a_survey_is_what_the_migration_is_charged() {
    let lake = Lake::with_items(4000).await;
    let run = Run { page_size: 1000, ..lake.run(2) };
    let surveyed = run.survey("s", 2).await.unwrap();
    let bytes = status::walk_segments(&lake.tables, 2, &Walk::Survey { run: "s".to_owned() })
        .await
        .unwrap()
        .iter()
        .map(|segment| segment.bytes)
        .sum();
    let estimate = Estimate::surveyed(surveyed.progress.scanned, bytes);
    let mut charged = run.backfill().await.unwrap().consumed;
    charged += run.rehearse().await.unwrap().1.consumed;
    charged += run.finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap().consumed;
    let near = |estimated: f64, charged: f64| (estimated / charged - 1.0).abs() < 0.03;
    assert!(near(estimate.write_units, charged.write_units), "{estimate:?} {charged:?}");
    assert!(near(estimate.read_units, charged.read_units), "{estimate:?} {charged:?}");
    assert!(near(estimate.dollars, Estimate::dollars_of(charged.read_units, charged.write_units)));
}
