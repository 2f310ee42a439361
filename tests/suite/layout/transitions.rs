//! The plan's states: what each allows, what each refuses, and what was decided on an earlier one and sent late.

use metashift::layout::cutover::{
    Evidence, Installed, Published, Released, Why, install_barrier, publish_marker, release_barrier,
};
use metashift::layout::generation::{PlanWish, begin_repair, finish_repair, open_plan};
use metashift::layout::records::plan::{Cutover, KEY, OnFailure, Plan, State};
use metashift::layout::records::segment::{Segment, State as SegmentState, Walk};
use metashift::layout::records::{self, BARRIER_KEY, BARRIER_VALUE, MARKER_KEY};
use metashift::layout::repair::repair_page;
use metashift::layout::transaction::Side;
use metashift::layout::verify::verify;
use metashift::layout::walk::SegmentInput;
use metashift::layout::{Layout, Tables};
use metashift::{ErrorKind, Result};
use metashift_faults::{Fault, Rule};

use super::support::{Lake, pages, start, tables_through};

const SEGMENTS: u32 = 2;
const STATES: [Option<State>; 7] = [
    None,
    Some(State::Opening),
    Some(State::Open),
    Some(State::Closing),
    Some(State::Repairing),
    Some(State::Finalizing),
    Some(State::Final),
];

/// A backfilled lake whose plan was brought into a state.
async fn in_state(state: Option<State>) -> Lake {
    let lake = Lake::with_items(10).await;
    lake.run(SEGMENTS).backfill().await.unwrap();
    let Some(state) = state else {
        lake.remove(Side::V1, KEY).await;
        return lake;
    };
    let cutover = Cutover {
        epoch: "e".to_owned(),
        installed_at: lake.tables.environment().now(),
        deadline: lake.tables.environment().now() + std::time::Duration::from_secs(600),
        on_failure: OnFailure::Release,
        owner: "local:test".to_owned(),
        digest_key: "k".to_owned(),
        verified: (state == State::Final).then_some(10),
    };
    let held = matches!(state, State::Finalizing | State::Final);
    let plan = Plan {
        state,
        repair_run: (state == State::Repairing).then(|| "r".to_owned()),
        cutover: held.then_some(cutover),
        ..Plan::first(Layout::default().fingerprint(), SEGMENTS)
    };
    lake.put(Side::V1, KEY, &records::encode(&plan).unwrap()).await;
    if held {
        lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    }
    if state == State::Final {
        lake.publish().await;
    }
    lake
}

/// What an action came to: the state after it, or why it was refused.
async fn outcome<T: std::fmt::Debug>(lake: &Lake, answer: Result<T>) -> Result<Option<State>, ErrorKind> {
    match answer {
        Ok(_) => Ok(lake.plan().await.map(|plan| plan.state)),
        Err(error) => {
            assert!(error.next_step().is_some(), "{error}");
            Err(error.kind())
        }
    }
}

/// Runs `act` in every state and compares; what is refused changes nothing.
async fn hold<F: AsyncFn(&Tables) -> Result<String>>(
    name: &str,
    expected: [Result<Option<State>, ErrorKind>; 7],
    act: F,
) {
    for (state, expected) in STATES.into_iter().zip(expected) {
        let lake = in_state(state).await;
        let before = lake.everything().await;
        let answer = act(&lake.tables).await;
        let found = outcome(&lake, answer).await;
        assert_eq!(found, expected, "{name} from {state:?}");
        if found.is_err() {
            assert!(
                before == lake.everything().await,
                "{name} from {state:?} was refused and changed something"
            );
        }
    }
}

use ErrorKind::{AlreadyFinalized, PlanMismatch, Superseded};

const OPEN: Result<Option<State>, ErrorKind> = Ok(Some(State::Open));
const REPAIRING: Result<Option<State>, ErrorKind> = Ok(Some(State::Repairing));
const FINALIZING: Result<Option<State>, ErrorKind> = Ok(Some(State::Finalizing));
const FINAL: Result<Option<State>, ErrorKind> = Ok(Some(State::Final));

fn wish(new_generation: bool) -> PlanWish {
    PlanWish { segments: Some(SEGMENTS), new_generation }
}

#[tokio::test]
async fn a_new_generation_starts_only_where_the_table_allows_it() {
    let expected = [OPEN, OPEN, OPEN, OPEN, Err(PlanMismatch), Err(Superseded), Err(AlreadyFinalized)];
    hold("new generation", expected, async |tables: &Tables| {
        open_plan(tables, wish(true)).await.map(|stored| format!("{stored:?}"))
    })
    .await;
    let lake = in_state(Some(State::Open)).await;
    let plan = open_plan(&lake.tables, wish(true)).await.unwrap().record;
    assert_eq!((plan.generation, plan.state), (1, State::Open));
    for segment in 0..SEGMENTS {
        let old = lake.segment(&Walk::Backfill { generation: 0 }, segment).await.unwrap();
        let new = lake.segment(&Walk::Backfill { generation: 1 }, segment).await.unwrap();
        assert_eq!((old.state, new), (SegmentState::Closed, Segment::of_walk(SEGMENTS, Some(1))));
    }
}

