//! Lost answers: one node's mutations, each sent again under its token until an answer arrives or patience ends,
//! beside nodes that change the same key.
//!
//! A request, or its answer, may be lost each time, and a request may be held up and arrive at any later time, also
//! after later copies of it were answered. DynamoDB remembers the token of what committed for ten minutes, longer than
//! a held request's signature is good for; a request that was refused is judged anew when it is sent again. So a
//! refusal that comes after a lost answer is believed once the token is spent.

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
    /// A refusal after a lost answer is believed at once.
    TokenNotSpent,
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
    /// Its conditions failed, and a copy may still be on its way.
    Doubtful,
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
    spent: Vec<u8>,
    /// Copies that are held up: mutation and token.
    held: Vec<(usize, u8)>,
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
    /// A request is sent and held up.
    HeldRequest,
    /// A request that was held up arrives; nobody waits for its answer.
    Arrives(usize),
    /// The token is spent, and that is answered.
    Spent,
    /// The token is spent, and the answer is lost.
    SpentUnknown,
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
            dual_before_marker(&layout, &Change::new("t/k0", expected, new))
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

    fn token(&self, state: &State) -> u8 {
        let mutation = u8::try_from(state.mutations.len() - 1).unwrap();
        match self.flaw {
            Some(Flaw::TokenFromContent) => 0,
            Some(Flaw::TokenPerResend) => mutation * 16 + state.sent,
            Some(Flaw::TokenNotSpent) | None => mutation,
        }
    }

    /// What DynamoDB does with a copy; `false`: its conditions failed.
    fn arrive(&self, state: &mut State, mutation: usize, token: u8) -> bool {
        if state.tokens.contains(&token) {
            return true;
        }
        match state.tables.send(self.mine) {
            Ok(()) => {
                state.tokens.push(token);
                state.mutations[mutation].1 += 1;
                true
            }
            Err(reasons) => {
                let conditions = matches!(classify(&reasons), Cancelled::Conditions(_));
                let known = refusal(&self.mine.transaction, &reasons, Side::V1).is_some();
                assert!(conditions && known, "a refusal without a reason");
                false
            }
        }
    }

    fn deliver(&self, state: &mut State, answered: bool) {
        let (mutation, token) = (state.mutations.len() - 1, self.token(state));
        state.sent += 1;
        let applied = self.arrive(state, mutation, token);
        let sure = state.sent == 1 || self.flaw == Some(Flaw::TokenNotSpent);
        if answered {
            state.mutations[mutation].0 = match (applied, sure) {
                (true, _) => Told::Applied,
                (false, true) => Told::Refused,
                (false, false) => Told::Doubtful,
            };
        }
    }
}

impl Model for Answers {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tables: Tables::default(),
            tokens: Vec::new(),
            spent: Vec::new(),
            held: Vec::new(),
            sent: 0,
            mutations: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        match state.mutations.last() {
            Some((Told::Waiting, _)) => {
                moves.push(Move::GiveUp);
                if state.sent < ATTEMPTS {
                    moves.extend([Move::LostRequest, Move::HeldRequest, Move::LostAnswer, Move::Answered]);
                }
            }
            Some((Told::Doubtful, _)) => moves.extend([Move::GiveUp, Move::Spent, Move::SpentUnknown]),
            _ if state.mutations.len() < MUTATIONS => moves.push(Move::Begin),
            _ => {}
        }
        moves.extend((0..state.held.len()).map(Move::Arrives));
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
            Move::HeldRequest => {
                state.held.push((state.mutations.len() - 1, self.token(&state)));
                state.held.sort_unstable();
                state.sent += 1;
            }
            Move::Arrives(index) => {
                let (mutation, token) = state.held.remove(index);
                if !state.spent.contains(&token) {
                    self.arrive(&mut state, mutation, token);
                }
            }
            Move::Spent | Move::SpentUnknown => {
                let token = self.token(&state);
                let bound = state.tokens.contains(&token);
                if !bound && !state.spent.contains(&token) {
                    state.spent.push(token);
                }
                if step == Move::Spent {
                    let told = if bound { Told::Applied } else { Told::Refused };
                    state.mutations.last_mut()?.0 = told;
                }
            }
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
                    Told::Waiting | Told::Doubtful | Told::Unknown => true,
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
            properties
                .push(Property::sometimes("a token spent before its copy", |_: &Self, state: &State| {
                    state.held.iter().any(|(_, token)| state.spent.contains(token))
                }));
        }
        properties
    }
}

/// What the node is told.
pub const TRUE: &str = "an answer is true: applied was committed once, refused was not";
/// What the tables suffer.
pub const ONCE: &str = "a mutation commits at most once";
