//! Crashes at every seam: after every write of the object store, and at every named point.

use std::sync::Arc;

use bytes::Bytes;
use metashift::catalog::driver::Request;
use metashift::catalog::location::Location;
use metashift::catalog::seed::Seed;
use metashift::catalog::view::Contents;
use object_store::ObjectStore;

use super::support::{
    Ended, Mortal, PATH, budget, commit_log, copied, create_schema, dump, dying_at, finish, history, logged,
    migrate, records, seeded, until_death,
};

/// Enough for several steps of every unit.
fn seed(format: u64) -> Seed {
    Seed { format, schemas: 20, tables: 280, delete_files: 400, tombstones: 520, name_bytes: 8 }
}

/// A store, what it shows at every snapshot, and what an uninterrupted migration makes of it.
struct Case {
    store: Arc<dyn ObjectStore>,
    target: u64,
    shown: Vec<Contents>,
    uninterrupted: Vec<(Bytes, Bytes)>,
}

impl Case {
    async fn new(from: u64, target: u64) -> Self {
        Self::of(seeded(seed(from)).await, target).await
    }

    /// A catalog that is kept in a commit log, with two slots that nobody has folded.
    async fn logged(from: u64, target: u64) -> Self {
        let store = logged(seed(from)).await;
        for name in ["one", "two"] {
            create_schema(&store, name).await.unwrap();
        }
        assert_eq!(commit_log(&store).await.unwrap().unfolded, 2);
        Self::of(store, target).await
    }

    async fn of(store: Arc<dyn ObjectStore>, target: u64) -> Self {
        let shown = history(&store).await;
        let other = copied(&store).await;
        finish(&other, target).await;
        Self { store, target, shown, uninterrupted: dump(&other).await }
    }

    /// After a crash: one of the three durable states, no record unreachable in both layouts, and a resumed run (then a
    /// resumed run of that) ends like an uninterrupted one.
    async fn recovers(&self, crashed: &Arc<dyn ObjectStore>, when: &str) {
        let records = records(&dump(crashed).await);
        let format = records.coherent().unwrap_or_else(|error| panic!("{when}: {error}")).unwrap();
        assert!(format.format_version <= self.target, "{when}");
        assert_eq!(history(crashed).await, self.shown, "{when}");
        finish(crashed, self.target).await;
        assert_eq!(history(crashed).await, self.shown, "{when}, resumed");
        assert!(dump(crashed).await == self.uninterrupted, "{when}: differs from an uninterrupted run");
        finish(crashed, self.target).await;
        assert!(dump(crashed).await == self.uninterrupted, "{when}: differs after another run");
        if let Some(log) = commit_log(crashed).await {
            assert_eq!(log.unfolded, 0, "{when}: a slot is not folded");
        }
    }
}

/// Dies at the write after 0, 1, 2, … until a run gets through.
async fn dying_after_every_write(case: Case) {
    let target = case.target;
    for writes in 0.. {
        let shared = copied(&case.store).await;
        let mortal = Mortal::with_writes(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&mortal) as _, PATH);
        let request = Request { checkpoint: true, ..Request::to(target) };
        let ended = until_death(&mortal, migrate(&location, &request, budget())).await;
        mortal.kill();
        case.recovers(&shared, &format!("to {target}, dead after {writes} writes")).await;
        if let Ended::Lived(result) = ended {
            assert!(result.unwrap().done);
            assert!(writes > 5, "the sweep met only {writes} writes");
            return;
        }
    }
}

