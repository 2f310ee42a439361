//! Comparing the tables, one segment of one direction a step: online before a cutover (rehearsal), and under its
//! barrier (final).
//!
//! Under the barrier nothing changes, so each table is read once: its items are checked on their own (do they fit v2, are
//! they in their bucket), counted, and summed into a [`Digest`] of the whole set. Equal totals and digests mean equal
//! tables. If they differ, both directions run again exactly, each key against a strongly consistent read of the other
//! table, so that every difference is named. A rehearsal has no such stillness: it compares exactly, and a difference
//! counts only if both copies read at one moment still show it.

use super::backfill::decide::movable;
use super::digest::Digest;
use super::family::family;
use super::key::{MOST_V2_KEY_BYTES, is_internal};
use super::outcome::Reason;
use super::plan::{check_deadline, cutover_of};
use super::records::plan::{self, Plan, State as PlanState};
use super::records::reject;
use super::records::segment::{Mismatch, MismatchKind, Position, Segment, State, Walk};
use super::tables::{Item, Page, Tables};
use super::transaction::Side;
use super::walk::{Origin, SegmentInput, Visitor, Walker, check_input};
use crate::environment::elapsed;
use crate::step::{Budget, Status, StepOutput};
use crate::{Error, ErrorKind, Result};

/// Detail of an output: seconds for which the barrier was held when the step began.
pub const BARRIER_HELD: &str = "barrierHeldSeconds";

/// Compares the rest of one segment of one direction, before any cutover.
///
/// `run` is the rehearsal's id; its record is made by the first page. A difference is counted and listed, and no error;
/// `Superseded` where another worker has taken the segment over.
pub async fn rehearse(
    tables: &Tables,
    run: &str,
    side: Side,
    input: SegmentInput,
    budget: Budget,
) -> Result<StepOutput> {
    check_input(&input)?;
    let tables = &tables.metered();
    let plan = tables.load::<Plan>(plan::KEY).await?.ok_or_else(super::generation::no_plan)?.record;
    check_segments(&plan, &input)?;
    let walk = Walk::Rehearse { run: run.to_owned(), side };
    let origin =
        Origin::FirstPage { generation: Some(plan.generation), after_marker: plan.state == PlanState::Final };
    let mut walker = Walker::load(tables, walk, input, budget, origin).await?;
    let visitor = Compare { side, kind: Kind::Rehearsal };
    let status = walker.run(&visitor).await?;
    Ok(output(&walker, status))
}

/// Compares the rest of one segment of one direction under the barrier of `epoch`.
///
/// With `exact` it reads the other table for each key, so that every difference is named; a segment that was only counted
/// starts again. `CutoverExpired` past the deadline, `Superseded` where the epoch's barrier is gone.
pub async fn verify(
    tables: &Tables,
    epoch: &str,
    side: Side,
    exact: bool,
    input: SegmentInput,
    budget: Budget,
) -> Result<StepOutput> {
    let tables = tables.metered();
    let plan = tables.load::<Plan>(plan::KEY).await?.ok_or_else(super::generation::no_plan)?;
    let now = tables.now();
    let cutover = cutover_of(&plan.record, epoch)?;
    let held = elapsed(cutover.installed_at, now).as_secs_f64();
    let secret = cutover.digest_key.clone();
    check_cutover(&plan.record, epoch, now)?;
    check_segments(&plan.record, &input)?;
    let walk = Walk::Verify { epoch: epoch.to_owned(), side };
    let mut walker =
        Walker::load(&tables, walk, input, budget, Origin::UnderPlan(&plan.bytes, plan.record.generation))
            .await?;
    // A cutover without a secret has no digest to rely on.
    let exact = exact || secret.is_empty();
    if exact && !walker.segment().exact {
        let restarted = walker
            .commit(Vec::new(), |segment| {
                let extra = std::mem::take(&mut segment.extra);
                let again = Segment::of_walk(segment.total, segment.generation);
                *segment = Segment { exact: true, extra, ..again };
            })
            .await?;
        expect_written(restarted)?;
        walker.count_from_here();
    }
    let exact = walker.segment().exact;
    let visitor = Compare { side, kind: Kind::Final { epoch: epoch.to_owned(), secret, exact } };
    let status = walker.run(&visitor).await?;
    Ok(output(&walker, status).with(BARRIER_HELD, held))
}

/// `PlanMismatch` where the walk has not as many segments as the plan: it would miss items.
fn check_segments(plan: &Plan, input: &SegmentInput) -> Result<()> {
    if input.segments == plan.segments {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::PlanMismatch,
        format!(
            "the plan has {} segments, this walk {}: the plan has changed",
            plan.segments, input.segments
        ),
    )
    .next("see metashift layout status, then start again"))
}

