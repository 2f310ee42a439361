//! Measures a catalog migration on a directory of this machine.
//!
//! `catalog_bench seed DIRECTORY TOMBSTONES` writes a store of format 8; `catalog_bench migrate DIRECTORY FORMAT
//! [SECONDS]` migrates it in one invocation of at most that many seconds (60) and prints time and peak memory.

use std::time::Duration;

use metashift::catalog::driver::{Request, run};
use metashift::catalog::location::{Location, make_directory};
use metashift::catalog::seed::{self, Seed};
use metashift::catalog::units::Registry;
use metashift::environment::{Environment, elapsed};
use metashift::step::Budget;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument =
        |place: usize| arguments.get(place).map(String::as_str).ok_or("see the source for its arguments");
    let environment = Environment::system();
    let url = format!("file://{}", argument(1)?);
    make_directory(&url)?;
    let location = Location::parse(&url).await?;
    let begun = environment.now();
    match argument(0)? {
        "seed" => {
            let tombstones = argument(2)?.parse()?;
            let seed =
                Seed { format: 8, schemas: 10, tables: 100, delete_files: 100, tombstones, name_bytes: 8 };
            seed::write(&location, seed, &Budget::unbounded(environment.clone())).await?;
        }
        "migrate" => {
            let seconds = argument(3).unwrap_or("60").parse()?;
            let budget = Budget::until(environment.clone(), begun + Duration::from_secs(seconds));
            let request = Request::to(argument(2)?.parse()?);
            let report =
                run(&location, &Registry::shipped(), &request, &environment, budget, &|_| {}).await?;
            println!("{report:?}");
        }
        other => return Err(format!("unknown command {other}").into()),
    }
    println!("{:.2} s, peak {}", elapsed(begun, environment.now()).as_secs_f64(), peak()?);
    Ok(())
}

/// Peak resident memory of this process, as the kernel says it.
fn peak() -> Result<String, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned()))
}
