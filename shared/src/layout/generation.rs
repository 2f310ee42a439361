//! Making, adopting and moving on the plan: the first generation, the next one, a repair.
//!
//! Each function goes on wherever an earlier process stopped: the plan's state says what is still to be done.

use std::collections::HashMap;

use super::outcome::Reason;
use super::plan::{self, Beside, transition};
use super::records::plan::{KEY as PLAN_KEY, MOST_SEGMENTS, Plan, State, VERSION};
use super::records::segment::{Segment, State as SegmentState, Walk};
use super::records::{self, BARRIER_KEY, FOREIGN_CURSOR_KEY, MARKER_KEY, MARKER_VALUE, Stored};
use super::tables::Tables;
use super::transaction::{Action, Role, Side, Transaction, Write};
use super::{transaction::Condition, walk::superseded};
use crate::crash;
use crate::{Error, ErrorKind, Result};

/// What to do about a barrier of another migrator that is in the way.
pub const REMOVE_FOREIGN_BARRIER: &str = "make sure that migrator is dead; metashift layout abort --adopt-foreign-barrier removes \
     its barrier, and metashift layout run --finalize --adopt-foreign-barrier keeps it for a cutover of its own";

/// A barrier that is in the way.
pub const FOREIGN_BARRIER: &str = "a write barrier installed by another migrator is in place";

/// Records created in one transaction.
const CREATED_AT_ONCE: usize = 50;

/// Times that a segment record is read again because its worker still writes it, before the close gives up.
const MOST_CLOSE_ATTEMPTS: usize = 100;

/// There is no plan yet.
pub fn no_plan() -> Error {
    Error::new(ErrorKind::PlanMismatch, "this table has no migration plan")
        .next("make one with metashift layout run")
}

/// The plan, if there is one; `NewerRecord` where a newer version made it.
pub async fn load_plan(tables: &Tables) -> Result<Option<Stored<Plan>>> {
    tables.load(PLAN_KEY).await
}

/// `InvalidInput` for a number of segments that a plan cannot have.
pub fn check_segments(segments: u32) -> Result<()> {
    if (1..=MOST_SEGMENTS).contains(&segments) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("{segments} segments; 1 to {MOST_SEGMENTS} are possible"),
    ))
}

/// `LayoutMismatch` where the plan was made with another layout.
///
/// `PlanMismatch` where it copies to another companion table than this run names.
pub fn check_plan(plan: &Plan, tables: &Tables) -> Result<()> {
    let (planned, own) = (&plan.layout, tables.layout().fingerprint());
    if *planned != own {
        return Err(Error::new(
            ErrorKind::LayoutMismatch,
            format!("the plan was made with layout {planned}, this run has {own}"),
        )
        .next(
            "pass the same --layout file as the run that made the plan; if that one was wrong, start again from the first \
             item with --new-generation",
        ));
    }
    let named = tables.name(Side::V2);
    match &plan.companion {
        Some(companion) if companion != named => Err(Error::new(
            ErrorKind::PlanMismatch,
            format!("the plan copies to {companion}, this run names {named}"),
        )
        .next(format!(
            "pass --companion {companion}, or leave it out if that is the default; if that one was wrong, start again \
             from the first item with --new-generation"
        ))),
        _ => Ok(()),
    }
}

/// What a migration leaves, or another migrator left, beside the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// The barrier is there.
    pub barrier: bool,
    /// The marker is there.
    pub marker: bool,
    /// Bytes of a field migrator's cursor.
    pub foreign_cursor: Option<Vec<u8>>,
}

