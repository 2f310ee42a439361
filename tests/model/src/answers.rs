//! Lost answers: one node's mutations, each sent again under its token until an answer arrives or patience ends,
//! beside nodes that change the same key.
//!
//! A request, or its answer, may be lost each time. DynamoDB remembers the token of what committed for ten minutes, and
//! the node gives up long before; a request that was refused is judged anew when it is sent again. Requests of one
//! mutation arrive in the order in which they were sent.

use metashift::layout::Layout;
use metashift::layout::outcome::{Cancelled, classify, refusal};
use metashift::layout::transaction::{Change, Side, Transaction, dual_before_marker};
use stateright::{Model, Property};

use crate::store::{Intent, Tables, Who};

/// A rule that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Every resend draws a new token.
    TokenPerResend,
    /// The token is made from the content.
    TokenFromContent,
}

/// The protocol.
#[derive(Debug, Clone)]
pub struct Answers {
    /// The broken variant.
    pub flaw: Option<Flaw>,
    mine: Intent,
    others: Vec<Intent>,
}

/// What the node knows of a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Told {
    /// Nothing yet.
    Waiting,
    /// It is committed.
    Applied,
    /// Its conditions failed and nothing was changed.
    Refused,
    /// Patience has ended.
    Unknown,
}

/// Tables, tokens that committed, and the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    tables: Tables,
    tokens: Vec<u8>,
    sent: u8,
    mutations: Vec<(Told, u8)>,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The node begins a mutation, the same one as before.
    Begin,
    /// A request is sent and lost on its way.
    LostRequest,
    /// A request arrives and its answer is lost.
    LostAnswer,
    /// A request arrives and is answered.
    Answered,
    /// The node gives up.
    GiveUp,
    /// Another node's mutation commits.
    Other(Intent),
}

const MUTATIONS: usize = 3;
const ATTEMPTS: u8 = 4;

impl Answers {
    /// The protocol, or its broken variant.
    pub fn new(flaw: Option<Flaw>) -> Self {
        let layout = Layout::default();
        let change = |expected: Option<&'static [u8]>, new: Option<&'static [u8]>| {
            dual_before_marker(&layout, &Change { key: "t/k0", expected, new, guard: None })
        };
        let intent = |label: &str, transaction: Transaction| Intent::of(Who::Dual, label, transaction);
        Self {
            flaw,
            mine: intent("the node creates a", change(None, Some(b"a"))),
            others: vec![
                intent("another node deletes a", change(Some(b"a"), None)),
                intent("another node changes a to b", change(Some(b"a"), Some(b"b"))),
                intent("another node deletes b", change(Some(b"b"), None)),
            ],
        }
    }

    fn deliver(&self, state: &mut State, answered: bool) {
        let mutation = state.mutations.len() - 1;
        let token = match self.flaw {
            Some(Flaw::TokenFromContent) => 0,
            Some(Flaw::TokenPerResend) => u8::try_from(mutation).unwrap() * 16 + state.sent,
            None => u8::try_from(mutation).unwrap(),
        };
        state.sent += 1;
        let mut told = Told::Applied;
        if !state.tokens.contains(&token) {
            match state.tables.send(self.mine) {
                Ok(()) => {
                    state.tokens.push(token);
                    state.mutations[mutation].1 += 1;
                }
                Err(reasons) => {
                    let conditions = matches!(classify(&reasons), Cancelled::Conditions(_));
                    let known = refusal(&self.mine.transaction, &reasons, Side::V1).is_some();
                    assert!(conditions && known, "a refusal without a reason");
                    told = Told::Refused;
                }
            }
        }
        if answered {
            state.mutations[mutation].0 = told;
        }
    }
}

impl Model for Answers {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State { tables: Tables::default(), tokens: Vec::new(), sent: 0, mutations: Vec::new() }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        if state.mutations.last().is_some_and(|(told, _)| *told == Told::Waiting) {
            moves.push(Move::GiveUp);
            if state.sent < ATTEMPTS {
                moves.extend([Move::LostRequest, Move::LostAnswer, Move::Answered]);
            }
        } else if state.mutations.len() < MUTATIONS {
            moves.push(Move::Begin);
        }
        let can = |intent: &Intent| state.tables.permits(*intent);
        moves.extend(self.others.iter().copied().filter(can).map(Move::Other));
    }

    fn next_state(&self, last: &State, step: Move) -> Option<State> {
        let mut state = last.clone();
        match step {
            Move::Begin => {
                state.mutations.push((Told::Waiting, 0));
                state.sent = 0;
            }
            Move::LostRequest => state.sent += 1,
            Move::LostAnswer => self.deliver(&mut state, false),
            Move::Answered => self.deliver(&mut state, true),
            Move::GiveUp => state.mutations.last_mut()?.0 = Told::Unknown,
            Move::Other(intent) => state.tables.send(intent).ok()?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(TRUE, |_: &Self, state: &State| {
                state.mutations.iter().all(|(told, commits)| match told {
                    Told::Applied => *commits == 1,
                    Told::Refused => *commits == 0,
                    Told::Waiting | Told::Unknown => true,
                })
            }),
            Property::always(ONCE, |_: &Self, state: &State| {
                state.mutations.iter().all(|(_, commits)| *commits <= 1)
            }),
        ];
        if self.flaw.is_none() {
            properties.push(Property::sometimes("a refused mutation", |_: &Self, state: &State| {
                state.mutations.iter().any(|(told, _)| *told == Told::Refused)
            }));
        }
        properties
    }
}

/// What the node is told.
pub const TRUE: &str = "an answer is true: applied was committed once, refused was not";
/// What the tables suffer.
pub const ONCE: &str = "a mutation commits at most once";