#[tokio::test]
async fn a_repair_begins_and_ends_only_where_the_table_allows_it() {
    let expected = [
        Err(PlanMismatch),
        Err(Superseded),
        REPAIRING,
        Err(Superseded),
        REPAIRING,
        Err(Superseded),
        Err(AlreadyFinalized),
    ];
    hold("begin repair", expected, async |tables: &Tables| {
        begin_repair(tables, "r").await.map(|answer| format!("{answer:?}"))
    })
    .await;
    let expected = [
        Err(PlanMismatch),
        Err(Superseded),
        OPEN,
        Err(Superseded),
        OPEN,
        Err(Superseded),
        Err(AlreadyFinalized),
    ];
    hold("finish repair", expected, async |tables: &Tables| {
        finish_repair(tables, "r").await.map(|()| String::new())
    })
    .await;
    let lake = in_state(Some(State::Repairing)).await;
    assert_eq!(finish_repair(&lake.tables, "another").await.unwrap_err().kind(), PlanMismatch);
    assert_eq!(begin_repair(&lake.tables, "another").await.unwrap().0, "r");
}

#[tokio::test]
async fn a_cutover_begins_only_from_open_and_goes_on_only_by_its_own_epoch() {
    let expected = |own: bool| {
        [
            Err(PlanMismatch),
            Err(Superseded),
            FINALIZING,
            Err(Superseded),
            Err(PlanMismatch),
            if own { FINALIZING } else { Err(Superseded) },
            FINAL,
        ]
    };
    for (epoch, own) in [("e", true), ("other", false)] {
        hold("install barrier", expected(own), async |tables: &Tables| {
            let installed = install_barrier(tables, &start(epoch)).await?;
            assert!(matches!(&installed, Installed::Published) || format!("{installed:?}").contains(epoch));
            Ok(String::new())
        })
        .await;
    }
}

#[tokio::test]
async fn verification_publish_and_release_need_the_epoch_that_holds_the_barrier() {
    let verifying = |epoch: &'static str| {
        async move |tables: &Tables| {
            let input = SegmentInput { segment: 0, segments: SEGMENTS, page_size: 100 };
            verify(tables, epoch, Side::V1, false, input, pages(10)).await.map(|output| format!("{output:?}"))
        }
    };
    let refused = [
        Err(PlanMismatch),
        Err(Superseded),
        Err(Superseded),
        Err(Superseded),
        Err(PlanMismatch),
        Err(Superseded),
        Err(AlreadyFinalized),
    ];
    let mut allowed = refused;
    allowed[5] = FINALIZING;
    hold("verify", allowed, verifying("e")).await;
    hold("verify under another epoch", refused, verifying("other")).await;
    let mut published = refused;
    published[5] = Err(PlanMismatch);
    published[6] = FINAL;
    hold("publish an unverified epoch", published, async |tables: &Tables| {
        publish_marker(tables, "e").await.map(|answer| format!("{answer:?}"))
    })
    .await;
    published[5] = Err(Superseded);
    hold("publish another epoch", published, async |tables: &Tables| {
        publish_marker(tables, "other").await.map(|answer| format!("{answer:?}"))
    })
    .await;
    for (epoch, released) in [(Some("e"), true), (None, true), (Some("other"), false)] {
        for state in STATES {
            let lake = in_state(state).await;
            let before = lake.everything().await;
            let answer = release_barrier(&lake.tables, epoch, Why::Abort).await.unwrap();
            match state {
                Some(State::Final) => assert_eq!(answer, Released::Published),
                Some(State::Finalizing) if released => {
                    assert!(matches!(answer, Released::Released(_)), "{answer:?}");
                    assert_eq!(lake.plan().await.unwrap().state, State::Open);
                    continue;
                }
                _ => assert_eq!(answer, Released::NotHeld, "{epoch:?} from {state:?}"),
            }
            // An epoch that holds no barrier is out of use from then on; that is in the plan and nowhere else.
            let cancels = state.is_some_and(|state| !matches!(state, State::Finalizing | State::Final));
            if let Some(epoch) = epoch.filter(|_| cancels) {
                let plan = lake.plan().await.unwrap();
                assert_eq!((Some(plan.state), plan.has_ended(epoch)), (state, true));
            } else {
                assert!(before == lake.everything().await, "{epoch:?} from {state:?}");
            }
        }
    }
}

