//! Named crash points: places after a durable write where a test kills, freezes or stops the process.
//!
//! Without the cargo feature `crash-points` [`reach`] is empty and nothing of this is compiled in. With it,
//! `METASHIFT_CRASH_AT=<point>[:n]` makes the process kill itself (SIGKILL) when it reaches that point for the n-th
//! time, and a test may install a [`Hook`] for the current task.

/// Every crash point, by name. A test walks this list.
pub const ALL: &[&str] = &[
    // layout
    "plan-opening",
    "segment-created",
    "plan-open",
    "plan-closing",
    "segment-closed",
    "backfill-group",
    "backfill-rechecked",
    "backfill-done",
    "repair-opened",
    "repair-group",
    "repair-done",
    "repair-closed",
    "survey-done",
    "rehearse-page",
    "rehearse-done",
    "barrier-installed",
    "verify-page",
    "verify-done",
    "marker-published",
    "barrier-released",
    "epoch-cancelled",
    "takeover-begun",
    "taken-over",
    "audit-stamped",
    // catalog
    "catalog-stamped",
    "catalog-checkpointed",
    "catalog-started",
    "catalog-stepped",
    "catalog-flushed",
    "catalog-finished",
    "catalog-published",
    "catalog-abandoned",
    // commit log
    "catalog-log-won",
    "catalog-log-folded",
    "catalog-log-adopted",
    "catalog-log-demoted",
    "catalog-log-based",
    "catalog-log-floored",
];

/// Called at a crash point.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
#[allow(clippy::unused_async, clippy::inline_always, reason = "the same shape as with the feature")]
pub async fn reach(_point: &'static str) {}

#[cfg(feature = "crash-points")]
pub use armed::{Hook, reach, with_hook};

#[cfg(feature = "crash-points")]
mod armed {
    use std::collections::HashMap;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};

    /// What a test does at a crash point: return to go on, wait to freeze, never return to be aborted there.
    pub type Hook = Arc<dyn Fn(&'static str) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

    tokio::task_local! {
        static HOOK: Hook;
    }

    /// Runs `future` with `hook` called at every crash point that it reaches.
    pub async fn with_hook<F: Future>(hook: Hook, future: F) -> F::Output {
        HOOK.scope(hook, future).await
    }

    /// Called at a crash point.
    pub async fn reach(point: &'static str) {
        debug_assert!(super::ALL.contains(&point), "{point} is not listed");
        kill_if_asked(point);
        if let Ok(hook) = HOOK.try_with(Arc::clone) {
            hook(point).await;
        }
    }

    fn kill_if_asked(point: &'static str) {
        static ORDER: OnceLock<Option<(String, u64)>> = OnceLock::new();
        static SEEN: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);
        let order = ORDER.get_or_init(|| {
            let text = std::env::var("METASHIFT_CRASH_AT").ok()?;
            let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
            Some((name.to_owned(), count.parse().unwrap_or(1)))
        });
        let Some((name, count)) = order else { return };
        if name != point {
            return;
        }
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let times = seen.get_or_insert_default().entry(point).or_insert(0);
        *times += 1;
        if times == count {
            let killed = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
            unreachable!("SIGKILL returned {killed:?}");
        }
    }
}
