//! Exploring a protocol, and counterexamples that can be read.

use std::fmt::Write as _;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path, UniformChooser};

use crate::layout::{Move, Protocol};

/// What an exploration found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps of the longest shortest way to a state.
    pub depth: usize,
    /// Violated invariants, each with the steps to it.
    pub violated: Vec<(&'static str, Vec<String>)>,
    /// Things that should be reachable and were not.
    pub unreached: Vec<&'static str>,
}

/// A path in words.
pub type Tell<M> = fn(&Path<<M as Model>::State, <M as Model>::Action>) -> Vec<String>;

/// Explores a model whole, breadth first, or until one of the invariants in `until` is violated.
pub fn whole<M>(model: M, until: &[&'static str], tell: Tell<M>) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: std::hash::Hash + Send + Sync + Clone + PartialEq + std::fmt::Debug,
    M::Action: Send + Sync + Clone + PartialEq + std::fmt::Debug,
{
    let finish = match until {
        [] => HasDiscoveries::AllFailures,
        until => HasDiscoveries::AnyOf(until.iter().copied().collect()),
    };
    let has_failure = model.properties().iter().any(|one| one.expectation.discovery_is_failure());
    assert!(has_failure, "a model without an invariant proves nothing");
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    explored(&checker, tell)
}

/// Walks at random from the start until about `states` states were seen.
pub fn walks(protocol: Protocol, seed: u64, states: usize) -> Explored {
    let checker = protocol
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(states)
        .spawn_simulation(seed, UniformChooser)
        .join();
    let mut found = explored(&checker, steps);
    found.states = checker.state_count();
    found
}

fn explored<M>(checker: &impl Checker<M>, tell: Tell<M>) -> Explored
where
    M: Model,
    M::State: std::hash::Hash + Clone + PartialEq + std::fmt::Debug,
    M::Action: Clone + PartialEq + std::fmt::Debug,
{
    let properties = checker.model().properties();
    let found = checker.discoveries();
    let always =
        |name: &str| properties.iter().any(|one| one.name == name && one.expectation == Expectation::Always);
    Explored {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        violated: found
            .iter()
            .filter(|(name, _)| always(name))
            .map(|(name, path)| (*name, tell(path)))
            .collect(),
        unreached: properties
            .iter()
            .filter(|one| one.expectation == Expectation::Sometimes && !found.contains_key(one.name))
            .map(|one| one.name)
            .collect(),
    }
}

/// The steps of a path; with each that was decided earlier, when.
pub fn steps(path: &Path<<Protocol as Model>::State, Move>) -> Vec<String> {
    let pairs: Vec<_> = path.clone().into_vec();
    let mut lines = Vec::new();
    for (index, (_, step)) in pairs.iter().enumerate() {
        let Some(step) = step else { continue };
        let mut line = format!("{:2}. {step:?}", index + 1);
        if let Move::Send(intent) = step {
            let decided = pairs.iter().position(|(state, _)| state.decided.contains(intent));
            match decided {
                Some(earlier) if earlier < index => {
                    let _ = write!(line, " (decided after step {earlier})");
                }
                _ => {}
            }
        }
        lines.push(line);
    }
    lines
}

/// The steps of a path of any model.
pub fn plain<S, A>(path: &Path<S, A>) -> Vec<String>
where
    S: Clone,
    A: Clone + std::fmt::Debug,
{
    let pairs = path.clone().into_vec();
    let actions = pairs.into_iter().filter_map(|(_, action)| action);
    actions.enumerate().map(|(index, action)| format!("{:2}. {action:?}", index + 1)).collect()
}
