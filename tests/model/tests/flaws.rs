//! The layout protocol with one guard missing: the checker finds what that guard is there for.

use metashift_model::explore::{steps, whole};
use metashift_model::layout::{
    ACKNOWLEDGED, BARRIER, CLOSED, COMMON, CURSOR, EPOCHS, Flaw, GUARDS, MARKER, Protocol, STALE, Scope,
};

fn caught(scope: Scope, flaw: Flaw, invariants: &[&'static str]) {
    let explored = whole(Protocol::new(scope.broken(flaw)), invariants, steps);
    println!("{flaw:?}: {} states", explored.states);
    for (name, path) in &explored.violated {
        println!("  {name}\n    {}", path.join("\n    "));
    }
    let names: Vec<_> = explored.violated.iter().map(|(name, _)| *name).collect();
    assert!(names.iter().any(|name| invariants.contains(name)), "{flaw:?}: {names:?}");
}

fn all() -> Scope {
    Scope { opened: true, ..Scope::one_key() }
}

#[test]
fn a_cursor_that_moves_before_the_copy_claims_what_has_not_converged() {
    caught(all(), Flaw::CursorBeforeData, &[CURSOR]);
}

#[test]
fn a_copy_without_its_cursor_arrives_after_the_marker() {
    caught(all(), Flaw::CursorAfterData, &[ACKNOWLEDGED, STALE, COMMON]);
}

#[test]
fn a_copy_without_a_check_of_v1_revives_a_deleted_key() {
    caught(all(), Flaw::NoV1Check, &[COMMON]);
}

#[test]
fn a_copy_that_overwrites_changes_a_present_value() {
    caught(Scope { values: 2, ..all() }, Flaw::CopyOverwrites, &[COMMON]);
}

#[test]
fn a_worker_of_an_old_generation_that_was_not_closed_revives_a_deleted_key() {
    caught(all(), Flaw::OldGenerationOpen, &[ACKNOWLEDGED, STALE, COMMON]);
}

#[test]
fn a_generation_start_that_does_not_check_the_plan_lets_old_work_in() {
    caught(Scope { epochs: 1, ..all() }, Flaw::GenerationStartUnchecked, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_repair_start_that_does_not_check_the_plan_lets_old_work_in() {
    caught(Scope { epochs: 1, ..all() }, Flaw::RepairStartUnchecked, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_repair_that_leaves_its_records_open_writes_after_the_marker() {
    caught(all(), Flaw::RepairLeftOpen, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_late_repair_write_that_is_not_fenced_changes_v2_after_the_marker() {
    caught(all(), Flaw::RepairUnfenced, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_publish_that_is_not_bound_to_its_epoch_publishes_what_was_not_verified() {
    caught(all(), Flaw::EpochUnbound, &[MARKER]);
}

#[test]
fn a_dual_mutation_that_ignores_the_barrier_commits_behind_it() {
    caught(all(), Flaw::DualIgnoresBarrier, &[BARRIER]);
}

#[test]
fn a_v1_only_mutation_that_ignores_the_barrier_commits_behind_it() {
    caught(all(), Flaw::V1OnlyIgnoresBarrier, &[BARRIER]);
}

#[test]
fn a_field_node_that_is_not_waited_for_commits_behind_the_barrier() {
    let scope = Scope { v1_only: false, field: true, ..all() };
    caught(scope, Flaw::RolloutUnchecked, &[BARRIER]);
}

#[test]
fn a_delete_that_leaves_the_copy_alone_makes_the_copies_differ() {
    caught(Scope { v1_only: false, ..all() }, Flaw::DeleteIgnoresV2, &[CLOSED]);
}

#[test]
fn a_publish_that_does_not_check_the_barrier_publishes_without_it() {
    caught(Scope { by_hand: true, ..all() }, Flaw::MarkerWithoutBarrier, &[MARKER]);
}

#[test]
fn a_publish_before_the_verification_is_whole_publishes_what_was_not_verified() {
    caught(all(), Flaw::VerificationIncomplete, &[MARKER]);
}

#[test]
fn a_publish_that_compares_totals_alone_publishes_a_stale_copy() {
    caught(Scope { values: 2, ..all() }, Flaw::TotalsAlone, &[MARKER]);
}

#[test]
fn an_epoch_that_is_used_again_begins_a_cutover_that_ended() {
    caught(all(), Flaw::EpochReused, &[EPOCHS]);
}

#[test]
fn a_v2_only_node_before_the_marker_writes_what_the_authority_does_not_return() {
    caught(all(), Flaw::V2OnlyTooEarly, &[ACKNOWLEDGED]);
}

#[test]
fn a_guard_that_may_be_absent_after_the_marker_does_not_guard() {
    let scope = Scope { guards: true, ..Scope::two_keys() };
    caught(scope, Flaw::GuardLenient, &[GUARDS]);
}

/// Another migrator publishes; ours takes the table over.
fn foreign() -> Scope {
    Scope { generations: 1, epochs: 1, repairs: 0, foreign: true, ..Scope::one_key() }
}

#[test]
fn a_plan_made_over_a_foreign_marker_revives_what_v2_only_nodes_deleted() {
    caught(foreign(), Flaw::OpeningUnchecked, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_takeover_that_leaves_a_segment_open_revives_a_deleted_key() {
    caught(foreign(), Flaw::TakeoverLeavesSegments, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_takeover_that_leaves_a_repair_open_lets_it_change_v2() {
    caught(
        Scope { repairs: 1, opened: true, ..foreign() },
        Flaw::TakeoverLeavesRepair,
        &[ACKNOWLEDGED, STALE],
    );
}

#[test]
fn a_v2_only_node_before_the_takeover_is_overwritten() {
    caught(foreign(), Flaw::V2OnlyBeforeTakeover, &[ACKNOWLEDGED, STALE]);
}

#[test]
fn a_late_install_of_an_ended_epoch_begins_a_cutover_that_nobody_wants() {
    caught(Scope { repairs: 0, generations: 1, ..all() }, Flaw::LateInstall, &[EPOCHS]);
}

#[test]
fn a_run_that_keeps_an_old_plan_publishes_what_it_did_not_compare() {
    let scope = Scope {
        segments: 2,
        then_segments: 1,
        generations: 2,
        v1_only: true,
        v2_only: false,
        ..Scope::two_keys()
    };
    caught(scope, Flaw::OldPlan, &[MARKER]);
}