fn output(walker: &Walker, status: Status) -> StepOutput {
    walker.output(status).with("mismatches", walker.segment().mismatched)
}

fn check_cutover(plan: &Plan, epoch: &str, now: jiff::Timestamp) -> Result<()> {
    check_deadline(cutover_of(plan, epoch)?, now)
}

fn expect_written(sent: Result<(), Vec<Reason>>) -> Result<()> {
    sent.map_err(|reasons| {
        Error::new(ErrorKind::Internal, format!("a record alone was refused: {reasons:?}"))
    })
}

enum Kind {
    Rehearsal,
    Final { epoch: String, secret: String, exact: bool },
}

struct Compare {
    side: Side,
    kind: Kind,
}

/// What one page adds to its segment.
#[derive(Default)]
struct Findings {
    scanned: u64,
    bytes: u64,
    digest: Digest,
    equal: u64,
    families: Vec<String>,
    mismatches: Vec<Mismatch>,
    end: Option<Position>,
}

impl Compare {
    async fn compare(&self, tables: &Tables, page: Page) -> Result<Findings> {
        let mut findings = Findings { end: end_of(&page), ..Findings::default() };
        let compared = !matches!(self.kind, Kind::Final { exact: false, .. });
        let items: Vec<_> =
            page.items.into_iter().filter(|item| self.side == Side::V2 || !is_internal(&item.key)).collect();
        let other = if self.side == Side::V1 { Side::V2 } else { Side::V1 };
        let others = if compared {
            let keys = items.iter().map(|item| item.key.as_str());
            let keys: Vec<_> = keys.filter(|key| key.len() <= MOST_V2_KEY_BYTES).collect();
            tables.get_many(other, &keys).await?
        } else {
            std::collections::HashMap::new()
        };
        for item in items {
            findings.bytes += (item.key.len() + item.value().map_or(0, <[u8]>::len)) as u64;
            let found = others.get(&item.key);
            let alone = match self.side {
                Side::V1 => unmovable(tables, &item),
                Side::V2 => misplaced(tables, &item),
            };
            let mut kind = match self.side {
                _ if alone.is_some() || !compared => alone,
                Side::V1 => difference(tables, Some(&item), found),
                Side::V2 => difference(tables, found, Some(&item)),
            };
            if kind.is_some() && matches!(self.kind, Kind::Rehearsal) && is_at_home(tables, &item) {
                let (v1, v2) = tables.get_settled(&item.key).await?;
                kind = difference(tables, v1.as_ref(), v2.as_ref());
            }
            // A copy that v1 does not know is no item of the migration; its count must not hide a loss.
            if kind.is_none() || self.side == Side::V1 {
                findings.scanned += 1;
                if let Kind::Final { secret, .. } = &self.kind {
                    findings.digest.add(secret, &item.key, item.value().unwrap_or_default());
                }
            }
            match kind {
                None => findings.equal += u64::from(compared),
                Some(kind) => findings.mismatches.push(Mismatch { key: item.key.clone(), kind }),
            }
            if self.side == Side::V2 && kind.is_none() {
                findings.families.push(family(&item.key).to_owned());
            }
        }
        Ok(findings)
    }
}

impl Visitor for Compare {
    type Prepared = Findings;

    fn done(&self) -> &'static str {
        if matches!(self.kind, Kind::Rehearsal) { "rehearse-done" } else { "verify-done" }
    }

    async fn prepare(&self, tables: &Tables, page: Page) -> Result<Findings> {
        self.compare(tables, page).await
    }

    async fn apply(&self, walker: &mut Walker, findings: Findings) -> Result<Option<Status>> {
        let rehearsal = matches!(self.kind, Kind::Rehearsal);
        let sent = walker
            .commit(Vec::new(), |segment| {
                segment.exact |= rehearsal;
                segment.scanned += findings.scanned;
                segment.bytes += findings.bytes;
                segment.digest += findings.digest;
                segment.already_live += findings.equal;
                for family in &findings.families {
                    segment.count_family(family);
                }
                for mismatch in findings.mismatches {
                    segment.add_mismatch(mismatch);
                }
                if findings.end.is_some() {
                    segment.cursor = findings.end;
                }
            })
            .await?;
        expect_written(sent)?;
        crate::crash::reach(if rehearsal { "rehearse-page" } else { "verify-page" }).await;
        Ok(None)
    }

    async fn finish(&self, _walker: &mut Walker) -> Result<Option<Status>> {
        Ok(None)
    }

    async fn check(&self, tables: &Tables) -> Result<()> {
        let Kind::Final { epoch, .. } = &self.kind else { return Ok(()) };
        let plan = tables.load::<Plan>(plan::KEY).await?.ok_or_else(super::generation::no_plan)?;
        check_cutover(&plan.record, epoch, tables.now())
    }
}

