//! What metadata nodes send.
//!
//! A node may have read a key long ago and send its mutation now, so every change between two values is possible at
//! any time; its conditions decide. Under v2 authority it is possible once the marker is there.

use metashift::layout::Layout;
use metashift::layout::records::plan::State as PlanState;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE};
use metashift::layout::transaction::{
    Action, Change, Condition, Role, Side, Transaction, Write, after_marker, dual_before_marker, v1_only,
};

use super::{Flaw, Protocol, Scope, State};
use crate::store::{Intent, Value, Who};

/// A mutation as the model follows it.
#[derive(Debug, Clone, Copy)]
pub struct Changed {
    /// The key's number.
    pub key: usize,
    /// Its value afterwards.
    pub new: Option<Value>,
    /// The guard's number and value.
    pub guard: Option<(usize, Value)>,
}

/// Every mutation of a scope.
#[derive(Debug, Clone, Default)]
pub struct Writes {
    all: Vec<(Intent, Changed)>,
    hand: Vec<Intent>,
}

impl Writes {
    pub(super) fn new(scope: &Scope, layout: &Layout, keys: &[&'static str], values: &[Value]) -> Self {
        let mut writes = Self::default();
        let states: Vec<Option<Value>> =
            std::iter::once(None).chain(values.iter().copied().map(Some)).collect();
        for (key, name) in keys.iter().enumerate() {
            for (from, to) in states.iter().flat_map(|from| states.iter().map(move |to| (*from, *to))) {
                if from == to {
                    continue;
                }
                let mut guards = vec![None];
                if scope.guards {
                    let others = (0..keys.len()).filter(|other| *other != key);
                    guards.extend(others.flat_map(|other| values.iter().map(move |v| Some((other, *v)))));
                }
                for guard in guards {
                    let change = Change {
                        guard: guard.map(|(other, value)| (keys[other], value.bytes())),
                        ..Change::new(name, from.map(Value::bytes), to.map(Value::bytes))
                    };
                    writes.add(scope, layout, &change, Changed { key, new: to, guard });
                }
            }
        }
        if scope.by_hand {
            let held = Condition::Equals(BARRIER_VALUE.to_vec());
            let action = Action::v1(BARRIER_KEY, Write::Delete, held, Role::Barrier);
            let transaction = Transaction { actions: vec![action] };
            writes.hand.push(Intent::of(Who::Hand, "a person removes the barrier by hand", transaction));
        }
        writes
    }

    fn add(&mut self, scope: &Scope, layout: &Layout, change: &Change<'_>, changed: Changed) {
        let value = |bytes: Option<&[u8]>| {
            bytes.map_or("nothing".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let mut what = format!("{} from {} to {}", change.key, value(change.expected), value(change.new));
        if let Some((key, bytes)) = change.guard {
            what = format!("{what} while {key} is {}", value(Some(bytes)));
        }
        let has = |flaw: Flaw| scope.flaw == Some(flaw);
        let mut add = |who: Who, node: &str, transaction: Transaction| {
            self.all.push((Intent::of(who, format!("{node} changes {what}"), transaction), changed));
        };
        // What the rows before the marker allow, a guard that v2 does not have yet, is no guard after it.
        let lenient_guard = |after: &mut Transaction| {
            for action in after.actions.iter_mut().filter(|action| action.role == Role::Guard) {
                action.condition = Condition::exactly_or_absent(change.guard.map(|(_, value)| value));
            }
        };
        if scope.dual {
            let mut before = dual_before_marker(layout, change);
            let mut after = after_marker(layout, change, true);
            if has(Flaw::DualIgnoresBarrier) {
                before.actions.retain(|action| action.role != Role::Barrier);
            }
            if has(Flaw::DeleteIgnoresV2) && change.new.is_none() {
                before.actions.retain(|action| action.side == Side::V1);
            }
            if has(Flaw::GuardLenient) {
                lenient_guard(&mut after);
            }
            add(Who::Dual, "a dual node", before);
            add(Who::Mirror, "a dual node that saw the marker", after);
        }
        let mut alone = v1_only(change);
        if has(Flaw::V1OnlyIgnoresBarrier) {
            alone.actions.retain(|action| action.role != Role::Barrier);
        }
        if scope.v1_only {
            add(Who::V1Only, "a v1-only node", alone.clone());
        }
        if scope.field {
            // What nodes of the field send: the same without a look at the barrier.
            alone.actions.retain(|action| action.role != Role::Barrier);
            add(Who::Field, "a field node", alone);
        }
        if scope.v2_only {
            let mut after = after_marker(layout, change, false);
            if has(Flaw::GuardLenient) {
                lenient_guard(&mut after);
            }
            add(Who::V2Only, "a v2-only node", after);
        }
    }

    /// What may arrive in a state.
    pub(super) fn possible<'a>(
        &'a self,
        protocol: &'a Protocol,
        state: &'a State,
    ) -> impl Iterator<Item = Intent> + 'a {
        let published = protocol.published(&state.tables);
        let early = protocol.has(Flaw::V2OnlyTooEarly);
        let writers = self.all.iter().map(|(intent, _)| *intent).filter(move |intent| match intent.who {
            Who::Mirror => published,
            Who::V2Only => (published && may_write_alone(protocol, state)) || early,
            Who::Field => !state.history.field_gone,
            _ => true,
        });
        let hand = !published && !state.history.by_hand;
        writers.chain(self.hand.iter().copied().filter(move |_| hand))
    }

    /// What nodes send that take v1 for the authority and know the barrier.
    pub(super) fn stale(&self) -> impl Iterator<Item = Intent> + '_ {
        let known = |intent: &Intent| matches!(intent.who, Who::Dual | Who::V1Only);
        self.all.iter().map(|(intent, _)| *intent).filter(known)
    }

    /// The change that a mutation makes.
    pub(super) fn change(&self, intent: Intent) -> Option<Changed> {
        if !intent.who.is_writer() {
            return None;
        }
        self.all.iter().find(|(one, _)| *one == intent).map(|(_, change)| *change)
    }
}

/// As a v2-only node opens: no plan of ours is short of final.
fn may_write_alone(protocol: &Protocol, state: &State) -> bool {
    let plan = state.tables.get(protocol.plan);
    plan.is_none_or(|plan| plan.plan().state == PlanState::Final) || protocol.has(Flaw::V2OnlyBeforeTakeover)
}