impl Leftovers {
    /// Reads the three records shared with the field.
    pub async fn load(tables: &Tables) -> Result<Self> {
        let items = tables.get_many(Side::V1, &[BARRIER_KEY, MARKER_KEY, FOREIGN_CURSOR_KEY]).await?;
        if let Some(marker) = items.get(MARKER_KEY)
            && marker.value() != Some(MARKER_VALUE)
        {
            return Err(Error::new(ErrorKind::Corruption, "the authority marker has an unknown value")
                .next("use the version that wrote it; change nothing by hand"));
        }
        Ok(Self {
            barrier: items.contains_key(BARRIER_KEY),
            marker: items.contains_key(MARKER_KEY),
            foreign_cursor: items
                .get(FOREIGN_CURSOR_KEY)
                .map(|item| item.value().map(<[u8]>::to_vec).unwrap_or_default()),
        })
    }

    /// Reads them and then the plan, so that a cutover of our own that starts in between is not taken for somebody
    /// else's; again where a barrier is unexplained, which may have been ours and released in between.
    pub async fn load_with_plan(tables: &Tables) -> Result<(Self, Option<Plan>)> {
        let mut again = true;
        loop {
            let left = Self::load(tables).await?;
            let plan = load_plan(tables).await?.map(|stored| stored.record);
            if !left.has_foreign_barrier(plan.as_ref()) || !std::mem::take(&mut again) {
                return Ok((left, plan));
            }
        }
    }

    fn has_foreign_barrier(&self, plan: Option<&Plan>) -> bool {
        let ours = plan.is_some_and(|plan| matches!(plan.state, State::Finalizing | State::Final));
        self.barrier && !ours
    }

    /// What of it another migrator left and stands in the way of a run, each with what to do.
    pub fn blockers(&self, plan: Option<&Plan>, discard_cursor: bool, adopt_barrier: bool) -> Vec<Error> {
        let mut blockers = Vec::new();
        if self.marker && plan.is_none_or(|plan| plan.state != State::Final) {
            blockers.push(
                Error::new(
                    ErrorKind::AlreadyFinalized,
                    "the marker was published by another migrator: the prefix layout is the authority",
                )
                .next("metashift layout run --local takes the table over; then restart pods so that they read v2"),
            );
        }
        // After the marker the barrier stays, whichever migrator put it.
        if self.has_foreign_barrier(plan) && !self.marker && !adopt_barrier {
            blockers
                .push(Error::new(ErrorKind::ForeignLeftovers, FOREIGN_BARRIER).next(REMOVE_FOREIGN_BARRIER));
        }
        if let Some(cursor) = &self.foreign_cursor
            && !discard_cursor
        {
            blockers.push(
                Error::new(
                    ErrorKind::ForeignLeftovers,
                    format!("another migrator's cursor is here, at {:?}", String::from_utf8_lossy(cursor)),
                )
                .next("make sure that migrator is dead; then metashift layout run --discard-foreign-cursor removes its cursor"),
            );
        }
        blockers
    }
}

/// `ForeignLeftovers` and `AlreadyFinalized` over what another migrator left; `discard_cursor` removes its cursor instead.
pub async fn check_leftovers(tables: &Tables, discard_cursor: bool, adopt_barrier: bool) -> Result<()> {
    let (left, plan) = Leftovers::load_with_plan(tables).await?;
    if let Some(blocker) = left.blockers(plan.as_ref(), discard_cursor, adopt_barrier).into_iter().next() {
        return Err(blocker);
    }
    if let Some(cursor) = left.foreign_cursor {
        let action = Action::v1(FOREIGN_CURSOR_KEY, Write::Delete, Condition::Equals(cursor), Role::Record);
        let transaction = Transaction { actions: vec![action] };
        let token = tables.environment().id();
        if tables.transact(&transaction, &token).await?.is_err() {
            return Err(Error::new(
                ErrorKind::ForeignLeftovers,
                "another migrator's cursor moved: it is alive",
            )
            .next(
                "stop that migrator; then metashift layout run --discard-foreign-cursor removes its cursor",
            ));
        }
    }
    Ok(())
}

/// Segments of a plan where nobody says how many: of 4 to 64 the benchmark finds 8 to 32 best and alike, with and without
/// a delay; 16 leaves the functions of a deployed run more time each.
pub const DEFAULT_SEGMENTS: u32 = 16;