/// Where the scan goes on after a page: DynamoDB's own key, else its last item's.
pub(super) fn end_of(page: &Page) -> Option<Position> {
    page.next.clone().or_else(|| {
        page.items.last().map(|item| Position { bucket: item.bucket.clone(), pk: item.key.clone() })
    })
}

/// An item of v2 that is no record, or lies where the layout does not look for it.
fn misplaced(tables: &Tables, item: &Item) -> Option<MismatchKind> {
    if item.value().is_none() {
        return Some(MismatchKind::UnsupportedItem);
    }
    if is_internal(&item.key) {
        return Some(MismatchKind::Extra);
    }
    (!is_at_home(tables, item)).then_some(MismatchKind::WrongBucket)
}

/// A user's item that a read of its key finds.
fn is_at_home(tables: &Tables, item: &Item) -> bool {
    let bucket = item.bucket.as_deref();
    !is_internal(&item.key) && bucket.is_none_or(|bucket| bucket == tables.layout().bucket(&item.key))
}

/// How the two copies of a key differ.
pub(super) fn difference(tables: &Tables, v1: Option<&Item>, v2: Option<&Item>) -> Option<MismatchKind> {
    match (v1, v2) {
        (None, None) => None,
        (_, Some(v2)) if v2.value().is_none() => Some(MismatchKind::UnsupportedItem),
        (None, Some(_)) => Some(MismatchKind::Extra),
        (Some(v1), v2) => unmovable(tables, v1).or_else(|| match v2 {
            None => Some(MismatchKind::Missing),
            Some(v2) => (v1.value() != v2.value()).then_some(MismatchKind::WrongValue),
        }),
    }
}

/// An item of v1 that v2 cannot hold.
fn unmovable(tables: &Tables, item: &Item) -> Option<MismatchKind> {
    movable(tables.layout(), item).err().map(|reject| match reject.reason {
        reject::Reason::KeyTooLong => MismatchKind::KeyTooLong,
        reject::Reason::ItemTooLarge => MismatchKind::ItemTooLarge,
        _ => MismatchKind::UnsupportedItem,
    })
}

/// What all verify or rehearse records of one id say together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Segments of both directions that are done.
    pub done: u32,
    /// Segments of both directions.
    pub segments: u32,
    /// Items scanned in v1.
    pub v1_items: u64,
    /// Items scanned in v2, in their right bucket.
    pub v2_items: u64,
    /// Differences, by key: one that both directions found counts once while the records still list it.
    pub mismatched: u64,
    /// The first of them by key; at most 25 a record.
    pub mismatches: Vec<Mismatch>,
    /// Items of v2 by family; the families beyond 100 a segment are together under `""`.
    pub families: std::collections::BTreeMap<String, u64>,
    /// Digest of v1's items under the barrier.
    pub v1_digest: Digest,
    /// Digest of v2's items under the barrier, those in their right bucket.
    pub v2_digest: Digest,
    /// True where each key of both tables was compared with the other one.
    pub exact: bool,
    /// True where every record was begun after the marker.
    pub after_marker: bool,
    /// When a record of either direction was last written.
    pub updated_at: Option<jiff::Timestamp>,
}

impl Summary {
    /// Reads the records of both directions, by number; `make` gives the walk of a direction.
    ///
    /// A record that is of a walk over another number of segments or of another generation of the plan counts as missing.
    pub async fn load(tables: &Tables, plan: &Plan, make: impl Fn(Side) -> Walk) -> Result<Self> {
        let mut records = Vec::new();
        for side in [Side::V1, Side::V2] {
            let keys: Vec<_> = (0..plan.segments).map(|segment| make(side).key(segment)).collect();
            let found = tables.load_many::<Segment>(&keys).await?;
            records.extend(found.into_values().map(|stored| (side, stored.record)));
        }
        Ok(Self::of(plan, records))
    }

    /// What records of both directions say together; [`Self::load`] has which of them count.
    pub fn of(plan: &Plan, records: impl IntoIterator<Item = (Side, Segment)>) -> Self {
        let mut summary =
            Self { segments: plan.segments * 2, exact: true, after_marker: true, ..Self::default() };
        for (side, record) in records {
            if record.is_of(plan.segments, Some(plan.generation)) {
                summary.add(side, record);
            }
        }
        summary.settle();
        summary
    }

