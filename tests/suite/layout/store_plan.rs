//! What a node makes of plan, barrier and another migrator's records when it opens.

use std::time::Duration;

use metashift::environment::Environment;
use metashift::layout::records::plan::{Plan, State};
use metashift::layout::records::{BARRIER_KEY, FOREIGN_CURSOR_KEY, MARKER_KEY, plan};
use metashift::layout::transaction::Side;
use metashift::layout::{Authority, Layout, MetaStore, Mode, Mutation, Tables};
use metashift::{Error, ErrorKind};
use metashift_faults::{Fault, Rule};

use super::support::{Lake, TABLE, tables_through};

/// A node that an operator started with another shard table, and one with another companion.
fn misfits(lake: &Lake) -> [Tables; 2] {
    let layout = Layout::from_json(br#"{"version":1,"default":9,"families":{}}"#).unwrap();
    [(None, layout), (Some("another_v2".to_owned()), Layout::default())].map(|(companion, layout)| {
        Tables::new(lake.client.clone(), TABLE, companion, layout, Environment::system())
    })
}

async fn refused(tables: &Tables, mode: Mode, kind: ErrorKind, next: &str) -> Error {
    let error = MetaStore::open(tables.metered(), mode).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{mode:?}: {error}");
    assert!(error.next_step().is_some_and(|step| step.contains(next)), "{mode:?}: {error}");
    error
}

#[tokio::test]
async fn a_node_whose_layout_or_companion_is_not_the_plans_says_so_before_the_marker_and_stops_at_it() {
    let lake = Lake::with_items(40).await;
    lake.run(2).backfill().await.unwrap();
    let [another_layout, another_companion] = misfits(&lake);
    let fits = lake.store(Mode::Dual).await;
    assert!(fits.warning().is_none());
    let node = MetaStore::open(another_layout.clone(), Mode::Dual).await.unwrap();
    let other = MetaStore::open(another_companion.clone(), Mode::Dual).await.unwrap();
    for (node, named) in [(&node, "layout"), (&other, "another_v2")] {
        let warning = node.warning().unwrap();
        assert_eq!(warning.kind(), ErrorKind::LayoutMismatch, "{warning}");
        assert!(warning.message().contains(named) && warning.next_step().is_some(), "{warning}");
    }
    // v1 decides, so it goes on.
    assert_eq!(node.authority(), Authority::V1);
    assert_eq!(node.cas("tbl/a", None, Some(b"1")).await.unwrap(), Mutation::Applied);
    assert_eq!(node.get("tbl/a").await.unwrap().as_deref(), Some(&b"1"[..]));

    lake.publish_audited().await;
    let before = lake.everything().await;
    // The next refused write finds the marker; what it knows then ends its reads of v1 too.
    let late = node.cas("tbl/b", None, Some(b"1")).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::LayoutMismatch, "{late}");
    for error in [
        node.get("tbl/a").await.unwrap_err(),
        node.list("tbl/").await.unwrap_err(),
        node.cas("tbl/a", Some(b"1"), None).await.unwrap_err(),
        node.refresh().await.unwrap_err(),
        other.refresh().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
    for tables in [&another_layout, &another_companion] {
        for mode in [Mode::Dual, Mode::V2Only] {
            refused(tables, mode, ErrorKind::LayoutMismatch, "plan's layout and companion").await;
        }
    }
    assert!(before == lake.everything().await);
    fits.refresh().await.unwrap();
    assert_eq!(fits.authority(), Authority::V2);
}

#[tokio::test]
async fn a_plan_or_a_barrier_that_a_node_cannot_read_is_said_before_the_marker_and_a_plan_stops_it_after() {
    let lake = Lake::empty().await;
    let newer = br#"{"version":99}"#;
    lake.put(Side::V1, plan::KEY, newer).await;
    let node = lake.store(Mode::Dual).await;
    assert_eq!(node.warning().unwrap().kind(), ErrorKind::NewerRecord);
    assert_eq!(node.cas("tbl/a", None, Some(b"1")).await.unwrap(), Mutation::Applied);

    // A barrier of another form holds writers whatever the plan says; reads go on.
    lake.remove(Side::V1, plan::KEY).await;
    lake.put(Side::V1, BARRIER_KEY, b"locked-v9").await;
    let held = lake.store(Mode::Dual).await;
    let warning = held.warning().unwrap();
    assert!(warning.kind() == ErrorKind::NewerRecord && warning.message().contains(BARRIER_KEY), "{warning}");
    let write = held.cas("tbl/a", Some(b"1"), None).await.unwrap_err();
    assert_eq!(write.kind(), ErrorKind::BarrierHeld);
    assert_eq!(held.get("tbl/a").await.unwrap().as_deref(), Some(&b"1"[..]));
    lake.remove(Side::V1, BARRIER_KEY).await;
    held.refresh().await.unwrap();
    assert!(held.warning().is_none());

    lake.publish().await;
    lake.put(Side::V1, plan::KEY, newer).await;
    for mode in [Mode::Dual, Mode::V2Only] {
        refused(&lake.tables, mode, ErrorKind::NewerRecord, "newer").await;
    }
    let stale = node.cas("tbl/b", None, Some(b"1")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::NewerRecord, "{stale}");
}

#[tokio::test]
async fn a_v2_only_node_opens_only_once_nothing_can_bring_back_what_it_deletes() {
    let lake = Lake::empty().await;
    let open = || async { MetaStore::open(lake.tables.metered(), Mode::V2Only).await.map(|_| ()) };
    refused(&lake.tables, Mode::V2Only, ErrorKind::AuthorityChanged, "dual mode").await;
    lake.publish().await;
    // Another migrator's marker: without a plan of ours, and beside one in every state but final.
    let takeover = "metashift layout run";
    refused(&lake.tables, Mode::V2Only, ErrorKind::ForeignLeftovers, takeover).await;
    let first = Plan::first(Layout::default().fingerprint(), 1);
    for state in
        [State::Opening, State::Open, State::Closing, State::Repairing, State::Finalizing, State::Takeover]
    {
        lake.put_plan(&Plan { state, ..first.clone() }).await;
        lake.stamp_audit().await;
        refused(&lake.tables, Mode::V2Only, ErrorKind::ForeignLeftovers, takeover).await;
    }
    // Final, not audited since.
    lake.put_plan(&Plan { state: State::Final, ..first }).await;
    refused(&lake.tables, Mode::V2Only, ErrorKind::RolloutNotReady, "metashift layout audit").await;
    lake.stamp_audit().await;
    open().await.unwrap();
    // Another migrator's backfill, which nothing of ours fences.
    lake.put(Side::V1, FOREIGN_CURSOR_KEY, b"tbl/a").await;
    refused(&lake.tables, Mode::V2Only, ErrorKind::ForeignLeftovers, "--discard-foreign-cursor").await;
    lake.remove(Side::V1, FOREIGN_CURSOR_KEY).await;
    open().await.unwrap();
    // None of it is asked of a dual node, which writes both tables.
    lake.put(Side::V1, FOREIGN_CURSOR_KEY, b"tbl/a").await;
    lake.remove(Side::V1, plan::KEY).await;
    assert_eq!(lake.store(Mode::Dual).await.authority(), Authority::V2);
}

#[tokio::test]
async fn a_node_reads_the_marker_before_the_plan_and_what_it_cannot_read_keeps_a_v2_only_node_out() {
    let lake = Lake::empty().await;
    lake.publish_audited().await;
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("read", Fault::Delay { millis: 0 }).on("GetItem").keeping());
    let tables = tables_through(&proxy).patient(Duration::from_millis(100));
    for mode in [Mode::Dual, Mode::V2Only] {
        MetaStore::open(tables.clone(), mode).await.unwrap();
    }
    let kept = proxy.kept("read");
    let place = |key: &str| {
        kept.iter().position(|read| String::from_utf8_lossy(&read.body).contains(&format!("\"{key}\"")))
    };
    assert_eq!(place(MARKER_KEY), Some(0));
    assert!(place(plan::KEY) > Some(0) && place(FOREIGN_CURSOR_KEY) > place(plan::KEY));
    proxy.clear();
    for key in [MARKER_KEY, plan::KEY, FOREIGN_CURSOR_KEY] {
        let quoted = format!("\"{key}\"");
        for (fault, kind) in [
            (Fault::DropBefore, ErrorKind::Unavailable),
            (Fault::Error { name: "AccessDeniedException".to_owned() }, ErrorKind::AccessDenied),
        ] {
            proxy.add(Rule::new("fault", fault).on("GetItem").mentioning(&quoted));
            let error = MetaStore::open(tables.clone(), Mode::V2Only).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{key}: {error}");
        }
        proxy.clear();
    }
}
