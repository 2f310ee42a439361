//! The layout protocol on small scopes, each explored whole.

use std::collections::HashSet;

use metashift_model::explore::{steps, walks, whole};
use metashift_model::layout::{Protocol, Scope};
use stateright::Model;

fn holds(name: &str, scope: Scope) {
    let explored = whole(Protocol::new(scope), &[], steps);
    println!("{name}: {} states, depth {}", explored.states, explored.depth);
    for (name, path) in &explored.violated {
        println!("  {name}\n    {}", path.join("\n    "));
    }
    assert_eq!(explored.violated, []);
    assert_eq!(explored.unreached, [""; 0]);
}

#[test]
fn one_key_with_every_actor_two_generations_two_cutovers_and_a_repair() {
    holds("one key", Scope::one_key());
}

#[test]
fn one_key_with_nodes_of_the_field_until_the_rollout_check() {
    holds("field", Scope { field: true, ..Scope::one_key() });
}

#[test]
fn one_key_whose_barrier_a_person_removes() {
    holds("by hand", Scope { by_hand: true, ..Scope::one_key() });
}

#[test]
fn one_key_whose_marker_another_migrator_publishes() {
    let scope = Scope { foreign: true, generations: 1, epochs: 1, repairs: 0, ..Scope::one_key() };
    holds("foreign", scope.clone());
    holds("foreign, a repair", Scope { repairs: 1, opened: true, epochs: 0, ..scope });
}

#[test]
fn one_key_whose_cutovers_are_cancelled_and_asked_for_again() {
    let scope = Scope { forgets_names: true, opened: true, repairs: 0, generations: 1, ..Scope::one_key() };
    holds("late requests", scope);
}

#[test]
fn two_keys_behind_one_moving_cursor_with_one_writer() {
    holds("two keys", Scope::two_keys());
}

#[test]
fn two_keys_with_guarded_mutations() {
    holds("two keys, guards", Scope { guards: true, ..Scope::two_keys() });
}

#[test]
fn two_keys_of_one_page_with_a_rolled_back_node() {
    holds("two keys, one page", Scope { page: 2, v1_only: true, ..Scope::two_keys() });
}

#[test]
fn two_keys_in_two_segments_with_a_rolled_back_node() {
    holds("two segments", Scope { segments: 2, v1_only: true, ..Scope::two_keys() });
}

#[test]
#[allow(clippy::mutable_key_type, reason = "what is decoded once is no part of a value's identity")]
fn every_actor_commits_something_and_every_kind_of_step_is_taken() {
    let protocol = Protocol::new(Scope::one_key());
    let mut todo = protocol.init_states();
    let mut seen: HashSet<_> = todo.iter().cloned().collect();
    let mut taken = HashSet::new();
    while let Some(state) = todo.pop() {
        let mut moves = Vec::new();
        protocol.actions(&state, &mut moves);
        for step in moves {
            taken.insert(format!("{step:?}"));
            if let Some(next) = protocol.next_state(&state, step)
                && seen.insert(next.clone())
            {
                todo.push(next);
            }
        }
    }
    for words in [
        &["a plan is made"][..],
        &["backfill", "copies"],
        &["backfill", "passes"],
        &["backfill", "only the new table has it"],
        &["recheck", "anew"],
        &["repair/r0/v1", "makes v2 follow", "None to Some(a)"],
        &["repair/r0/v2", "makes v2 follow", "Some(a) to None"],
        &["verify/e1", "looks at"],
        &["verified again, exactly"],
        &["cutover e1 is released"],
        &["the marker is published for e1"],
        &["backfill/1/0", "copies"],
        &["a dual node changes"],
        &["a dual node that saw the marker"],
        &["a v1-only node"],
        &["a v2-only node"],
    ] {
        let all = |step: &String| words.iter().all(|word| step.contains(word));
        assert!(taken.iter().any(all), "{words:?} is never taken");
    }
}

/// With `METASHIFT_MODEL_LARGE` set also those that take minutes.
#[test]
fn larger_scopes_explored_whole() {
    let all = Scope { guards: true, v1_only: true, ..Scope::two_keys() };
    holds("two keys, rolled-back node, guards", all.clone());
    holds("two keys, two cutovers", Scope { epochs: 2, ..all.clone() });
    holds("two keys, two generations", Scope { generations: 2, ..all });
    if std::env::var_os("METASHIFT_MODEL_LARGE").is_none() {
        return;
    }
    let foreign = Scope { foreign: true, generations: 1, epochs: 1, ..Scope::one_key() };
    holds("foreign, a cutover, a repair", foreign);
    let other = Scope { segments: 2, then_segments: 1, generations: 2, v1_only: true, ..Scope::two_keys() };
    holds("two keys, two segments, then one", other);
    holds("one key, two values", Scope { values: 2, epochs: 1, generations: 1, ..Scope::one_key() });
    let unreduced = Scope { unreduced: true, opened: true, repairs: 0, ..Scope::one_key() };
    holds("one key, one generation, unreduced", Scope { generations: 1, ..unreduced.clone() });
    holds("one key, one cutover, unreduced", Scope { epochs: 1, ..unreduced });
}

/// `METASHIFT_MODEL_SEED` and `METASHIFT_MODEL_STATES` say where a walk begins and how far it goes.
#[test]
fn random_walks_over_three_keys_and_every_actor() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    let seed = number("METASHIFT_MODEL_SEED", 20_260_101);
    let states = usize::try_from(number("METASHIFT_MODEL_STATES", 30_000)).unwrap();
    println!("METASHIFT_MODEL_SEED={seed}");
    let scope = Scope {
        keys: 3,
        values: 2,
        segments: 2,
        page: 2,
        epochs: 3,
        repairs: 2,
        guards: true,
        legacy: true,
        opened: true,
        ..Scope::one_key()
    };
    let explored = walks(Protocol::new(scope), seed, states);
    println!("random walks: {} states, depth {}", explored.states, explored.depth);
    assert_eq!(explored.violated, []);
}