    fn add(&mut self, side: Side, segment: Segment) {
        self.done += u32::from(segment.state == State::Done);
        self.mismatched += segment.mismatched;
        self.updated_at = self.updated_at.max(segment.updated_at);
        self.mismatches.extend(segment.mismatches);
        self.exact &= segment.exact;
        self.after_marker &= segment.after_marker;
        match side {
            Side::V1 => {
                self.v1_items += segment.scanned;
                self.v1_digest += segment.digest;
            }
            Side::V2 => {
                self.v2_items += segment.scanned;
                self.v2_digest += segment.digest;
                for (family, count) in segment.families {
                    *self.families.entry(family).or_default() += count;
                }
            }
        }
    }

    /// A key in the wrong bucket is missing from the right one too: one finding, not two.
    fn settle(&mut self) {
        self.mismatches.sort_by(|a, b| (&a.key, severity(a.kind)).cmp(&(&b.key, severity(b.kind))));
        let listed = self.mismatches.len() as u64;
        self.mismatches.dedup_by(|later, earlier| later.key == earlier.key);
        self.mismatched -= listed - self.mismatches.len() as u64;
    }

    /// True where a difference is listed that no repair mends.
    pub fn is_for_a_person(&self) -> bool {
        let no_repair = [MismatchKind::KeyTooLong, MismatchKind::ItemTooLarge, MismatchKind::UnsupportedItem];
        self.mismatches.iter().any(|one| no_repair.contains(&one.kind))
    }

    /// True where no difference was found and the sets are the same, by number and digest.
    pub fn is_equal(&self) -> bool {
        self.mismatched == 0 && self.v1_items == self.v2_items && self.v1_digest == self.v2_digest
    }

    /// True where the tables are known to differ, whether a key was named or not.
    pub fn differs(&self) -> bool {
        self.mismatched > 0 || (self.is_complete() && !self.is_equal())
    }

    /// What was found, in words: how many differences, or that there are some which no key was named for yet.
    pub fn verdict(&self) -> String {
        match self.mismatched {
            0 if self.differs() => "the tables differ, no key is named".to_owned(),
            0 if self.is_complete() => "equal".to_owned(),
            0 => "no difference so far".to_owned(),
            differences => format!("{differences} differences"),
        }
    }

    /// True where every segment of both directions is done.
    pub fn is_complete(&self) -> bool {
        self.done == self.segments
    }
}

fn severity(kind: MismatchKind) -> u8 {
    u8::from(kind != MismatchKind::WrongBucket)
}

/// `VerificationFailed` with the findings in words; the first few keys, the rest is in the records.
pub fn failed(summary: &Summary) -> Error {
    if summary.mismatched == 0 {
        let message = format!(
            "the tables changed under the barrier: v1 had {} items and v2 {}, and no key differs any more",
            summary.v1_items, summary.v2_items
        );
        return Error::new(ErrorKind::VerificationFailed, message).next(
            "find the writer that does not know the barrier (metric WriterMode), then rehearse and finalize again",
        );
    }
    let named: Vec<_> = summary
        .mismatches
        .iter()
        .take(5)
        .map(|one| {
            let kind = serde_json::to_value(one.kind).unwrap_or_default();
            format!("{:?} ({})", short(&one.key), kind.as_str().unwrap_or_default())
        })
        .collect();
    let more = summary.mismatched.saturating_sub(named.len() as u64);
    let list = match (named.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(": {}", named.join(", ")),
        (false, more) => format!(": {} and {more} more", named.join(", ")),
    };
    let message = format!(
        "{} differences; v1 has {} items and v2 {}{list}",
        summary.mismatched, summary.v1_items, summary.v2_items
    );
    Error::new(ErrorKind::VerificationFailed, message).next(if summary.is_for_a_person() {
        "metashift layout status lists them; keyTooLong, itemTooLarge and unsupportedItem are for a person to mend or \
         delete, in either table; metashift layout repair mends the others"
    } else {
        "metashift layout status lists them; metashift layout repair makes the new table follow the old one"
    })
}

/// `VerificationFailed` where the tables differ and the comparison that was to name the keys ended with `error`.
pub(super) fn not_named(error: &Error) -> Error {
    let message =
        format!("the tables differ, and naming the keys ended early: {}: {}", error.kind(), error.message());
    Error::new(ErrorKind::VerificationFailed, message)
        .next("metashift layout run --rehearse names them, with writers at work")
}

/// A key as far as it fits a message.
fn short(key: &str) -> String {
    let cut: String = key.chars().take(120).collect();
    if cut.len() < key.len() { format!("{cut}…") } else { cut }
}

/// The plan's state says that the table is final already.
pub(super) fn is_final(plan: &Plan) -> bool {
    plan.state == PlanState::Final
}
