//! The catalog protocol: two migrators, a committer that races the start, and a reader that kept its handle.
//!
//! A unit that rewrites: keys of the old layout become keys of the new one, a key a step. The batches are written
//! down here, in the form that `metashift::catalog` gives them: its builders are private to that crate and need a
//! SlateDB beside them. Start puts the marker and moves head; a step puts, deletes, and moves cursor and head; finish
//! flips the format, takes the marker away and moves head.
//!
//! Natively a process that opens the writer takes SlateDB's epoch; it may write several batches before they are
//! durable, in order, and what it wrote is lost with it or once it is fenced. Over the commit log there is no epoch: a
//! batch commits where head is what it was built on.

use std::fmt;

use stateright::{Model, Property};

/// Keys are bits; the store begins with the first and the last of three.
type Keys = u8;

const LEGACY: Keys = 0b101;
const COMMITTED: Keys = 0b010;

/// A guard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Start puts the marker and leaves head.
    MarkerWithoutHead,
    /// A step deletes in a batch before the one that puts.
    DeleteBeforePut,
    /// A step moves the cursor in a batch before the one that moves the data.
    CursorBeforeData,
    /// Finish flips the format, and takes the marker away in a second batch.
    FinishNotAtomic,
    /// A reader does not read head again.
    NoSecondHead,
    /// Batches become durable in any order.
    OutOfOrder,
    /// A process that lost the epoch goes on writing.
    Unfenced,
    /// A committer does not look for the marker.
    CommitterIgnoresMarker,
    /// Over the commit log a batch commits whatever head is.
    SlotOverwritten,
}

/// Who decides which batch comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Authority {
    /// SlateDB's writer epoch.
    Native,
    /// Objects created once, in sequence.
    CommitLog,
}

/// The protocol.
#[derive(Debug, Clone)]
pub struct Catalog {
    /// Who decides.
    pub authority: Authority,
    /// Batches that a process writes before they are durable.
    pub pipeline: usize,
    /// The broken variant.
    pub flaw: Option<Flaw>,
}

/// What is durable, or what a process sees with its own batches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store {
    /// The format is the new one.
    pub new_format: bool,
    /// The marker, with the keys that its cursor claims.
    pub marker: Option<Keys>,
    /// `head.batch_seq`.
    pub head: u8,
    /// Keys in the old layout.
    pub old: Keys,
    /// Keys in the new layout.
    pub new: Keys,
}

/// One atomic write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    head: Option<u8>,
    #[allow(clippy::option_option, reason = "left as it is, taken away, or put")]
    marker: Option<Option<Keys>>,
    new_format: bool,
    put_old: Keys,
    put_new: Keys,
    delete_old: Keys,
}

/// A migrator or the committer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// Not there: not begun, crashed, fenced, refused or done.
    Closed,
    /// Sees what was durable last, and has batches of its own on the way.
    Open(Store, Vec<Batch>),
}

/// The reader's progress through one read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reader {
    /// Between reads; the head under which it knows the format and that there was no marker.
    Idle(Option<(u8, bool)>),
    /// Has read head.
    Head(u8),
    /// Has read format and no marker; and so many keys, of which it found these.
    Data(u8, bool, u8, Keys),
    /// Has met the marker.
    Refused,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// What a reopen finds.
    pub durable: Store,
    /// What has been committed, whatever the layout.
    pub logical: Keys,
    /// Who holds the writer's epoch.
    pub owner: Option<usize>,
    /// Two migrators and the committer.
    pub processes: [Process; 3],
    /// The reader.
    pub reader: Reader,
    /// A reader returned a view with a hole.
    pub hole: bool,
    /// A reader went on under a marker that stood before its read began.
    pub missed: bool,
    /// A migrator reported success on a store that was not migrated.
    pub partial: bool,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// A process opens the store.
    Open(usize),
    /// A process writes its next batch.
    Write(usize),
    /// The n-th batch on its way becomes durable, or its process learns that it was fenced or has lost.
    Land(usize, usize),
    /// A process dies.
    Crash(usize),
    /// A migrator reports success.
    Report(usize),
    /// The reader's next request.
    Read,
    /// The reader's handle is opened anew.
    Reopen,
}

const COMMITTER: usize = 2;

impl fmt::Debug for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |process: usize| ["migrator A", "migrator B", "the committer"][process];
        match *self {
            Self::Open(process) => write!(f, "{} opens the store", name(process)),
            Self::Write(process) => write!(f, "{} writes its next batch", name(process)),
            Self::Land(process, 0) => {
                write!(f, "{}'s first batch under way lands, or is refused", name(process))
            }
            Self::Land(process, n) => write!(f, "{}'s batch {} under way lands", name(process), n + 1),
            Self::Crash(process) => write!(f, "{} dies", name(process)),
            Self::Report(process) => write!(f, "{} reports success", name(process)),
            Self::Read => f.write_str("the reader's next request"),
            Self::Reopen => f.write_str("the reader opens anew"),
        }
    }
}

