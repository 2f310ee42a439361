//! What a verification decides.

use super::{
    Action, Condition, Flaw, Intent, Mismatch, MismatchKind, PlanState, Protocol, Question, Record, Role,
    SegmentState, Side, State, Who, Write, answer, cutover_of, done, encode, fresh, movable, moved_on, one,
    position, record, records, segment_number, verify_records,
};

/// As `verify::Compare` under the barrier: by counting into a digest, or exactly, by a read of the other table.
pub(super) fn verifiers(protocol: &Protocol, state: &State, decided: &mut Vec<Intent>) {
    let tables = &state.tables;
    let Some(stored) = tables.get(protocol.plan) else { return };
    if stored.plan().state != PlanState::Finalizing {
        return;
    }
    let cutover = stored.plan().cutover.as_ref().unwrap();
    if cutover_of(stored.plan(), &cutover.epoch).is_err() {
        return;
    }
    // As `verify::check_segments`: as many as the plan has; not what a run remembers.
    let plan = stored.plan();
    let segments = if protocol.has(Flaw::OldPlan) { protocol.scope.segments } else { plan.segments };
    for (bit, item) in verify_records(&cutover.epoch, segments) {
        let side = if bit.trailing_zeros() % 2 == 0 { Side::V1 } else { Side::V2 };
        let Some(value) = tables.get(item) else {
            decided.extend(answer(Question::Under(item, stored, segments), || {
                let open = encode(&fresh(segments, plan.generation)).unwrap();
                let held = Condition::Equals(stored.bytes().to_vec());
                let actions = vec![
                    Action::record(item.key(), None, Write::Put(open)),
                    Action::v1(records::plan::KEY, Write::Check, held, Role::Record),
                ];
                one(Who::Verifier, format!("{item:?} is begun"), actions)
            }));
            continue;
        };
        if value.segment().state != SegmentState::Open {
            continue;
        }
        let from = protocol.position(value);
        let there = (from..protocol.keys.len()).find(|key| {
            let (v1, v2) = protocol.copies(tables, *key);
            let own = if side == Side::V1 { v1 } else { v2 };
            Protocol::segment_of(*key, value.segment().total) == segment_number(item) && own.is_some()
        });
        let Some(key) = there else {
            decided.extend(done(Who::Verifier, item, value));
            continue;
        };
        let (v1, v2) = protocol.copies(tables, key);
        let compared = value.segment().exact;
        let (v1, v2) = match side {
            _ if compared => (v1, v2),
            Side::V1 => (v1, None),
            Side::V2 => (None, v2),
        };
        decided.extend(answer(Question::Verify(item, value, key, side, v1, v2), || {
            let mut next = value.segment().clone();
            let old = record(protocol, key, Side::V1, v1);
            let new = record(protocol, key, Side::V2, v2);
            let different = match side {
                Side::V2 if !compared => None,
                Side::V1 if !compared => old.as_ref().and_then(|v1| unmovable(protocol, v1)),
                _ => difference(protocol, old.as_ref(), new.as_ref()),
            };
            next.cursor = Some(position(protocol, key, side));
            if different.is_none() || side == Side::V1 {
                next.scanned += 1;
                let own = if side == Side::V1 { &old } else { &new };
                let value = own.as_ref().and_then(Record::value).unwrap_or_default();
                next.digest.add(&cutover.digest_key, protocol.keys[key], value);
            }
            match different {
                None => next.already_live += 1,
                Some(kind) => next.add_mismatch(Mismatch { key: protocol.keys[key].to_owned(), kind }),
            }
            let label = format!("{item:?} looks at {}", protocol.keys[key]);
            moved_on(Who::Verifier, label, item, value, &next)
        }));
    }
}

/// As `verify::difference`.
fn difference(protocol: &Protocol, v1: Option<&Record>, v2: Option<&Record>) -> Option<MismatchKind> {
    match (v1, v2) {
        (None, None) => None,
        (None, Some(_)) => Some(MismatchKind::Extra),
        (Some(v1), v2) => unmovable(protocol, v1).or_else(|| match v2 {
            None => Some(MismatchKind::Missing),
            Some(v2) => (v1.value() != v2.value()).then_some(MismatchKind::WrongValue),
        }),
    }
}

fn unmovable(protocol: &Protocol, v1: &Record) -> Option<MismatchKind> {
    movable(&protocol.layout, v1).err().map(|_| MismatchKind::UnsupportedItem)
}