/// What the plan should be like.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanWish {
    /// Segments: 1 to 256; `None`: the plan's own, or [`DEFAULT_SEGMENTS`].
    pub segments: Option<u32>,
    /// Starts the next generation, which walks everything again.
    pub new_generation: bool,
}

/// Makes the plan, or advances the existing one, until it is open, or in a state that is not backfill's: repairing,
/// finalizing, final.
///
/// `LayoutMismatch` for another layout, `PlanMismatch` for another companion or another number of segments, each without a
/// new generation.
pub async fn open_plan(tables: &Tables, wish: PlanWish) -> Result<Stored<Plan>> {
    if let Some(segments) = wish.segments {
        check_segments(segments)?;
    }
    let mut advanced = false;
    loop {
        let Some(stored) = load_plan(tables).await? else {
            let segments = wish.segments.unwrap_or(DEFAULT_SEGMENTS);
            check_segments(segments)?;
            move_plan(tables, None, &first_plan(tables, segments), Beside::NoMarker).await?;
            crash::reach("plan-opening").await;
            advanced = true;
            continue;
        };
        let plan = &stored.record;
        let differs = check_plan(plan, tables);
        // A new generation may have another layout and another companion; the plan's own may be a slip.
        if !wish.new_generation {
            differs.clone()?;
        }
        match plan.state {
            State::Opening => {
                create_records(
                    tables,
                    &Walk::Backfill { generation: plan.generation },
                    plan,
                    SegmentState::Open,
                )
                .await?;
                move_plan(tables, Some(&stored.bytes), &plan::opened(plan)?, Beside::Nothing).await?;
                crash::reach("plan-open").await;
                advanced = true;
            }
            State::Closing => {
                close_records(tables, &Walk::Backfill { generation: plan.generation }, plan).await?;
                let chosen = plan::Generation {
                    segments: wish.segments.unwrap_or(plan.segments),
                    layout: tables.layout().fingerprint(),
                    companion: tables.name(Side::V2).to_owned(),
                };
                let next = plan::next_generation(plan, chosen)?;
                move_plan(tables, Some(&stored.bytes), &next, Beside::Nothing).await?;
                crash::reach("plan-opening").await;
                advanced = true;
            }
            State::Takeover => finish_takeover(tables, &stored).await?,
            State::Repairing if wish.new_generation && differs.is_err() => {
                // No repair with the right layout can finish one that began with a wrong one.
                finish_repair(tables, plan.repair_run.as_deref().unwrap_or_default()).await?;
            }
            State::Open if wish.new_generation && (!advanced || differs.is_err()) => {
                let next = plan::close_generation(plan)?;
                move_plan(tables, Some(&stored.bytes), &next, Beside::NotFinalizing).await?;
                crash::reach("plan-closing").await;
            }
            State::Open if plan.version < VERSION => {
                move_plan(tables, Some(&stored.bytes), &plan::upgraded(plan)?, Beside::NoMarker).await?;
                crash::reach("plan-open").await;
            }
            State::Open | State::Repairing | State::Finalizing | State::Final => {
                if wish.new_generation && plan.state != State::Open {
                    return Err(plan::refused(plan, State::Open));
                }
                if let Some(segments) = wish.segments
                    && segments != plan.segments
                    && plan.state != State::Final
                {
                    return Err(Error::new(
                        ErrorKind::PlanMismatch,
                        format!("the plan has {} segments, the input asks for {segments}", plan.segments),
                    )
                    .next("leave --segments out, or start again from the first item with --new-generation"));
                }
                return Ok(stored);
            }
        }
    }
}

fn first_plan(tables: &Tables, segments: u32) -> Plan {
    Plan {
        companion: Some(tables.name(Side::V2).to_owned()),
        ..Plan::first(tables.layout().fingerprint(), segments)
    }
}

