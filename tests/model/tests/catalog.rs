//! The catalog protocol, explored whole, and with one guard missing.

use metashift_model::catalog::{
    AS_UNINTERRUPTED, Authority, Catalog, Flaw, NO_HOLE, NO_PARTIAL, ONE_OF_THREE, REACHABLE, REFUSES,
};
use metashift_model::explore::{plain, whole};

fn holds(authority: Authority, pipeline: usize) {
    let explored = whole(Catalog { authority, pipeline, flaw: None }, &[], plain);
    println!("{authority:?}, pipeline {pipeline}: {} states, depth {}", explored.states, explored.depth);
    for (name, path) in &explored.violated {
        println!("  {name}\n    {}", path.join("\n    "));
    }
    assert_eq!(explored.violated, []);
    assert_eq!(explored.unreached, [""; 0]);
}

fn caught(authority: Authority, flaw: Flaw, invariants: &[&'static str]) {
    let explored = whole(Catalog { authority, pipeline: 3, flaw: Some(flaw) }, invariants, plain);
    println!("{flaw:?}: {} states", explored.states);
    for (name, path) in &explored.violated {
        println!("  {name}\n    {}", path.join("\n    "));
    }
    let names: Vec<_> = explored.violated.iter().map(|(name, _)| *name).collect();
    assert!(names.iter().any(|name| invariants.contains(name)), "{flaw:?}: {names:?}");
}

#[test]
fn two_migrators_a_committer_and_a_reader_with_batches_on_the_way() {
    holds(Authority::Native, 3);
}

#[test]
fn two_migrators_a_committer_and_a_reader_over_the_commit_log() {
    holds(Authority::CommitLog, 1);
}

#[test]
fn a_marker_that_leaves_head_is_missed_by_a_warm_reader() {
    caught(Authority::Native, Flaw::MarkerWithoutHead, &[REFUSES]);
}

#[test]
fn a_delete_before_its_put_loses_the_record_to_a_crash() {
    caught(Authority::Native, Flaw::DeleteBeforePut, &[REACHABLE]);
}

#[test]
fn a_cursor_ahead_of_its_data_leaves_a_record_behind() {
    caught(Authority::Native, Flaw::CursorBeforeData, &[ONE_OF_THREE]);
}

#[test]
fn a_finish_in_two_batches_is_none_of_the_three_states() {
    caught(Authority::Native, Flaw::FinishNotAtomic, &[ONE_OF_THREE]);
}

#[test]
fn a_reader_that_does_not_read_head_again_returns_a_hole() {
    caught(Authority::Native, Flaw::NoSecondHead, &[NO_HOLE]);
}

#[test]
fn batches_that_become_durable_out_of_order_leave_a_gap() {
    caught(Authority::Native, Flaw::OutOfOrder, &[ONE_OF_THREE]);
}

#[test]
fn a_process_that_is_not_fenced_writes_over_its_successor() {
    caught(Authority::Native, Flaw::Unfenced, &[ONE_OF_THREE, NO_PARTIAL]);
}

#[test]
fn a_committer_that_ignores_the_marker_commits_into_the_old_layout() {
    caught(Authority::Native, Flaw::CommitterIgnoresMarker, &[ONE_OF_THREE]);
}

#[test]
fn a_slot_that_can_be_overwritten_lets_a_commit_race_the_start() {
    caught(Authority::CommitLog, Flaw::SlotOverwritten, &[ONE_OF_THREE, AS_UNINTERRUPTED]);
}
