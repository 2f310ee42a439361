//! Steps are bounded, invocations stop in time, and every wait ends.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use metashift::catalog::authority::{Commit, CommitAuthority, Native};
use metashift::catalog::batch::{Anchor, Batch};
use metashift::catalog::checkpoints::Listed;
use metashift::catalog::deadline::Deadline;
use metashift::catalog::driver::{self, Request, Stop, run};
use metashift::catalog::location::Location;
use metashift::catalog::read::Read;
use metashift::catalog::seed::Seed;
use metashift::catalog::step::{self, Input, invoke};
use metashift::catalog::store::{Ending, look};
use metashift::catalog::units::{Registry, STEP_KEY_BYTES, STEP_RECORDS};
use metashift::environment::{Clock, Environment, SystemEntropy};
use metashift::step::{Budget, Status};
use metashift::{ErrorKind, Result};
use object_store::ObjectStore;
use serde_json::json;

use super::support::{Mortal, PATH, at, budget, copied, dump, environment, finish, kind, migrate, seeded};

/// Notes the size of every batch: puts, deletes, bytes of the keys of the puts.
struct Measured {
    inner: Native,
    batches: Mutex<Vec<(usize, usize, usize)>>,
}

#[async_trait::async_trait]
impl CommitAuthority for Measured {
    async fn pin(&self) -> Result<Arc<dyn Read>> {
        self.inner.pin().await
    }

    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit> {
        let keys = batch.puts.iter().map(|(key, _)| key.len()).sum();
        self.batches.lock().unwrap().push((batch.puts.len(), batch.deletes.len(), keys));
        self.inner.commit(anchor, batch).await
    }

    async fn settle(&self) -> Result<()> {
        self.inner.settle().await
    }

    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()> {
        self.inner.checkpoint(name, lifetime).await
    }

    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>> {
        self.inner.open_readers(environment).await
    }

    async fn close(&self, ending: Ending) -> Result<()> {
        self.inner.close(ending).await
    }
}

async fn measured(store: &Arc<dyn ObjectStore>) -> Vec<(usize, usize, usize)> {
    let deadline = Deadline::of(&budget());
    let epoch = look(&at(store), &deadline).await.unwrap().epoch.unwrap();
    let inner = Native::open(&at(store), epoch, deadline).await.unwrap();
    let authority = Measured { inner, batches: Mutex::default() };
    let registry = Registry::shipped();
    let request = Request::to(12);
    let report =
        driver::migrate(&authority, &registry, &request, &environment(), budget(), &|_| {}).await.unwrap();
    assert!(report.done);
    authority.close(Ending::Complete).await.unwrap();
    authority.batches.into_inner().unwrap()
}

#[tokio::test]
async fn a_step_has_at_most_256_records_and_about_a_mebibyte_of_keys_also_with_long_names() {
    // Names of 8 KB: 128 of them pass a mebibyte.
    let seed =
        Seed { schemas: 40, tables: 900, delete_files: 700, tombstones: 700, name_bytes: 8_192, format: 8 };
    let store = seeded(seed).await;
    let batches = measured(&store).await;
    let longest_record = 8_192 + 32;
    for (puts, deletes, keys) in &batches {
        assert!(*puts <= STEP_RECORDS + 2 && *deletes <= STEP_RECORDS, "{puts} puts, {deletes} deletes");
        assert!(*keys <= STEP_KEY_BYTES + longest_record, "{keys} bytes of keys");
    }
    let by_records = batches.iter().filter(|(puts, ..)| *puts == STEP_RECORDS + 2).count();
    let by_bytes = batches.iter().filter(|(_, _, keys)| *keys >= STEP_KEY_BYTES).count();
    assert!(by_records >= 3 && by_bytes >= 5, "{by_records} full by records, {by_bytes} by bytes");
}

/// A clock that goes on by a tenth of a second at each look.
#[derive(Debug)]
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(self.0.fetch_add(100, Ordering::SeqCst)).unwrap()
    }
}

#[tokio::test]
async fn an_invocation_stops_before_its_deadline_and_the_next_resumes_from_the_marker() {
    let store = seeded(Seed { tombstones: 60_000, ..Seed::small(8) }).await;
    let other = copied(&store).await;
    finish(&other, 12).await;
    let mut invocations = 0;
    loop {
        let clock = Ticking(AtomicI64::new(1_800_000_000_000));
        let environment = Environment { clock: Arc::new(clock), entropy: Arc::new(SystemEntropy) };
        let deadline = jiff::Timestamp::from_second(1_800_000_000 + 60).unwrap();
        let budget = Budget::until(environment.clone(), deadline);
        let request = Request { final_lifetime: Duration::from_secs(3600), ..Request::to(12) };
        let report =
            Box::pin(run(&at(&store), &Registry::shipped(), &request, &environment, budget, &|_| {}))
                .await
                .unwrap();
        assert!(environment.now() < deadline, "it went on past its deadline");
        assert_eq!(report.resumed, invocations > 0);
        assert_eq!(report.from_format, 8);
        invocations += 1;
        if report.done {
            break;
        }
        assert!(report.records_moved > 0);
    }
    assert!(invocations > 2, "{invocations}");
    assert!(dump(&store).await == dump(&other).await);
}