/// Brings the plan to final where another migrator published the marker; true where the plan is final now.
///
/// The marker is the truth, whichever migrator put it. Workers of this plan that are still alive would revive or overwrite
/// what v2-only nodes do from then on, so every record that they write on is closed first.
///
/// `LayoutMismatch` or `PlanMismatch` where the plan is of another layout or companion, unless `replace` is set.
pub async fn follow_marker(tables: &Tables, replace: bool) -> Result<bool> {
    loop {
        // The marker first: where this software published it, the plan that is read after it is final.
        if !Leftovers::load(tables).await?.marker {
            return Ok(false);
        }
        let (read, next) = match load_plan(tables).await? {
            None => (None, plan::take_over(&first_plan(tables, DEFAULT_SEGMENTS))?),
            Some(stored) => match stored.record.state {
                State::Final => return Ok(true),
                State::Takeover => {
                    finish_takeover(tables, &stored).await?;
                    continue;
                }
                _ => {
                    let mut next = plan::take_over(&stored.record)?;
                    if replace {
                        next.layout = tables.layout().fingerprint();
                        next.companion = Some(tables.name(Side::V2).to_owned());
                    } else {
                        check_plan(&stored.record, tables)?;
                    }
                    (Some(stored.bytes), next)
                }
            },
        };
        move_plan(tables, read.as_deref(), &next, Beside::FollowMarker).await?;
        crash::reach("takeover-begun").await;
    }
}

/// Takeover → final: closes the records of the generation and of an unfinished repair, then moves the plan.
async fn finish_takeover(tables: &Tables, stored: &Stored<Plan>) -> Result<()> {
    let plan = &stored.record;
    close_records(tables, &Walk::Backfill { generation: plan.generation }, plan).await?;
    if let Some(run) = &plan.repair_run {
        for side in [Side::V1, Side::V2] {
            close_records(tables, &Walk::Repair { run: run.clone(), side }, plan).await?;
        }
    }
    let next = plan::taken_over(plan, tables.environment().now())?;
    move_plan(tables, Some(&stored.bytes), &next, Beside::FollowMarker).await?;
    crash::reach("taken-over").await;
    Ok(())
}

/// Removes the barrier of another migrator that is known to be dead; false where there is none, or where it is this plan's.
///
/// The plan and the absence of the marker are checked in the same transaction. `ForeignLeftovers` for a barrier of an
/// unknown value.
pub async fn remove_foreign_barrier(tables: &Tables) -> Result<bool> {
    loop {
        let stored = load_plan(tables).await?;
        let left = Leftovers::load(tables).await?;
        if left.marker || !left.has_foreign_barrier(stored.as_ref().map(|stored| &stored.record)) {
            return Ok(false);
        }
        let transaction = if let Some(stored) = &stored {
            transition(Some(&stored.bytes), &stored.record, Beside::ReleaseBarrier)?
        } else {
            let plan = Action::v1(PLAN_KEY, Write::Check, Condition::Absent, Role::Record);
            let mut release =
                transition(None, &first_plan(tables, DEFAULT_SEGMENTS), Beside::ReleaseBarrier)?;
            release.actions.splice(..1, [plan]);
            release
        };
        match tables.transact(&transaction, &tables.environment().id()).await? {
            Ok(()) => return Ok(true),
            Err(reasons) => {
                let failed = |index: usize| matches!(reasons.get(index), Some(Reason::ConditionFailed(_)));
                if !failed(0) && !failed(2) && Leftovers::load(tables).await?.barrier {
                    return Err(Error::new(
                        ErrorKind::ForeignLeftovers,
                        "the write barrier has an unknown value",
                    )
                    .next("find out which process wrote it; change nothing by hand"));
                }
            }
        }
    }
}

