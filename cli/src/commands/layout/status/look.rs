//! One look at a migration: what is known, as rows, as a line, and as JSON.

use jiff::Timestamp;
use metashift::Error;
use metashift::environment::elapsed;
use metashift::layout::records::plan::{OnFailure, State};
use metashift::layout::records::reject::Reject;
use metashift::layout::records::segment::State as SegmentState;
use metashift::layout::status::Overview;
use metashift::layout::verify::Summary;
use serde_json::{Value, json};

use crate::commands::layout::kind_name;
use crate::output;

/// More segments than these are shown by their sums alone; `--json` has them all.
pub(super) const MOST_SHOWN_SEGMENTS: usize = 16;

/// Most rejects, and most differences, that are named.
pub(super) const MOST_NAMED: usize = 3;

/// Most letters of a key that are shown.
const MOST_KEY_LETTERS: usize = 48;

/// What is being counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Backfill,
    Verification,
    Nothing,
}

/// How much was done at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Timestamp,
    pub(super) work: Work,
    pub(super) done: u64,
}

impl Sample {
    pub(super) fn of(overview: &Overview, at: Timestamp) -> Self {
        let (work, done) = work(overview);
        Self { at, work, done }
    }
}

fn work(overview: &Overview) -> (Work, u64) {
    let verified = overview.verification.as_ref().map_or(0, |found| found.v1_items + found.v2_items);
    match overview.phase() {
        "backfill" => (Work::Backfill, overview.progress().scanned),
        "finalizing" => (Work::Verification, verified),
        _ => (Work::Nothing, 0),
    }
}

/// Items a second between the first sample and the last.
pub(super) fn rate<'a>(mut samples: impl DoubleEndedIterator<Item = &'a Sample>) -> Option<f64> {
    let (last, first) = (samples.next_back()?, samples.next()?);
    let seconds = elapsed(first.at, last.at).as_secs_f64();
    (seconds > 0.0).then(|| last.done.saturating_sub(first.done) as f64 / seconds)
}

/// Items a second of a backfill since it began, by its own records; for the first look.
pub(super) fn average(overview: &Overview) -> Option<f64> {
    let segments = &overview.segments;
    if overview.phase() != "backfill" || segments.iter().all(|one| one.state == SegmentState::Done) {
        return None;
    }
    let from = segments.iter().filter_map(|one| one.started_at).min()?;
    let to = segments.iter().filter_map(|one| one.updated_at).max()?;
    let seconds = elapsed(from, to).as_secs_f64();
    (seconds > 0.0).then(|| overview.progress().scanned as f64 / seconds)
}

/// Where a migration is, at one moment.
#[derive(Debug, Clone)]
pub(super) struct Look {
    pub(super) at: Timestamp,
    /// Items of v1, as the table says.
    pub(super) expected: u64,
    /// Items a second.
    pub(super) rate: Option<f64>,
    pub(super) overview: Overview,
    /// The last of them.
    pub(super) rejects: Vec<Reject>,
    /// When a look failed, and how.
    pub(super) trouble: Option<(Timestamp, Error)>,
}

impl Look {
    /// The same once more, where a look at `at` failed.
    pub(super) fn again(self, at: Timestamp, error: Error) -> Self {
        Self { at, rate: None, trouble: Some((at, error)), ..self }
    }

