//! Nodes whose view of the authority is old, and nodes of both modes after the marker.

use std::sync::Arc;
use std::time::Duration;

use metashift::ErrorKind;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, MARKER_KEY};
use metashift::layout::store::AUTHORITY_REFRESH;
use metashift::layout::transaction::Side;
use metashift::layout::{Authority, MetaStore, Mode, Mutation};

use super::support::{Lake, ShiftedClock};

#[tokio::test]
async fn a_stale_dual_node_is_refused_by_the_barrier_finds_the_marker_and_succeeds_under_v2() {
    let lake = Lake::empty().await;
    let stale = lake.store(Mode::Dual).await;
    stale.cas("tbl/a", None, Some(b"1")).await.unwrap();
    stale.cas("lease", None, Some(b"held")).await.unwrap();
    lake.publish_audited().await;
    assert_eq!(stale.authority(), Authority::V1);
    assert_eq!(stale.cas("tbl/a", Some(b"1"), Some(b"2")).await.unwrap(), Mutation::Applied);
    assert_eq!(stale.authority(), Authority::V2);
    for side in [Side::V1, Side::V2] {
        assert_eq!(lake.value(side, "tbl/a").await.as_deref(), Some(&b"2"[..]));
    }
    // Each other kind of mutation, by a node that is just as stale.
    for change in [(None, Some(&b"n"[..])), (Some(&b"2"[..]), None)] {
        lake.remove(Side::V1, MARKER_KEY).await;
        lake.remove(Side::V1, BARRIER_KEY).await;
        let stale = lake.store(Mode::Dual).await;
        lake.publish_audited().await;
        let key = if change.0.is_none() { "tbl/new" } else { "tbl/a" };
        let answer = stale.guarded_mutate(("lease", b"held"), key, change.0, change.1).await.unwrap();
        assert_eq!(answer, Mutation::Applied, "{key}");
        assert_eq!(lake.value(Side::V2, key).await.as_deref(), change.1);
    }
}

#[tokio::test]
async fn a_stale_dual_node_cannot_regress_a_newer_v2_value() {
    let lake = Lake::empty().await;
    let stale = lake.store(Mode::Dual).await;
    for key in ["tbl/updated", "tbl/deleted", "tbl/again"] {
        stale.cas(key, None, Some(b"old")).await.unwrap();
    }
    lake.publish_audited().await;
    // v2-only nodes go on; v1 still shows what the stale node knows.
    let newer = lake.store(Mode::V2Only).await;
    newer.cas("tbl/updated", Some(b"old"), Some(b"new")).await.unwrap();
    newer.delete("tbl/deleted", b"old").await.unwrap();
    newer.delete("tbl/again", b"old").await.unwrap();
    newer.cas("tbl/again", None, Some(b"new")).await.unwrap();
    newer.cas("tbl/created", None, Some(b"new")).await.unwrap();
    let new = || Some(b"new".to_vec());
    for (key, change, current) in [
        ("tbl/updated", (Some(&b"old"[..]), Some(&b"late"[..])), new()),
        ("tbl/updated", (Some(&b"old"[..]), None), new()),
        ("tbl/deleted", (Some(&b"old"[..]), Some(&b"late"[..])), None),
        ("tbl/again", (Some(&b"old"[..]), None), new()),
        ("tbl/created", (None, Some(&b"late"[..])), new()),
    ] {
        let stale = stale_again(&lake).await;
        let answer = stale.cas(key, change.0, change.1).await.unwrap();
        assert_eq!(answer, Mutation::Conflict { current: current.clone() }, "{key}");
        assert_eq!(lake.value(Side::V2, key).await, current, "{key}");
    }
}

/// A node that opened before the marker and has not looked since.
async fn stale_again(lake: &Lake) -> MetaStore {
    lake.remove(Side::V1, MARKER_KEY).await;
    lake.remove(Side::V1, BARRIER_KEY).await;
    let stale = lake.store(Mode::Dual).await;
    lake.publish_audited().await;
    assert_eq!(stale.authority(), Authority::V1);
    stale
}