/// The plan of a table whose marker is published; looks only.
///
/// Else the refusal of what is for after the marker: `AlreadyFinalized` where another migrator published it and no run has
/// taken the table over, `PlanMismatch` before the cutover.
pub async fn final_plan(tables: &Tables) -> Result<Plan> {
    let (left, plan) = Leftovers::load_with_plan(tables).await?;
    match plan {
        Some(plan) if plan.state == State::Final => Ok(plan),
        plan if left.marker => {
            Err(left.blockers(plan.as_ref(), true, true).into_iter().next().unwrap_or_else(no_plan))
        }
        Some(plan) if plan.state == State::Open => Err(Error::new(
            ErrorKind::PlanMismatch,
            "v1 is the authority still: this is for after the cutover",
        )
        .next("compare the tables before it with metashift layout run --rehearse; cut over with --finalize")),
        Some(plan) => Err(plan::refused(&plan, State::Final)),
        None => Err(no_plan()),
    }
}

/// Records in the plan that a comparison after the marker found no difference; false where it is not complete and clean.
///
/// Only a comparison that began after the marker counts. An earlier stamp is kept.
pub async fn stamp_audit(tables: &Tables, run: &str) -> Result<bool> {
    loop {
        let stored = load_plan(tables).await?.ok_or_else(no_plan)?;
        let plan = &stored.record;
        if plan.state != State::Final {
            return Err(plan::refused(plan, State::Final));
        }
        let summary = super::status::rehearsal(tables, plan, run).await?;
        if !(summary.is_complete() && summary.mismatched == 0 && summary.after_marker) {
            return Ok(false);
        }
        if plan.audited.is_some() {
            return Ok(true);
        }
        let next = plan::audited(plan, tables.environment().now(), run)?;
        move_plan(tables, Some(&stored.bytes), &next, Beside::Nothing).await?;
        crash::reach("audit-stamped").await;
    }
}

/// Moves the plan; losing to another process is no error, the caller reads it again.
async fn move_plan(tables: &Tables, read: Option<&[u8]>, next: &Plan, beside: Beside) -> Result<()> {
    let sent = tables.transact(&transition(read, next, beside)?, &tables.environment().id()).await?;
    let Err(reasons) = sent else { return Ok(()) };
    let failed = |index: usize| matches!(reasons.get(index), Some(Reason::ConditionFailed(_)));
    // Plan untouched and yet refused: barrier or marker are in the way.
    let (barrier, marker) = match beside {
        Beside::NoMarker => (false, failed(1)),
        // The marker never goes: the barrier has a value that is not known.
        Beside::FollowMarker => (failed(1), false),
        _ => (failed(1), failed(2)),
    };
    if failed(0) || !(barrier || marker) {
        return Ok(());
    }
    Err(if marker {
        Error::new(ErrorKind::AlreadyFinalized, "the plan cannot change: the marker is published")
            .next("metashift layout run --local takes the table over")
    } else {
        Error::new(ErrorKind::ForeignLeftovers, "the plan cannot change: a write barrier is in place")
            .next(REMOVE_FOREIGN_BARRIER)
    })
}