    pub(super) fn authority(&self) -> &'static str {
        if self.overview.leftovers.marker { "v2" } else { "v1" }
    }

    pub(super) fn segments_done(&self) -> usize {
        self.overview.segments.iter().filter(|one| one.state == SegmentState::Done).count()
    }

    /// Items done of about so many, of what is under way.
    pub(super) fn done_of(&self) -> Option<(u64, u64)> {
        let all_scanned = self.segments_done() == self.overview.segments.len();
        let scanned = self.overview.progress().scanned;
        match work(&self.overview) {
            (Work::Backfill, done) if all_scanned => Some((done, done)),
            (Work::Backfill, done) => Some((done, self.expected.max(done))),
            (Work::Verification, done) => Some((done, (scanned * 2).max(done))),
            (Work::Nothing, _) => None,
        }
    }

    /// Seconds that are left at this rate.
    pub(super) fn seconds_left(&self) -> Option<f64> {
        let rate = self.rate.filter(|rate| *rate >= 1.0)?;
        let (done, of) = self.done_of()?;
        (of > done).then(|| (of - done) as f64 / rate)
    }

    /// Seconds since a worker last wrote its record.
    pub(super) fn idle_seconds(&self) -> Option<u64> {
        let backfill = self.overview.segments.iter().filter_map(|one| one.updated_at).max();
        let verification = self.overview.verification.as_ref().and_then(|found| found.updated_at);
        backfill.max(verification).map(|last| elapsed(last, self.at).as_secs())
    }

    /// Seconds for which our cutover has held the barrier, and its deadline.
    pub(super) fn barrier(&self) -> Option<(u64, Timestamp)> {
        let cutover = self.overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref())?;
        (!self.overview.leftovers.marker)
            .then(|| (elapsed(cutover.installed_at, self.at).as_secs(), cutover.deadline))
    }

    /// A barrier that no plan of ours knows.
    pub(super) fn foreign_barrier(&self) -> bool {
        let cutover = self.overview.plan.as_ref().is_some_and(|plan| plan.cutover.is_some());
        !cutover && self.overview.leftovers.barrier && !self.overview.leftovers.marker
    }

    pub(super) fn units(&self) -> (f64, f64) {
        let segments = self.overview.segments.iter();
        segments.fold((0.0, 0.0), |sum, one| (sum.0 + one.read_units, sum.1 + one.write_units))
    }

    /// The last rejects and the first differences, each with its reason.
    pub(super) fn named(&self) -> Vec<(&'static str, String)> {
        let rejects =
            self.rejects.iter().map(|one| ("cannot move", format!("{}: {}", short(&one.key), one.detail)));
        let found = self.overview.verification.iter().flat_map(|found| found.mismatches.iter());
        let differences = found
            .take(MOST_NAMED)
            .map(|one| ("differs", format!("{}: {}", short(&one.key), kind_name(one.kind))));
        rejects.chain(differences).collect()
    }

    /// The last look that failed.
    pub(super) fn last_error(&self) -> Option<String> {
        self.trouble
            .as_ref()
            .map(|(at, error)| format!("{}: {}: {}", moment(*at), error.kind(), error.message()))
    }

    /// Rows for a person.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let overview = &self.overview;
        let progress = overview.progress();
        let mut rows = vec![("at", moment(self.at)), ("phase", overview.phase().to_owned())];
        rows.push(("authority", self.authority().to_owned()));
        if overview.plan.is_some() {
            rows.push(("segments done", format!("{} of {}", self.segments_done(), overview.segments.len())));
            rows.push((
                "items",
                format!(
                    "{} scanned, {} copied, {} already live, {} rejected, {} diverged",
                    progress.scanned,
                    progress.copied,
                    progress.already_live,
                    progress.rejected,
                    progress.diverged
                ),
            ));
            let units = self.units();
            rows.push(("backfill units", format!("{:.0} read, {:.0} written", units.0, units.1)));
        }
        rows.extend(self.rate.map(|rate| ("rate", format!("{rate:.0} items a second"))));
        rows.extend(self.seconds_left().map(|left| ("remaining", format!("about {left:.0} s at this rate"))));
        rows.extend(self.idle_seconds().map(|idle| ("last progress", format!("{idle} s ago"))));
        if overview.segments.len() <= MOST_SHOWN_SEGMENTS {
            for (number, segment) in overview.segments.iter().enumerate() {
                rows.push(("segment", format!("{number}: {:?}, {} scanned", segment.state, segment.scanned)));
            }
        }
        if overview.control.paused {
            rows.push(("paused", "yes; metashift layout resume".to_owned()));
        }
        if let Some(units) = overview.control.write_units {
            rows.push(("write rate", format!("at most {units} units a second")));
        }
        if let Some(cutover) = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref()) {
            rows.push(("cutover", format!("{} by {}", cutover.epoch, cutover.owner)));
        }
        if let Some((held, deadline)) = self.barrier() {
            rows.push(("barrier", format!("held for {held} s, deadline {}", moment(deadline))));
        } else if self.foreign_barrier() {
            rows.push(("barrier", "in place, installed by another migrator".to_owned()));
        }
        if let Some(cursor) = &overview.leftovers.foreign_cursor {
            let at = String::from_utf8_lossy(cursor);
            rows.push(("foreign cursor", format!("another migrator's, at {}", output::key(&at))));
        }
        if let Some(at) = overview.plan.as_ref().and_then(|plan| plan.taken_over_at) {
            rows.push(("taken over", format!("{}, after another migrator's marker", moment(at))));
        }
        if let Some(audited) = overview.plan.as_ref().and_then(|plan| plan.audited.as_ref()) {
            rows.push(("clean audit", format!("{} at {}", audited.run, moment(audited.at))));
        }
        if let Some(found) = &overview.verification {
            rows.push((
                "verification",
                format!(
                    "{} of {} segments, {} items in v1, {} in v2, {}",
                    found.done,
                    found.segments,
                    found.v1_items,
                    found.v2_items,
                    found.verdict()
                ),
            ));
            for mismatch in found.mismatches.iter().take(25) {
                let (key, kind) = (output::key(&mismatch.key), kind_name(mismatch.kind));
                rows.push(("difference", format!("{key}: {kind}")));
            }
        }
        rows.push(("next", self.next().to_owned()));
        rows
    }

    /// One line, for a log.
    pub(super) fn line(&self) -> String {
        let progress = self.overview.progress();
        let mut parts = vec![
            moment(self.at),
            self.overview.phase().replace(' ', "-"),
            format!("authority={}", self.authority()),
            format!("segments={}/{}", self.segments_done(), self.overview.segments.len()),
            format!("scanned={}", progress.scanned),
            format!("copied={}", progress.copied),
            format!("rejected={}", progress.rejected),
            format!("diverged={}", progress.diverged),
        ];
        if let Some(found) = &self.overview.verification {
            parts.push(format!("verified={}/{}", found.done, found.segments));
            parts.push(format!("differences={}", found.mismatched));
        }
        parts.extend(self.rate.map(|rate| format!("rate={rate:.0}/s")));
        parts.extend(self.seconds_left().map(|left| format!("remaining={left:.0}s")));
        parts.extend(self.idle_seconds().map(|idle| format!("idle={idle}s")));
        match self.barrier() {
            Some((held, deadline)) => parts.push(format!("barrier={held}s,until={}", moment(deadline))),
            None if self.foreign_barrier() => parts.push("barrier=unknown".to_owned()),
            None if self.overview.leftovers.barrier => parts.push("barrier=stays".to_owned()),
            None => parts.push("barrier=none".to_owned()),
        }
        if self.overview.control.paused {
            parts.push("paused".to_owned());
        }
        parts.extend(self.named().pop().map(|(what, text)| format!("{}={text:?}", what.replace(' ', "-"))));
        parts.extend(self.last_error().map(|error| format!("error={error:?}")));
        parts.join(" ")
    }

    fn next(&self) -> &'static str {
        next(&self.overview, self.segments_done(), elapsed_past(&self.overview, self.at))
    }

    /// The object for a program.
    pub(super) fn json(&self) -> Value {
        let overview = &self.overview;
        let verification = overview.verification.as_ref().map(|one| {
            json!({ "segments": one.segments, "done": one.done, "v1Items": one.v1_items, "v2Items": one.v2_items,
                    "equal": one.is_complete() && !one.differs(), "mismatched": one.mismatched,
                    "mismatches": one.mismatches })
        });
        let error = self
            .trouble
            .as_ref()
            .map(|(at, error)| json!({ "at": at, "name": error.kind().name(), "message": error.message() }));
        json!({
            "at": self.at,
            "phase": overview.phase(), "authority": self.authority(),
            "plan": overview.plan, "progress": overview.progress(), "segmentsDone": self.segments_done(),
            "itemsPerSecond": self.rate, "secondsLeft": self.seconds_left(),
            "secondsSinceProgress": self.idle_seconds(),
            "segments": overview.segments.iter()
                .map(|one| json!({ "state": one.state, "scanned": one.scanned })).collect::<Vec<_>>(),
            "control": overview.control, "barrier": overview.leftovers.barrier,
            "foreignCursor": overview.leftovers.foreign_cursor.as_ref().map(|at| String::from_utf8_lossy(at).into_owned()),
            "barrierHeldSeconds": self.barrier().map(|(held, _)| held),
            "verification": verification, "lastRejects": self.rejects, "lastError": error, "next": self.next(),
        })
    }
}