#[tokio::test]
async fn a_node_that_sees_v1_reads_the_marker_again_after_thirty_seconds_and_never_goes_back() {
    let lake = Lake::empty().await;
    lake.put(Side::V1, "tbl/a", b"old").await;
    lake.put(Side::V2, "tbl/a", b"new").await;
    let clock = Arc::new(ShiftedClock::default());
    let store = MetaStore::open(lake.tables_at(&clock), Mode::Dual).await.unwrap();
    lake.publish_audited().await;
    assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"old"[..]));
    clock.advance(AUTHORITY_REFRESH);
    assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"new"[..]));
    lake.remove(Side::V1, MARKER_KEY).await;
    clock.advance(Duration::from_secs(3600));
    assert_eq!(store.get("tbl/a").await.unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(store.authority(), Authority::V2);
}

#[tokio::test]
async fn a_v1_only_node_stops_at_the_marker_and_a_v2_only_node_does_not_start_before_it() {
    let lake = Lake::empty().await;
    let early = MetaStore::open(lake.tables.clone(), Mode::V2Only).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::AuthorityChanged);
    let v1_only = lake.store(Mode::V1Only).await;
    v1_only.cas("tbl/a", None, Some(b"1")).await.unwrap();
    lake.publish_audited().await;
    let before = lake.everything().await;
    let late = v1_only.cas("tbl/a", Some(b"1"), Some(b"2")).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::AlreadyFinalized);
    let again = MetaStore::open(lake.tables.clone(), Mode::V1Only).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyFinalized);
    assert!(before == lake.everything().await);
}

#[tokio::test]
async fn a_marker_with_an_unknown_value_stops_every_node_and_changes_nothing() {
    let lake = Lake::empty().await;
    let stale = lake.store(Mode::Dual).await;
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    lake.put(Side::V1, MARKER_KEY, b"complete-v9").await;
    let before = lake.everything().await;
    let error = stale.cas("tbl/a", None, Some(b"1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    for mode in [Mode::Dual, Mode::V1Only, Mode::V2Only] {
        let error = MetaStore::open(lake.tables.clone(), mode).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{mode:?}");
    }
    assert!(before == lake.everything().await);
}

#[tokio::test]
async fn after_the_marker_v2_only_and_dual_nodes_write_the_same_keys_in_turn_and_v2_decides() {
    let lake = Lake::empty().await;
    let stale = lake.store(Mode::Dual).await;
    lake.publish_audited().await;
    let dual = lake.store(Mode::Dual).await;
    let v2_only = lake.store(Mode::V2Only).await;
    let nodes = [&v2_only, &dual, &v2_only, &stale];
    let keys: Vec<_> = (0..6).map(|n| format!("tbl/turn/{n}")).collect();
    let mut known: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
    for round in 0..24 {
        for (place, key) in keys.iter().enumerate() {
            let node = nodes[(round + place) % nodes.len()];
            let mirrors = (round + place) % 2 == 1;
            let value = format!("{round}-{place}").into_bytes();
            // A delete every fifth turn, where there is something to delete.
            let new = (round % 5 != 4 || known[place].is_none()).then_some(value);
            let answer = node.cas(key, known[place].as_deref(), new.as_deref()).await.unwrap();
            assert_eq!(answer, Mutation::Applied, "{key} in round {round}");
            known[place] = new;
            assert_eq!(lake.value(Side::V2, key).await, known[place]);
            if mirrors {
                assert_eq!(lake.value(Side::V1, key).await, known[place], "the mirror of {key}");
            }
            // What was replaced can never come back.
            let lost = dual.cas(key, Some(b"never"), Some(b"late")).await.unwrap();
            assert_eq!(lost, Mutation::Conflict { current: known[place].clone() });
        }
        let present = known.iter().flatten().count();
        for node in [&dual, &v2_only] {
            assert_eq!(node.list("tbl/turn/").await.unwrap().len(), present);
            assert!(node.prefix_page("tbl/", 10, None).await.unwrap().entries.len() <= 10);
        }
    }
    for node in [&dual, &v2_only] {
        let requests = node.usage().requests;
        assert!(requests.get("Query").is_some_and(|queries| *queries > 100), "{requests:?}");
        assert!(!requests.contains_key("Scan v1") && !requests.contains_key("Scan v2"), "{requests:?}");
    }
}