/// Holds the next write of the plan that comes through the proxy.
fn hold_plan() -> Rule {
    Rule::new("plan", Fault::Hold).on("TransactWriteItems").mentioning("dynamo-prefix-v2/plan").times(1)
}

#[tokio::test]
async fn a_generation_start_and_a_repair_start_decided_before_a_finalization_are_refused_after_it() {
    for repair in [false, true] {
        let lake = in_state(Some(State::Open)).await;
        let proxy = lake.proxy().await;
        proxy.add(hold_plan());
        let behind = tables_through(&proxy);
        let late = tokio::spawn(async move {
            if repair {
                begin_repair(&behind, "late").await.map(|answer| format!("{answer:?}"))
            } else {
                open_plan(&behind, wish(true)).await.map(|answer| format!("{answer:?}"))
            }
        });
        proxy.reached("plan", 1).await;
        lake.run(SEGMENTS).finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
        let before = lake.everything().await;
        proxy.release("plan");
        assert_eq!(late.await.unwrap().unwrap_err().kind(), AlreadyFinalized, "repair: {repair}");
        assert!(before == lake.everything().await, "repair: {repair}");
        // And a publish again is the same success.
        assert_eq!(publish_marker(&lake.tables, "e1").await.unwrap(), Published::Marker { verified: 10 });
    }
}

#[tokio::test]
async fn a_publish_decided_before_another_one_finished_changes_nothing_after_it() {
    let lake = in_state(Some(State::Open)).await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    for side in [Side::V1, Side::V2] {
        for segment in 0..SEGMENTS {
            let input = SegmentInput { segment, segments: SEGMENTS, page_size: 100 };
            verify(&lake.tables, "e1", side, false, input, pages(10)).await.unwrap();
        }
    }
    let proxy = lake.proxy().await;
    proxy.add(hold_plan());
    let behind = tables_through(&proxy);
    let late = tokio::spawn(async move { publish_marker(&behind, "e1").await });
    proxy.reached("plan", 1).await;
    publish_marker(&lake.tables, "e1").await.unwrap();
    let before = lake.everything().await;
    proxy.release("plan");
    assert_eq!(late.await.unwrap().unwrap(), Published::Marker { verified: 10 });
    assert!(before == lake.everything().await);
    assert!(lake.value(Side::V1, MARKER_KEY).await.is_some());
}

#[tokio::test]
async fn a_barrier_decided_before_a_repair_or_a_new_generation_is_refused_after_it() {
    for repair in [false, true] {
        let lake = in_state(Some(State::Open)).await;
        let proxy = lake.proxy().await;
        proxy.add(hold_plan());
        let behind = tables_through(&proxy);
        let late = tokio::spawn(async move { install_barrier(&behind, &start("late")).await });
        proxy.reached("plan", 1).await;
        if repair {
            begin_repair(&lake.tables, "r").await.unwrap();
        } else {
            open_plan(&lake.tables, wish(true)).await.unwrap();
        }
        proxy.release("plan");
        // Under the new generation backfill is not done; under the repair the plan is not open.
        assert_eq!(late.await.unwrap().unwrap_err().kind(), PlanMismatch, "repair: {repair}");
        assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    }
}

#[tokio::test]
async fn a_write_of_a_repair_that_has_ended_is_refused_even_after_the_marker() {
    let lake = in_state(Some(State::Open)).await;
    let key = metashift_sandbox::seed::key(3);
    lake.put(Side::V2, &key, b"stale").await;
    let (run, _) = begin_repair(&lake.tables, "r").await.unwrap();
    let proxy = lake.proxy().await;
    proxy.add(Rule::new("mend", Fault::Hold).on("TransactWriteItems").table("lake_prefix_v2").times(1));
    let behind = tables_through(&proxy);
    let slow = tokio::spawn(async move {
        for segment in 0..SEGMENTS {
            let input = SegmentInput { segment, segments: SEGMENTS, page_size: 100 };
            repair_page(&behind, &run, Side::V1, input, pages(10)).await?;
        }
        Ok(())
    });
    proxy.reached("mend", 1).await;
    // Somebody else ends the repair and finalizes; then the copy changes again.
    lake.run(SEGMENTS).repair().await.unwrap();
    lake.run(SEGMENTS).finalize(&start("e1"), &Evidence::Acknowledged(true)).await.unwrap();
    lake.put(Side::V2, &key, b"stale").await;
    let before = lake.everything().await;
    proxy.release("mend");
    let ended: Result<()> = slow.await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), Superseded);
    assert!(before == lake.everything().await, "a repair wrote after the marker");
}
