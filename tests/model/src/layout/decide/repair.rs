//! What a repair decides.

use super::{
    Action, Flaw, Intent, Item, Protocol, Question, SegmentState, Side, State, Value, Walk, Who, answer,
    done, follow, moved_on, one, position, put,
};

pub(super) fn repair_records(run: &str, segments: u32) -> impl Iterator<Item = (Side, u32, Item)> + '_ {
    [Side::V1, Side::V2].into_iter().flat_map(move |side| {
        (0..segments).map(move |segment| {
            (side, segment, Item::v1(&Walk::Repair { run: run.to_owned(), side }.key(segment)))
        })
    })
}

/// As `repair::Repair`: one differing key at a time, on exactly what both copies held at one moment.
pub(super) fn repairs(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    for run in 0..state.history.repairs {
        let most = protocol.scope.segments.max(protocol.scope.then_segments);
        for (side, segment, item) in repair_records(&format!("r{run}"), most) {
            let Some(value) = state.tables.get(item) else { continue };
            if value.segment().state != SegmentState::Open {
                continue;
            }
            let from = protocol.position(value);
            let there = (from..protocol.keys.len()).find(|key| {
                let (v1, v2) = protocol.copies(&state.tables, *key);
                let own = if side == Side::V1 { v1 } else { v2 };
                Protocol::segment_of(*key, value.segment().total) == segment && own.is_some()
            });
            let Some(key) = there else {
                decided.extend(done(Who::Repair, item, value));
                continue;
            };
            let (v1, v2) = protocol.copies(&state.tables, key);
            let question = Question::Repair(item, value, key, v1, v2, protocol.scope.flaw);
            decided.extend(answer(question, || {
                let mut next = value.segment().clone();
                next.scanned += 1;
                next.cursor = Some(position(protocol, key, side));
                let name = protocol.keys[key];
                if v1 == v2 {
                    return moved_on(Who::Repair, format!("{item:?} passes {name}"), item, value, &next);
                }
                next.copied += 1;
                let (wanted, stale) = (v1.map(Value::bytes), v2.map(Value::bytes));
                let mut actions = follow(&protocol.layout, name, wanted, stale).to_vec();
                let write = put(&next);
                if !protocol.has(Flaw::RepairUnfenced) {
                    actions.push(Action::record(item.key(), Some(value.bytes()), write));
                }
                let label = format!("{item:?} makes v2 follow v1 for {name}: {v2:?} to {v1:?}");
                one(Who::Repair, label, actions)
            }));
        }
    }
}