/// A key, quoted, and cut where it is long.
fn short(key: &str) -> String {
    let cut: String = key.chars().take(MOST_KEY_LETTERS).collect();
    if cut.len() == key.len() { format!("{key:?}") } else { format!("{cut:?}…") }
}

/// RFC 3339 in UTC, to the second.
pub(super) fn moment(at: Timestamp) -> String {
    at.strftime("%FT%TZ").to_string()
}

/// Whether the deadline of a cutover that holds the barrier has passed.
fn elapsed_past(overview: &Overview, now: Timestamp) -> bool {
    let cutover = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref());
    cutover.is_some_and(|cutover| cutover.deadline < now)
}

/// What a person does from here.
fn next(overview: &Overview, done: usize, past_deadline: bool) -> &'static str {
    let progress = overview.progress();
    let cutover = overview.plan.as_ref().and_then(|plan| plan.cutover.as_ref());
    let held = cutover.is_some_and(|cutover| cutover.on_failure == OnFailure::Hold);
    let differs = overview.verification.as_ref().is_some_and(Summary::differs);
    match overview.plan.as_ref().map(|plan| plan.state) {
        state if overview.leftovers.marker && state != Some(State::Final) => {
            "the marker is another migrator's: metashift layout run takes the table over, then restart pods so that they read v2"
        }
        _ if overview.leftovers.marker && overview.leftovers.foreign_cursor.is_some() => {
            "make sure that the other migrator is dead; then metashift layout run --discard-foreign-cursor removes its cursor"
        }
        _ if overview.leftovers.marker
            && overview.plan.as_ref().is_some_and(|plan| plan.audited.is_none()) =>
        {
            "restart pods so that they read v2, then resume writes; metashift layout audit then records that the tables are equal"
        }
        _ if overview.leftovers.marker => {
            "restart pods so that they read v2, then resume writes; metashift layout audit compares at any time"
        }
        Some(State::Opening | State::Open | State::Closing | State::Repairing) | None
            if overview.leftovers.barrier =>
        {
            "make sure that the other migrator is dead; then metashift layout abort --adopt-foreign-barrier removes its barrier"
        }
        Some(State::Takeover) => "metashift layout run finishes the takeover",
        None => "metashift layout plan",
        Some(State::Finalizing) if held && (past_deadline || overview.control.paused) => {
            "the barrier is held for a person and does not end by itself: metashift layout abort"
        }
        Some(state) if overview.control.paused && state != State::Finalizing => "metashift layout resume",
        Some(State::Open) if progress.rejected + progress.diverged > 0 => {
            "metashift layout rejects; mend or delete them, then metashift layout run"
        }
        Some(State::Open) if done == overview.segments.len() && differs => {
            "the last cutover found differences: metashift layout repair, unless that was done since; then metashift \
             layout run --rehearse compares, --finalize cuts over"
        }
        Some(State::Open) if done == overview.segments.len() => {
            "everything is copied: metashift layout run --rehearse compares, --finalize cuts over"
        }
        Some(State::Repairing) => "metashift layout repair goes on, if nobody is at it",
        Some(State::Finalizing) if held && differs => {
            "the tables differ, and the barrier is held for a person: metashift layout abort, then metashift layout repair"
        }
        Some(State::Finalizing) if held => {
            "wait for the cutover; if it fails, or whoever ran it is dead, it keeps the barrier until metashift layout abort"
        }
        Some(State::Finalizing) if past_deadline => {
            "metashift layout abort, or metashift layout run --finalize again"
        }
        Some(State::Finalizing) => {
            "wait for the cutover; if whoever ran it is dead, metashift layout abort lets writers go on at once"
        }
        Some(_) => "metashift layout run goes on, if nobody is at it",
    }
}

