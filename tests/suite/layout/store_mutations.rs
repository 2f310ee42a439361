//! Every row of the mutation table, in both authorities and every mode, by the outcome table.

use metashift::ErrorKind;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE};
use metashift::layout::transaction::Side;
use metashift::layout::{Authority, MetaStore, Mode, Mutation};

use super::support::Lake;

const E: &[u8] = b"expected";
const N: &[u8] = b"new";
const X: &[u8] = b"other";
const G: &[u8] = b"held";
const KEY: &str = "tbl/ns/video";
const GUARD: &str = "lease";

type Value = Option<&'static [u8]>;

/// What a mutation answers, for a table of cases.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Answer {
    Applied,
    Conflict(Value),
    GuardLost,
    Fails(ErrorKind),
}

use Answer::{Applied, Conflict, Fails, GuardLost};

/// One row: both copies before, what is asked for, what is answered.
struct Row {
    v1: Value,
    v2: Value,
    change: (Value, Value),
    /// Both copies of the guard, where there is one.
    guard: Option<(Value, Value)>,
    answer: Answer,
}

const fn row(v1: Value, v2: Value, change: (Value, Value), answer: Answer) -> Row {
    Row { v1, v2, change, guard: None, answer }
}

const fn guarded(v1: Value, v2: Value, answer: Answer) -> Row {
    Row { v1: Some(E), v2: Some(E), change: (Some(E), Some(N)), guard: Some((v1, v2)), answer }
}

const CREATE: (Value, Value) = (None, Some(N));
const UPDATE: (Value, Value) = (Some(E), Some(N));
const DELETE: (Value, Value) = (Some(E), None);

async fn set(lake: &Lake, side: Side, key: &str, value: Value) {
    match value {
        Some(value) => lake.put(side, key, value).await,
        None => lake.remove(side, key).await,
    }
}

async fn ask(store: &MetaStore, row: &Row) -> Answer {
    let (expected, new) = row.change;
    let answer = match row.guard {
        Some(_) => store.guarded_mutate((GUARD, G), KEY, expected, new).await,
        None => match (expected, new) {
            (Some(expected), None) => store.delete(KEY, expected).await,
            _ => store.cas(KEY, expected, new).await,
        },
    };
    match answer {
        Ok(Mutation::Applied) => Applied,
        Ok(Mutation::GuardLost) => GuardLost,
        Ok(Mutation::Conflict { current }) => {
            let known = [E, N, X].into_iter().find(|value| Some(*value) == current.as_deref());
            assert_eq!(known.is_some(), current.is_some(), "{current:?}");
            Conflict(known)
        }
        Err(error) => {
            assert!(error.message().contains(KEY) || error.message().contains(GUARD), "{error}");
            Fails(error.kind())
        }
    }
}

/// Runs each row in both tables as they are then; `v1`, `v2` say whether an applied change is to be seen there.
async fn hold(lake: &Lake, store: &MetaStore, rows: &[Row], sees: (bool, bool)) {
    for (number, row) in rows.iter().enumerate() {
        set(lake, Side::V1, KEY, row.v1).await;
        set(lake, Side::V2, KEY, row.v2).await;
        let (guard_v1, guard_v2) = row.guard.unwrap_or((None, None));
        set(lake, Side::V1, GUARD, guard_v1).await;
        set(lake, Side::V2, GUARD, guard_v2).await;
        assert_eq!(ask(store, row).await, row.answer, "row {number}");
        let applied = row.answer == Applied;
        let after = |before: Value, sees: bool| {
            let value = if applied && sees { row.change.1 } else { before };
            value.map(<[u8]>::to_vec)
        };
        assert_eq!(lake.value(Side::V1, KEY).await, after(row.v1, sees.0), "row {number}: v1 afterwards");
        assert_eq!(lake.value(Side::V2, KEY).await, after(row.v2, sees.1), "row {number}: v2 afterwards");
        assert_eq!(lake.value(Side::V1, GUARD).await, guard_v1.map(<[u8]>::to_vec), "row {number}");
        assert_eq!(lake.value(Side::V2, GUARD).await, guard_v2.map(<[u8]>::to_vec), "row {number}");
    }
}

#[tokio::test]
async fn before_the_marker_a_dual_node_writes_both_copies_or_neither() {
    let lake = Lake::empty().await;
    let store = lake.store(Mode::Dual).await;
    let rows = [
        row(None, None, CREATE, Applied),
        row(Some(X), Some(X), CREATE, Conflict(Some(X))),
        row(Some(X), None, CREATE, Conflict(Some(X))),
        row(None, Some(X), CREATE, Fails(ErrorKind::Divergence)),
        row(Some(E), Some(E), UPDATE, Applied),
        row(Some(E), None, UPDATE, Applied),
        row(Some(X), Some(X), UPDATE, Conflict(Some(X))),
        row(Some(X), Some(E), UPDATE, Conflict(Some(X))),
        row(None, None, UPDATE, Conflict(None)),
        row(Some(E), Some(X), UPDATE, Fails(ErrorKind::Divergence)),
        row(Some(E), Some(E), DELETE, Applied),
        row(Some(E), None, DELETE, Applied),
        row(Some(X), Some(X), DELETE, Conflict(Some(X))),
        row(None, None, DELETE, Conflict(None)),
        row(Some(E), Some(X), DELETE, Fails(ErrorKind::Divergence)),
        guarded(Some(G), Some(G), Applied),
        guarded(Some(G), None, Applied),
        guarded(Some(X), Some(X), GuardLost),
        guarded(None, None, GuardLost),
        guarded(None, Some(G), GuardLost),
        guarded(Some(G), Some(X), Fails(ErrorKind::Divergence)),
    ];
    hold(&lake, &store, &rows, (true, true)).await;
    assert_eq!(store.authority(), Authority::V1);
}