#[tokio::test]
async fn a_crash_after_any_write_of_8_to_9_resumes_to_the_same_store() {
    dying_after_every_write(Case::new(8, 9).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_9_to_11_resumes_to_the_same_store() {
    dying_after_every_write(Case::new(9, 11).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_11_to_12_resumes_to_the_same_store() {
    dying_after_every_write(Case::new(11, 12).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_the_two_unit_chain_8_to_11_resumes_to_the_same_store() {
    dying_after_every_write(Case::new(8, 11).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_the_four_stage_chain_1_to_12_resumes_to_the_same_store() {
    dying_after_every_write(Case::new(1, 12).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_10_to_11_in_a_commit_log_resumes_to_the_same_store() {
    dying_after_every_write(Case::logged(10, 11).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_11_to_12_in_a_commit_log_resumes_to_the_same_store() {
    dying_after_every_write(Case::logged(11, 12).await).await;
}

#[tokio::test]
async fn a_crash_after_any_write_of_the_two_unit_chain_10_to_12_in_a_commit_log_resumes_to_the_same_store() {
    dying_after_every_write(Case::logged(10, 12).await).await;
}

fn request(case: &Case) -> Request {
    Request { checkpoint: true, ..Request::to(case.target) }
}

/// Dies at the first, second, … time that `point` is reached, until it is not reached so often; how often it was.
async fn dying_at_every(case: &Case, point: &'static str) -> u64 {
    for times in 1.. {
        let shared = copied(&case.store).await;
        let ended = dying_at(&shared, &request(case), budget(), point, times).await;
        case.recovers(&shared, &format!("dead at {point}, time {times}")).await;
        if let Ended::Lived(result) = ended {
            assert!(result.unwrap().done);
            return times - 1;
        }
    }
    unreachable!("the loop returns")
}

/// The points that a run may meet.
fn points() -> impl Iterator<Item = &'static str> {
    let others = [
        "catalog-abandoned",
        "catalog-log-adopted",
        "catalog-log-demoted",
        "catalog-log-based",
        "catalog-log-floored",
    ];
    metashift::crash::ALL
        .iter()
        .copied()
        .filter(move |point| point.starts_with("catalog-") && !others.contains(point))
}

#[tokio::test]
async fn a_crash_at_any_named_point_of_the_chain_1_to_12_resumes_to_the_same_store() {
    let case = Case::new(1, 12).await;
    let mut met = Vec::new();
    for point in points() {
        met.push((point, dying_at_every(&case, point).await));
    }
    met.retain(|(point, _)| !point.starts_with("catalog-log-"));
    assert_eq!(
        met,
        [
            ("catalog-stamped", 1),
            ("catalog-checkpointed", 1),
            ("catalog-started", 3),
            ("catalog-stepped", 7),
            ("catalog-flushed", 3),
            ("catalog-finished", 3),
            ("catalog-published", 1),
        ]
    );
}

#[tokio::test]
async fn a_crash_at_any_named_point_of_10_to_12_in_a_commit_log_resumes_to_the_same_store() {
    let case = Case::logged(10, 12).await;
    let mut met = Vec::new();
    for point in points() {
        met.push((point, dying_at_every(&case, point).await));
    }
    assert_eq!(
        met,
        [
            ("catalog-stamped", 0),
            ("catalog-checkpointed", 1),
            ("catalog-started", 2),
            ("catalog-stepped", 4),
            ("catalog-flushed", 2),
            ("catalog-finished", 2),
            ("catalog-published", 1),
            // Two starts, four steps, two finishes; and the two slots that were there.
            ("catalog-log-won", 8),
            ("catalog-log-folded", 10),
        ]
    );
}

#[tokio::test]
async fn a_crash_after_each_durable_step_resumes_to_the_same_store() {
    let case = Case::new(8, 12).await;
    for steps in 1..=7 {
        let shared = copied(&case.store).await;
        for _ in 1..steps {
            let one = budget().with_pages(Some(1));
            let report =
                migrate(&Location::new(Arc::clone(&shared), PATH), &request(&case), one).await.unwrap();
            assert!(!report.done && report.records_moved > 0, "{report:?}");
        }
        let one = budget().with_pages(Some(1));
        let ended = dying_at(&shared, &request(&case), one, "catalog-flushed", 1).await;
        assert!(matches!(ended, Ended::Died), "{ended:?}");
        case.recovers(&shared, &format!("dead after durable step {steps}")).await;
    }
}