/// Creates each segment record of a walk that is not there, in this state.
async fn create_records(tables: &Tables, walk: &Walk, plan: &Plan, state: SegmentState) -> Result<()> {
    let keys: Vec<_> = (0..plan.segments).map(|segment| walk.key(segment)).collect();
    loop {
        let there: HashMap<String, Stored<Segment>> = tables.load_many(&keys).await?;
        let missing: Vec<_> = keys.iter().filter(|key| !there.contains_key(*key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let first = Segment { state, ..Segment::of_walk(plan.segments, Some(plan.generation)) };
        let first = records::encode(&first)?;
        for keys in missing.chunks(CREATED_AT_ONCE) {
            let actions = keys.iter().map(|key| Action::record(key, None, Write::Put(first.clone())));
            let transaction = Transaction { actions: actions.collect() };
            // Refused: somebody else created one of them; the next look says which are still missing.
            let _created = tables.transact(&transaction, &tables.environment().id()).await?;
            crash::reach("segment-created").await;
        }
    }
}

/// Puts each segment record of a walk as closed, on its exact value.
async fn close_records(tables: &Tables, walk: &Walk, plan: &Plan) -> Result<()> {
    // One that was never made is made closed: no worker may begin on it in between.
    create_records(tables, walk, plan, SegmentState::Closed).await?;
    for segment in 0..plan.segments {
        let key = walk.key(segment);
        let mut attempts = 0;
        loop {
            let stored =
                tables.load::<Segment>(&key).await?.ok_or_else(|| superseded(&key, "its record is gone"))?;
            if stored.record.state == SegmentState::Closed {
                break;
            }
            let mut closed = stored.record.clone();
            closed.state = SegmentState::Closed;
            closed.writer = Some(tables.environment().id());
            if tables.put_record(&key, Some(&stored.bytes), &closed).await? {
                crash::reach("segment-closed").await;
                break;
            }
            attempts += 1;
            if attempts == MOST_CLOSE_ATTEMPTS {
                return Err(Error::new(ErrorKind::Contended, format!("{key}: its worker does not stop"))
                    .next("pause the run (metashift layout pause), then try again"));
            }
        }
    }
    Ok(())
}

/// Begins a repair, or goes on with the one that is there: gives its id and the plan's segments.
///
/// `run` names a repair to begin; one that already runs under another id is gone on with.
pub async fn begin_repair(tables: &Tables, run: &str) -> Result<(String, u32)> {
    loop {
        let stored = load_plan(tables).await?.ok_or_else(no_plan)?;
        check_plan(&stored.record, tables)?;
        if stored.record.state == State::Repairing {
            let run = stored.record.repair_run.clone().unwrap_or_default();
            for side in [Side::V1, Side::V2] {
                let walk = Walk::Repair { run: run.clone(), side };
                create_records(tables, &walk, &stored.record, SegmentState::Open).await?;
            }
            return Ok((run, stored.record.segments));
        }
        let next = plan::begin_repair(&stored.record, run)?;
        // Closed records of this id: the repair would pass over everything. Unless somebody else has just begun it.
        if has_records(tables, &stored.record, run).await? {
            if load_plan(tables).await?.is_some_and(|now| now.bytes == stored.bytes) {
                return Err(plan::repair_has_ended(run));
            }
            continue;
        }
        move_plan(tables, Some(&stored.bytes), &next, Beside::NotFinalizing).await?;
        crash::reach("repair-opened").await;
    }
}

/// A repair of this id was begun before.
async fn has_records(tables: &Tables, plan: &Plan, run: &str) -> Result<bool> {
    let keys = |side: Side| {
        let walk = Walk::Repair { run: run.to_owned(), side };
        (0..plan.segments).map(move |segment| walk.key(segment))
    };
    let keys: Vec<_> = keys(Side::V1).chain(keys(Side::V2)).collect();
    Ok(!tables.load_many::<Segment>(&keys).await?.is_empty())
}

/// Ends a repair: closes its records, then opens the plan. Ending it twice is no error.
pub async fn finish_repair(tables: &Tables, run: &str) -> Result<()> {
    loop {
        let stored = load_plan(tables).await?.ok_or_else(no_plan)?;
        if stored.record.state == State::Open {
            return Ok(());
        }
        let next = plan::end_repair(&stored.record, run)?;
        for side in [Side::V1, Side::V2] {
            let walk = Walk::Repair { run: run.to_owned(), side };
            close_records(tables, &walk, &stored.record).await?;
        }
        move_plan(tables, Some(&stored.bytes), &next, Beside::Nothing).await?;
        crash::reach("repair-closed").await;
    }
}

/// All segment records of the plan's generation; those that do not exist yet are left out.
pub async fn backfill_segments(tables: &Tables, plan: &Plan) -> Result<Vec<Segment>> {
    let walk = Walk::Backfill { generation: plan.generation };
    let keys: Vec<_> = (0..plan.segments).map(|segment| walk.key(segment)).collect();
    let mut found = tables.load_many::<Segment>(&keys).await?;
    Ok(keys.iter().filter_map(|key| found.remove(key)).map(|stored| stored.record).collect())
}