impl Batch {
    fn apply(&self, store: &mut Store) {
        store.old = (store.old | self.put_old) & !self.delete_old;
        store.new |= self.put_new;
        store.new_format |= self.new_format;
        store.head = self.head.unwrap_or(store.head);
        if let Some(marker) = self.marker {
            store.marker = marker;
        }
    }
}

impl Catalog {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The next batches of a process that sees `store`: one, but where a flaw splits it.
    fn next(&self, process: usize, store: &Store) -> Vec<Batch> {
        let moved = Batch { head: Some(store.head + 1), ..Batch::default() };
        let after = |batch: &Batch| Batch { head: Some(store.head + 2), ..batch.clone() };
        if process == COMMITTER {
            if (store.marker.is_some() && !self.has(Flaw::CommitterIgnoresMarker))
                || (store.old | store.new) & COMMITTED != 0
            {
                return Vec::new();
            }
            return if store.new_format {
                vec![Batch { put_new: COMMITTED, ..moved }]
            } else {
                vec![Batch { put_old: COMMITTED, ..moved }]
            };
        }
        match store.marker {
            None if store.new_format => Vec::new(),
            None => {
                let head = if self.has(Flaw::MarkerWithoutHead) { None } else { moved.head };
                vec![Batch { head, marker: Some(Some(0)), ..Batch::default() }]
            }
            Some(claimed) => {
                // The scan goes on behind the cursor.
                let behind = !0_u8 << (8 - claimed.leading_zeros());
                let ahead = store.old & behind;
                if ahead == 0 {
                    let flip = Batch { new_format: true, ..moved.clone() };
                    return if self.has(Flaw::FinishNotAtomic) {
                        vec![flip, after(&Batch { marker: Some(None), ..Batch::default() })]
                    } else {
                        vec![Batch { marker: Some(None), ..flip }]
                    };
                }
                let key = ahead & ahead.wrapping_neg();
                let cursor = Batch { marker: Some(Some(claimed | key)), ..moved.clone() };
                let step = Batch { put_new: key, delete_old: key, ..cursor.clone() };
                match self.flaw {
                    Some(Flaw::DeleteBeforePut) => {
                        vec![Batch { delete_old: key, ..moved }, after(&Batch { delete_old: 0, ..step })]
                    }
                    Some(Flaw::CursorBeforeData) => vec![cursor, after(&step)],
                    _ => vec![step],
                }
            }
        }
    }

    fn write(&self, process: usize, base: &Store, queue: &[Batch]) -> Option<Vec<Batch>> {
        let mut store = base.clone();
        for batch in queue {
            batch.apply(&mut store);
        }
        let next = self.next(process, &store);
        // Start and a commit are waited for; over the log every batch is.
        let waits = process == COMMITTER || base.marker.is_none() || self.authority == Authority::CommitLog;
        let room = if waits { 0 } else { self.pipeline - 1 };
        let flipped = store.new_format && !base.new_format && store.marker.is_none();
        (!next.is_empty() && queue.len() <= room && !flipped).then_some(next)
    }
}