#[cfg(test)]
mod tests {
    use metashift::layout::generation::Leftovers;
    use metashift::layout::records::control::Control;
    use metashift::layout::records::plan::{Cutover, Plan};

    use super::*;

    fn overview(on_failure: Option<OnFailure>, mismatched: u64) -> Overview {
        let mut plan = Plan::first("f".to_owned(), 0);
        plan.state = if on_failure.is_some() { State::Finalizing } else { State::Open };
        plan.cutover = on_failure.map(|on_failure| Cutover {
            epoch: "e".to_owned(),
            installed_at: Timestamp::UNIX_EPOCH,
            deadline: Timestamp::UNIX_EPOCH,
            on_failure,
            owner: "local:test".to_owned(),
            digest_key: "k".to_owned(),
            verified: None,
        });
        Overview {
            plan: Some(plan),
            leftovers: Leftovers::default(),
            control: Control::default(),
            segments: Vec::new(),
            verification: Some(Summary { mismatched, ..Summary::default() }),
        }
    }

    #[test]
    fn a_held_barrier_is_ended_by_abort_alone() {
        let held = overview(Some(OnFailure::Hold), 0);
        assert!(next(&held, 0, false).contains("wait for the cutover"));
        let mut paused = held.clone();
        paused.control.paused = true;
        let differs = overview(Some(OnFailure::Hold), 1);
        for (overview, past_deadline) in
            [(&held, true), (&paused, false), (&differs, false), (&differs, true)]
        {
            let next = next(overview, 0, past_deadline);
            assert!(
                next.contains("layout abort") && !next.contains("wait") && !next.contains("run"),
                "{next}"
            );
        }
        assert!(next(&overview(Some(OnFailure::Release), 0), 0, true).contains("--finalize again"));
    }

    #[test]
    fn after_a_cutover_that_found_differences_a_repair_comes_first() {
        assert!(next(&overview(None, 1), 0, false).contains("layout repair"));
        assert!(!next(&overview(None, 0), 0, false).contains("layout repair"));
    }
}
