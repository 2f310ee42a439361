use metashift_model::layout::{Protocol, Scope};
use stateright::{Checker, Model};
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let scope = Scope { generations: a[0], epochs: a[1] as u8, repairs: a[2] as u8, values: a[3] as usize, opened: a[4]==1, v1_only: a[5]==1, keys: a[6] as usize, legacy: a[7]==1, v2_only: a[8]==1, ..Scope::one_key() };
    let c = Protocol::new(scope).checker().timeout(std::time::Duration::from_secs(a[9])).spawn_bfs().join();
    println!("{a:?}: {} states, {} generated, depth {}", c.unique_state_count(), c.state_count(), c.max_depth());
    for (name, path) in c.discoveries() {
        println!("  {name}: {}", path.into_vec().len());
    }
}