impl Model for Catalog {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            durable: Store { new_format: false, marker: None, head: 0, old: LEGACY, new: 0 },
            logical: LEGACY,
            owner: None,
            processes: [const { Process::Closed }; 3],
            reader: Reader::Idle(None),
            hole: false,
            missed: false,
            partial: false,
        }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        for (process, one) in state.processes.iter().enumerate() {
            match one {
                Process::Closed => moves.push(Move::Open(process)),
                Process::Open(base, queue) => {
                    moves.push(Move::Crash(process));
                    if self.write(process, base, queue).is_some() {
                        moves.push(Move::Write(process));
                    }
                    let reach = if self.has(Flaw::OutOfOrder) { queue.len() } else { queue.len().min(1) };
                    moves.extend((0..reach).map(|index| Move::Land(process, index)));
                    if process != COMMITTER && base.new_format && base.marker.is_none() && queue.is_empty() {
                        moves.push(Move::Report(process));
                    }
                }
            }
        }
        moves.push(if state.reader == Reader::Refused { Move::Reopen } else { Move::Read });
    }

    fn next_state(&self, last: &State, step: Move) -> Option<State> {
        let mut state = last.clone();
        match step {
            Move::Open(process) => {
                // A committer checks format and marker before it opens the writer, and again once it has the epoch.
                if process == COMMITTER
                    && (state.durable.marker.is_some() && !self.has(Flaw::CommitterIgnoresMarker))
                {
                    return None;
                }
                state.processes[process] = Process::Open(state.durable.clone(), Vec::new());
                state.owner = (self.authority == Authority::Native).then_some(process);
            }
            Move::Write(process) => {
                let Process::Open(base, queue) = &mut state.processes[process] else { return None };
                let next = self.write(process, base, queue)?;
                queue.extend(next);
            }
            Move::Land(process, index) => {
                let Process::Open(base, queue) = &mut state.processes[process] else { return None };
                let batch = queue.remove(index);
                let fits = match self.authority {
                    Authority::Native => state.owner == Some(process) || self.has(Flaw::Unfenced),
                    Authority::CommitLog => {
                        batch.head == Some(state.durable.head + 1) || self.has(Flaw::SlotOverwritten)
                    }
                };
                if fits {
                    batch.apply(&mut state.durable);
                    batch.apply(base);
                    state.logical |= batch.put_old;
                    if process == COMMITTER {
                        state.logical |= batch.put_new;
                    }
                } else if self.authority == Authority::Native {
                    state.processes[process] = Process::Closed;
                } else {
                    // Lost: what won is folded, and it starts again from there.
                    state.processes[process] = Process::Open(state.durable.clone(), Vec::new());
                }
            }
            Move::Crash(process) => state.processes[process] = Process::Closed,
            Move::Report(process) => {
                state.processes[process] = Process::Closed;
                state.partial |= !state.durable.new_format || state.durable.marker.is_some();
            }
            Move::Read => self.read(&mut state),
            Move::Reopen => state.reader = Reader::Idle(None),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_OF_THREE, |_: &Self, state: &State| {
                let store = &state.durable;
                match (store.new_format, store.marker) {
                    (false, None) => store.old == state.logical && store.new == 0,
                    (false, Some(claimed)) => {
                        store.old | store.new == state.logical
                            && store.old & store.new == 0
                            && store.new == claimed
                    }
                    (true, None) => store.new == state.logical && store.old == 0,
                    (true, Some(_)) => false,
                }
            }),
            Property::always(REACHABLE, |_: &Self, state: &State| {
                (state.durable.old | state.durable.new) & state.logical == state.logical
            }),
            Property::always(NO_HOLE, |_: &Self, state: &State| !state.hole),
            Property::always(REFUSES, |_: &Self, state: &State| !state.missed),
            Property::always(NO_PARTIAL, |_: &Self, state: &State| !state.partial),
            Property::always(AS_UNINTERRUPTED, |_: &Self, state: &State| {
                let store = &state.durable;
                // Start, a step a key that was there at the start, finish; and the commit, before or after.
                let committed = state.logical & COMMITTED != 0;
                let (least, most) = if committed { (5, 6) } else { (4, 4) };
                !store.new_format || (least..=most).contains(&store.head)
            }),
        ];
        if self.flaw.is_none() {
            properties.push(Property::sometimes("migrated, and a commit before it", |_: &Self, state| {
                let state: &State = state;
                state.durable.new_format && state.durable.head == 6
            }));
            properties.push(Property::sometimes("a read is released after it", |_: &Self, state: &State| {
                matches!(state.reader, Reader::Idle(Some((_, true))))
            }));
        }
        properties
    }
}

impl Catalog {
    fn read(&self, state: &mut State) {
        let store = &state.durable;
        state.reader = match state.reader.clone() {
            Reader::Idle(known) => match known {
                Some((head, format)) if head == store.head => {
                    state.missed |= store.marker.is_some();
                    Reader::Data(head, format, 0, 0)
                }
                _ => Reader::Head(store.head),
            },
            Reader::Head(_) if store.marker.is_some() => Reader::Refused,
            Reader::Head(head) => Reader::Data(head, store.new_format, 0, 0),
            Reader::Data(head, format, read, found) if read < 3 => {
                let layout = if format { store.new } else { store.old };
                Reader::Data(head, format, read + 1, found | (layout & (1 << read)))
            }
            Reader::Data(head, format, _, found) => {
                if head == store.head || self.has(Flaw::NoSecondHead) {
                    // Without the second look what the first head promised is all that there is to hold it against.
                    state.hole |= found & LEGACY != LEGACY || (head == store.head && found != state.logical);
                    Reader::Idle(Some((head, format)))
                } else {
                    Reader::Idle(None)
                }
            }
            Reader::Refused => Reader::Refused,
        };
    }
}

/// Invariant 7, states.
pub const ONE_OF_THREE: &str =
    "7: a reopen finds the old format, the old one with a marker, or the new one, each whole";
/// Invariant 7, records.
pub const REACHABLE: &str = "7: no record is out of both layouts";
/// Invariant 7, readers.
pub const NO_HOLE: &str = "7: a reader never returns a view with a hole";
/// Invariant 7, handles that were opened before the marker.
pub const REFUSES: &str = "7: a handle from before the marker refuses with its next read";
/// A fenced migrator never says that it succeeded.
pub const NO_PARTIAL: &str = "success is reported only of a migrated store";
/// Invariant 8.
pub const AS_UNINTERRUPTED: &str = "8: whatever crashed, head has moved as often as in one run";
