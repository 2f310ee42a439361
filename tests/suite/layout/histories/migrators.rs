//! Migrators that freeze and die at crash points, and an operator who changes their mind.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metashift::crash::{self, Hook};
use metashift::layout::cutover::{Evidence, Start, release_barrier, release_expired, summary_of};
use metashift::layout::generation::{PlanWish, open_plan, remove_foreign_barrier};
use metashift::layout::preflight::Accepted;
use metashift::layout::records::plan::State;
use metashift::layout::run::{Event, Observer};
use metashift::layout::status;
use metashift::{ErrorKind, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;

use super::super::support::{ABORT, Lake, start};
use super::cast::{Kind, tables_at};
use super::{ByHand, DIFFERS, Stage};

/// Now and then freezes whoever comes by, for a while or for good; `died` is told of the latter.
fn fate(stage: &Arc<Stage>, random: Arc<Mutex<SmallRng>>, died: Arc<Notify>) -> Hook {
    let stage = Arc::clone(stage);
    Arc::new(move |point| {
        let drawn = random.lock().unwrap().random_range(0..100_u32);
        let died = Arc::clone(&died);
        let between_groups = stage.cast.kind == Kind::Groups && point == "backfill-group";
        let deadly = if between_groups { 25 } else { 4 };
        Box::pin(async move {
            match drawn {
                0.. if drawn < deadly => {
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
                4..14 => tokio::time::sleep(Duration::from_millis(u64::from(drawn) * 8)).await,
                _ => {}
            }
        })
    })
}

/// Migrates until the marker is there or the history ends; dies on the way and begins again.
pub(super) async fn migrate(stage: Arc<Stage>, number: usize, seed: u64) {
    let random = Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)));
    let mut round = 0;
    while !stage.stopped() {
        round += 1;
        let died = Arc::new(Notify::new());
        let hook = fate(&stage, Arc::clone(&random), Arc::clone(&died));
        let epoch = format!("m{number}-{round}");
        let new_generation =
            stage.cast.kind == Kind::Operators && random.lock().unwrap().random_range(0..10_u32) < 4;
        let life = crash::with_hook(hook, once(Arc::clone(&stage), number, seed, epoch, new_generation));
        let ended = tokio::select! {
            ended = life => Some(ended),
            () = died.notified() => None,
            () = stopped(&stage) => return,
        };
        match ended {
            Some(Ok(())) => return,
            Some(Err(error)) => judge(&stage, &error),
            None => {}
        }
        let pause = random.lock().unwrap().random_range(0..40_u64);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// Tells of a comparison before a cutover, as it begins and as it ends.
pub(super) fn observer(stage: &Arc<Stage>) -> Observer {
    let told = Arc::clone(stage);
    let left = AtomicU32::new(0);
    Arc::new(move |event| match event {
        Event::Phase { name: "rehearse", segments } => {
            left.store(segments, Ordering::SeqCst);
            told.rehearsing.notify_one();
        }
        Event::Segment { name: "rehearse", done: true, .. } if left.fetch_sub(1, Ordering::SeqCst) == 1 => {
            told.rehearsed.notify_one();
        }
        _ => {}
    })
}

/// Another operator, who starts a generation of one segment and copies it while the last run compares; twice.
pub(super) async fn rival(stage: Arc<Stage>) {
    stopped(&stage).await;
    for _ in 0..2 {
        stage.rehearsing.notified().await;
        let mut run = stage.lake.run(1);
        run.wish.new_generation = true;
        // The last run may have the barrier by then.
        let _outcome: Result<_> = run.backfill().await;
    }
}

async fn stopped(stage: &Stage) {
    while !stage.stopped() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn once(
    stage: Arc<Stage>,
    number: usize,
    seed: u64,
    epoch: String,
    new_generation: bool,
) -> Result<()> {
    let tables = tables_at(&stage.ghosts, stage.cast.clock(seed)).patient(Duration::from_millis(800));
    let segments = stage.cast.segments[number];
    let mut run = stage.lake.run_with(&tables, segments, stage.cast.page);
    if stage.cast.kind == Kind::Operators {
        run.wish = PlanWish { segments: new_generation.then_some(segments), new_generation };
    }
    run.observer = observer(&stage);
    let is_alone = !stage.foreign_alive.load(Ordering::SeqCst);
    if stage.cast.kind == Kind::Foreign && is_alone {
        run.accepted = Accepted { discard_foreign_cursor: true, ..Accepted::default() };
    }
    let begin =
        Start { writes_paused: false, under_load: true, deadline: Duration::from_secs(3), ..start(&epoch) };
    let ended = run.finalize(&begin, &Evidence::Acknowledged(true)).await;
    match ended {
        Ok(_) => Ok(()),
        Err(error) => {
            let differs = DIFFERS.contains(&error.kind());
            if differs && stage.never_differs() {
                stage.violation(format!("copies differ though every node is dual: {error}"));
            }
            if differs || error.kind() == ErrorKind::PlanMismatch {
                run.repair().await?;
            }
            Err(error)
        }
    }
}

/// What a migrator may run into beside other migrators, an operator and the weather.
fn judge(stage: &Stage, error: &metashift::Error) {
    let expected = [
        ErrorKind::Superseded,
        ErrorKind::Contended,
        ErrorKind::Throttled,
        ErrorKind::Unavailable,
        ErrorKind::OutcomeUnknown,
        ErrorKind::CutoverExpired,
        ErrorKind::AlreadyFinalized,
        ErrorKind::VerificationFailed,
        ErrorKind::BlockedByDivergence,
        ErrorKind::PlanMismatch,
        // An epoch that was released before its run began to verify.
        ErrorKind::InvalidInput,
    ];
    // A barrier that somebody removed stops the publish; so does another migrator's cursor.
    let removed = (stage.by_hand.is_some() || stage.cast.kind == Kind::Foreign)
        && error.kind() == ErrorKind::ForeignLeftovers;
    if !removed && !expected.contains(&error.kind()) {
        stage.violation(format!("a migrator: {error}"));
    }
}

/// A person who takes the write barrier away before the marker, though everybody told them not to.
pub(super) async fn remove_barriers(stage: Arc<Stage>, when: ByHand, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut left = 2;
    while left > 0 {
        let longest = if when == ByHand::Verified { 10 } else { 60 };
        tokio::time::sleep(Duration::from_millis(random.random_range(5..longest))).await;
        if when == ByHand::Anytime || is_verified(&stage.lake).await {
            left -= u32::from(stage.lake.remove_barrier().await);
        }
    }
}

/// A node rolled back to v1 that moves a byte from a key to its value, and back: it changes no total, and what a key and
/// its value are together. It acts where a rehearsal has ended and the barrier is not there yet.
pub(super) async fn carve(stage: Arc<Stage>) {
    use metashift::layout::{MetaStore, Mode, Mutation};
    let Ok(store) = MetaStore::open(stage.lake.tables.metered(), Mode::V1Only).await else { return };
    let [long, short] = [(super::CARVED[0], b"-x".to_vec()), (super::CARVED[1], b"0-x".to_vec())];
    let mut whole = true;
    // It ends some day, so that the migration can.
    for _ in 0..6 {
        stage.rehearsed.notified().await;
        let (from, to) = if whole { (&long, &short) } else { (&short, &long) };
        let mut changes = [(from, true), (to, false)].into_iter();
        let mut change = changes.next();
        while let Some(((key, value), delete)) = change {
            let (expected, new) = if delete { (Some(&value[..]), None) } else { (None, Some(&value[..])) };
            match store.cas(key, expected, new).await {
                Ok(Mutation::Applied) => change = changes.next(),
                Ok(other) => return stage.violation(format!("{key} belongs to one node: {other:?}")),
                Err(error) if error.kind() == ErrorKind::AlreadyFinalized => return,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        whole = !whole;
    }
}

/// A cutover is about to publish.
async fn is_verified(lake: &Lake) -> bool {
    let Some(plan) = lake.plan().await else { return false };
    let Some(cutover) = plan.cutover.as_ref().filter(|_| plan.state == State::Finalizing) else {
        return false;
    };
    summary_of(&lake.tables, &plan, &cutover.epoch).await.unwrap().is_complete()
}

/// Pauses, resumes, aborts and starts generations, a few times, at random moments.
pub(super) async fn operate(stage: Arc<Stage>, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let tables = tables_at(&stage.ghosts, stage.cast.clock(seed)).patient(Duration::from_millis(500));
    for turn in 0..6 {
        let pause = random.random_range(10..120_u64);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if stage.stopped() {
            return;
        }
        // What a dead migrator of the field left is in the way of nodes and of ours.
        if stage.cast.kind == Kind::Foreign && !stage.foreign_alive.load(Ordering::SeqCst) {
            let _outcome: Result<bool> = remove_foreign_barrier(&tables).await;
        }
        // Whatever comes of it: the weather may have it.
        let _outcome: Result<()> = match random.random_range(0..5_u32) {
            0 => {
                let paused = status::change_control(&tables, |control| control.paused = true).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                let resumed =
                    status::change_control(&stage.lake.tables, |control| control.paused = false).await;
                paused.and(resumed).map(|_| ())
            }
            1 | 2 => release_barrier(&tables, None, ABORT).await.map(|_| ()),
            3 => release_expired(&tables).await.map(|_| ()),
            _ => {
                let open = stage.lake.plan().await.is_some_and(|plan| plan.state == State::Open);
                let segments = stage.cast.segments[turn % 2];
                let wish = PlanWish { segments: Some(segments), new_generation: open };
                open_plan(&tables, wish).await.map(|_| ())
            }
        };
    }
}
