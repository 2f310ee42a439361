//! The layout protocol on small scopes, each explored whole.

use metashift_model::explore::{steps, whole};
use metashift_model::layout::{Protocol, Scope};

fn holds(name: &str, scope: Scope) {
    let explored = whole(Protocol::new(scope), false, steps);
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