#[tokio::test]
async fn a_run_that_is_asked_to_stop_ends_after_its_batch_and_the_next_one_goes_on() {
    let store = seeded(Seed { tombstones: 2_000, ..Seed::small(8) }).await;
    let request = Request::to(12);
    let stop: Stop = request.stop.clone();
    let observe = |report: &driver::Report| {
        if report.records_moved > 0 {
            stop.ask();
        }
    };
    let registry = Registry::shipped();
    let report = run(&at(&store), &registry, &request, &environment(), budget(), &observe).await.unwrap();
    assert!(!report.done);
    assert_eq!(report.records_moved, 256);
    let report = finish(&store, 12).await;
    assert!(report.resumed);
    assert_eq!(report.records_moved, 1_744 + 6 + 17 + 14);
}

#[tokio::test]
async fn the_step_bounds_an_invocation_by_max_steps_and_says_continue_then_done() {
    let directory = std::env::temp_dir().join(format!("metashift-step-{}", environment().id()));
    std::fs::create_dir_all(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    let seed = Seed { tombstones: 600, ..Seed::small(8) };
    metashift::catalog::seed::write(&Location::parse(&url).await.unwrap(), seed, &budget()).await.unwrap();
    let mut statuses = Vec::new();
    loop {
        let input = Input::parse(json!({"version": 1, "store": url, "toFormat": 9, "maxSteps": 1})).unwrap();
        let output = invoke(&input, &environment(), budget(), Stop::default(), &|_| {}).await.unwrap();
        assert!(serde_json::to_string(&output).unwrap().len() < 32 * 1024);
        statuses.push(output.status);
        if output.status == Status::Done {
            assert_eq!(output.details["format"], 9);
            break;
        }
    }
    assert_eq!(statuses, [Status::Continue, Status::Continue, Status::Continue, Status::Done]);
    let input = Input::parse(json!({"version": 1, "store": url, "mode": "dryRun"})).unwrap();
    let output = invoke(&input, &environment(), budget(), Stop::default(), &|_| {}).await.unwrap();
    assert_eq!(output.status, Status::Continue);
    assert_eq!(output.details["plan"][0]["unit"], "index-current-names");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn an_invocation_as_a_lambda_answers_json_and_metrics_until_it_is_done() {
    let directory = std::env::temp_dir().join(format!("metashift-lambda-{}", environment().id()));
    std::fs::create_dir_all(&directory).unwrap();
    let url = format!("file://{}", directory.display());
    let seed = Seed { tombstones: 600, ..Seed::small(8) };
    metashift::catalog::seed::write(&Location::parse(&url).await.unwrap(), seed, &budget()).await.unwrap();
    let (mut moved, mut invocations) = (0.0, 0);
    loop {
        let deadline = u64::try_from(environment().now().as_millisecond()).unwrap() + 60_000;
        let event = json!({"version": 1, "store": url, "toFormat": 9, "maxSteps": 2});
        let (answer, metrics) = step::lambda(event, &environment(), deadline).await;
        let (answer, metrics) =
            (answer.unwrap(), serde_json::from_str::<serde_json::Value>(&metrics).unwrap());
        assert_eq!(metrics["CatalogRecordsMoved"].as_f64(), answer["recordsMoved"].as_f64());
        moved += metrics["CatalogRecordsMoved"].as_f64().unwrap();
        invocations += 1;
        if answer["status"] == "done" {
            assert_eq!(metrics["CatalogFormat"], 9.0);
            break;
        }
        assert_eq!((&answer["status"], &metrics["CatalogFormat"]), (&json!("continue"), &json!(8.0)));
    }
    assert_eq!((moved, invocations), (600.0, 2));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_documented_examples_are_inputs_and_outputs_of_the_step() {
    let example = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    for input in [
        include_str!("../../deployment/examples/catalog-migrate-step.input.json"),
        include_str!("../../deployment/examples/catalog-migrate-step.inspect.input.json"),
    ] {
        Input::parse(example(input)).unwrap();
    }
    let fields = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let migrated = serde_json::to_value(step::migrated(&driver::Report::default())).unwrap();
    let documented = example(include_str!("../../deployment/examples/catalog-migrate-step.output.json"));
    assert_eq!(fields(&migrated), fields(&documented));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stops_answering_ends_in_a_typed_timeout_inside_the_budget() {
    for writes in [0, 1, 3, 6, 9] {
        let shared = seeded(Seed::small(8)).await;
        let stuck = Mortal::stuck_after(Arc::clone(&shared), writes);
        let location = Location::new(Arc::clone(&stuck) as _, PATH);
        let begun = tokio::time::Instant::now();
        let result = migrate(&location, &Request::to(9), budget()).await;
        let kind = kind(&result);
        assert!(
            [ErrorKind::Timeout, ErrorKind::Unavailable].contains(&kind),
            "stuck after {writes} writes: {result:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
    }
}
