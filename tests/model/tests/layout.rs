//! The layout protocol on small scopes.

use metashift_model::layout::{Protocol, Scope};
use stateright::{Checker, Model};

#[test]
fn one_key_and_every_actor() {
    let checker = Protocol::new(Scope::one_key()).checker().spawn_bfs().join();
    println!("{} states, depth {}", checker.unique_state_count(), checker.max_depth());
    for (name, path) in checker.discoveries() {
        println!("{name}:");
        for (_, action) in path.into_vec() { if let Some(a) = action { println!("   {a:?}"); } }
    }
}
