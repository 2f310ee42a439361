//! `metashift layout rollback-plan`: what is safe from here, by the durable state.

use clap::Args;
use metashift::Result;
use metashift::layout::records::plan::State;
use metashift::layout::status::Overview;
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct RollbackPlanArgs {
    #[command(flatten)]
    tables: TableArgs,
}

pub(crate) async fn run(args: RollbackPlanArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    super::release_expired(&tables, output).await?;
    let overview = Overview::load(&tables).await?;
    let state = overview.plan.as_ref().map(|plan| plan.state);
    let (safe, steps) = advice(state, overview.leftovers.marker, overview.leftovers.barrier);
    output.emit(&json!({ "phase": overview.phase(), "v1OnlyIsSafe": safe, "steps": steps }));
    output.say(format!(
        "phase: {}; a rollback to v1-only nodes is {}",
        overview.phase(),
        if safe { "safe" } else { "NOT safe" }
    ));
    for (number, step) in (1..).zip(&steps) {
        output.say(format!("  {number}. {step}"));
    }
    Ok(())
}

/// Whether nodes may go back to v1 alone, and what to do in which order.
fn advice(state: Option<State>, marker: bool, barrier: bool) -> (bool, Vec<&'static str>) {
    if marker || state == Some(State::Final) {
        return (
            false,
            vec![
                "roll back only to a dual-capable binary: v2 is the authority, for good",
                "dual nodes go on mirroring v1 in the same transaction: metashift layout audit shows that it is equal",
                "an old v1-only binary would write where nobody reads; ours refuses to start in that mode",
            ],
        );
    }
    match state {
        Some(State::Finalizing) => (
            true,
            vec![
                "metashift layout abort                      # takes the barrier away; refused once the marker is there",
                "metashift layout rollback-plan              # look again: a publish may have won",
                "roll the nodes back to v1-only",
            ],
        ),
        _ if barrier => (
            false,
            vec![
                "another migrator has installed a write barrier, and may publish its marker at any time",
                "make sure that migrator is dead",
                "metashift layout abort --adopt-foreign-barrier   # removes its barrier",
                "metashift layout rollback-plan                   # look again",
            ],
        ),
        None => (true, vec!["nothing was migrated yet: roll the nodes back as you like"]),
        Some(_) => (
            true,
            vec![
                "metashift layout pause                      # if a run is at work",
                "roll the nodes back to v1-only; nothing else is needed",
                "later, with dual nodes again: metashift layout resume   # a paused repair would only wait",
                "metashift layout repair --local --dry-run   # lists what would change",
                "metashift layout repair --local             # v2 follows v1 where they differ",
                "metashift layout run --local --new-generation",
            ],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_marker_v1_only_is_never_safe() {
        for state in [None, Some(State::Open), Some(State::Final), Some(State::Finalizing)] {
            assert!(!advice(state, true, true).0, "{state:?}");
        }
        assert!(!advice(Some(State::Final), false, true).0);
        assert!(!advice(None, false, true).0);
        assert!(!advice(Some(State::Open), false, true).0);
    }

    #[test]
    fn nothing_is_to_be_done_while_the_pause_stands() {
        let (_, steps) = advice(Some(State::Open), false, false);
        let at = |what: &str| steps.iter().position(|step| step.contains(what)).unwrap();
        assert!(at("layout pause") < at("layout resume") && at("layout resume") < at("layout repair"));
        assert!(at("layout repair") < at("layout run"));
    }

    #[test]
    fn before_the_marker_it_is_and_a_cutover_is_aborted_first() {
        let (safe, steps) = advice(Some(State::Finalizing), false, true);
        assert!(safe && steps.first().is_some_and(|step| step.contains("abort")));
        assert!(advice(Some(State::Open), false, false).0);
        assert!(advice(None, false, false).0);
    }
}