#[tokio::test]
async fn before_the_marker_a_v1_only_node_writes_v1_alone() {
    let lake = Lake::empty().await;
    let store = lake.store(Mode::V1Only).await;
    let rows = [
        row(None, Some(X), CREATE, Applied),
        row(Some(X), None, CREATE, Conflict(Some(X))),
        row(Some(E), Some(X), UPDATE, Applied),
        row(Some(X), Some(E), UPDATE, Conflict(Some(X))),
        row(None, Some(E), UPDATE, Conflict(None)),
        row(Some(E), Some(E), DELETE, Applied),
        row(Some(X), Some(E), DELETE, Conflict(Some(X))),
        guarded(Some(G), Some(X), Applied),
        guarded(Some(X), Some(G), GuardLost),
    ];
    hold(&lake, &store, &rows, (true, false)).await;
}

fn rows_after_the_marker() -> Vec<Row> {
    vec![
        row(None, None, CREATE, Applied),
        row(Some(X), None, CREATE, Applied),
        row(None, Some(X), CREATE, Conflict(Some(X))),
        row(Some(E), Some(E), UPDATE, Applied),
        row(Some(X), Some(E), UPDATE, Applied),
        row(None, Some(E), UPDATE, Applied),
        row(Some(E), Some(X), UPDATE, Conflict(Some(X))),
        row(Some(E), None, UPDATE, Conflict(None)),
        row(Some(E), Some(E), DELETE, Applied),
        row(Some(X), Some(E), DELETE, Applied),
        row(None, Some(E), DELETE, Applied),
        row(Some(E), Some(X), DELETE, Conflict(Some(X))),
        row(Some(E), None, DELETE, Conflict(None)),
        guarded(Some(G), Some(G), Applied),
        guarded(Some(X), Some(G), Applied),
        guarded(Some(G), Some(X), GuardLost),
        guarded(Some(G), None, GuardLost),
    ]
}

#[tokio::test]
async fn after_the_marker_v2_decides_and_a_dual_node_heals_the_mirror() {
    let lake = Lake::empty().await;
    lake.publish_audited().await;
    let store = lake.store(Mode::Dual).await;
    assert_eq!(store.authority(), Authority::V2);
    hold(&lake, &store, &rows_after_the_marker(), (true, true)).await;
}

#[tokio::test]
async fn after_the_marker_a_v2_only_node_writes_v2_alone() {
    let lake = Lake::empty().await;
    lake.publish_audited().await;
    let store = lake.store(Mode::V2Only).await;
    hold(&lake, &store, &rows_after_the_marker(), (false, true)).await;
    assert!(!store.usage().requests.contains_key("Scan v1"));
}

#[tokio::test]
async fn while_the_barrier_stands_every_mutation_is_refused_as_paused_and_changes_nothing() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    for mode in [Mode::Dual, Mode::V1Only] {
        let store = lake.store(mode).await;
        let held = Fails(ErrorKind::BarrierHeld);
        let rows = [
            row(None, None, CREATE, held),
            row(Some(E), Some(E), UPDATE, held),
            row(Some(E), None, UPDATE, held),
            row(Some(E), Some(E), DELETE, held),
            guarded(Some(G), Some(G), held),
        ];
        hold(&lake, &store, &rows, (false, false)).await;
        lake.remove(Side::V1, BARRIER_KEY).await;
        hold(&lake, &store, &[row(Some(E), None, UPDATE, Applied)], (true, mode == Mode::Dual)).await;
        lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    }
}

#[tokio::test]
async fn a_change_that_is_none_and_a_guard_that_is_the_target_are_refused_before_anything_is_sent() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, KEY, E).await;
    let store = lake.store(Mode::Dual).await;
    let sent = store.usage().all_requests();
    let absent = store.cas(KEY, None, None).await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::InvalidInput);
    let same = store.guarded_mutate((KEY, E), KEY, Some(E), Some(N)).await.unwrap_err();
    assert_eq!(same.kind(), ErrorKind::InvalidInput);
    assert_eq!(store.usage().all_requests(), sent);
}

#[tokio::test]
async fn two_nodes_that_create_one_key_have_one_winner_and_the_loser_sees_its_value() {
    let lake = Lake::empty().await;
    let (one, two) = (lake.store(Mode::Dual).await, lake.store(Mode::Dual).await);
    for round in 0..20 {
        let key = format!("tbl/race/{round}");
        let (first, second) =
            futures::join!(one.cas(&key, None, Some(b"1")), two.cas(&key, None, Some(b"2")));
        let winner = match (first.unwrap(), second.unwrap()) {
            (Mutation::Applied, Mutation::Conflict { current }) => (b"1".to_vec(), current),
            (Mutation::Conflict { current }, Mutation::Applied) => (b"2".to_vec(), current),
            both => panic!("{key}: {both:?}"),
        };
        assert_eq!(winner.1.as_ref(), Some(&winner.0));
        assert_eq!(lake.value(Side::V1, &key).await.as_ref(), Some(&winner.0));
        assert_eq!(lake.value(Side::V2, &key).await.as_ref(), Some(&winner.0));
    }
}
