//! What backfill and its recheck decide.

use super::{
    Action, Condition, Flaw, Group, Intent, Item, Judgement, Page, Position, Protocol, Question,
    RejectReason, Segment, SegmentState, Side, State, Tables, Value, Verdict, Who, Write, all_copies, answer,
    copy, encode, first, keeps_nothing_exact, moved_on, one, put, record, reject, reject_of, segment_number,
    settled,
};

/// The items of one scan of v1 behind a position.
fn scan(protocol: &Protocol, tables: &Tables, item: Item, from: usize) -> Page {
    let segment = segment_number(item);
    let segments = tables.get(item).map_or(1, |value| value.segment().total);
    let mut items: Vec<_> = (from..protocol.keys.len())
        .filter(|key| Protocol::segment_of(*key, segments) == segment)
        .filter_map(|key| protocol.copies(tables, key).0.map(|value| (key, value)))
        .collect();
    let end = items.len() < protocol.scope.page;
    items.truncate(protocol.scope.page);
    Page { record: item, from, items, end }
}

/// As `walk::Walker::run` with `backfill`'s visitor: pages are read ahead of the writes, judged, and committed with
/// the cursor; keys that moved are judged again.
pub(super) fn backfill(
    protocol: &Protocol,
    state: &mut State,
    item: Item,
    value: Value,
    decided: &mut Vec<Intent>,
) {
    let segment = value.segment();
    if segment.state == SegmentState::Closed {
        return;
    }
    let generation: u64 = item.key().rsplit('/').nth(1).unwrap().parse().unwrap();
    if generation >= state.history.opened {
        return;
    }
    if segment.state == SegmentState::Done {
        recheck(protocol, state, item, value, generation, decided);
        return;
    }
    // Whoever reads this page reads the next one before it is written.
    let mut from = protocol.position(value);
    let cursor = from;
    loop {
        let page = scan(protocol, &state.tables, item, from);
        let next = page.items.last().map(|(key, _)| key + 1);
        let (end, full) = (page.end, !page.items.is_empty());
        if !state.pages.contains(&page) {
            state.pages.push(page);
        }
        if end && full {
            // The scan has ended; its worker looks no further.
            let after = Page { record: item, from: next.unwrap(), items: Vec::new(), end: true };
            if !state.pages.contains(&after) {
                state.pages.push(after);
            }
        }
        match next {
            Some(next) if !end => from = next,
            _ => break,
        }
    }
    for page in state.pages.iter().filter(|page| page.record == item && !page.items.is_empty()) {
        let judge = |again: bool| -> Vec<(usize, Judgement)> {
            page.items
                .iter()
                .map(|(key, scanned)| {
                    let (v1, v2) = protocol.copies(&state.tables, *key);
                    let v1 = record(protocol, *key, Side::V1, v1);
                    let v2 = record(protocol, *key, Side::V2, v2);
                    let name = protocol.keys[*key];
                    let settle = || settled(&protocol.layout, name, v1.as_ref(), v2.as_ref());
                    let verdict = if again {
                        settle()
                    } else {
                        let seen = record(protocol, *key, Side::V1, Some(*scanned)).unwrap();
                        match first(&protocol.layout, &seen, v2.as_ref()) {
                            Verdict::Differs => settle(),
                            verdict => verdict,
                        }
                    };
                    (*key, Judgement::of(verdict))
                })
                .collect()
        };
        for verdicts in [judge(false), judge(true)] {
            let group = Group { record: item, from: page.from, verdicts };
            if keeps_nothing_exact(protocol) && page.from != cursor && all_copies(&group) {
                continue;
            }
            if !state.groups.contains(&group) {
                state.groups.push(group);
            }
        }
    }
    for group in state.groups.iter().filter(|group| group.record == item && group.from == cursor) {
        let question = Question::Group(item, value, group.verdicts.clone(), protocol.scope.flaw);
        decided.extend(answer(question, || commit_group(protocol, item, value, generation, &group.verdicts)));
    }
    if keeps_nothing_exact(protocol) {
        state.groups.retain(|group| group.record != item || !all_copies(group));
    }
    let ended = |page: &Page| page.record == item && page.from == cursor && page.end && page.items.is_empty();
    if state.pages.iter().any(ended) && !recheck(protocol, state, item, value, generation, decided) {
        decided.extend(answer(Question::Record("done", item, value, 0), || {
            let mut done = segment.clone();
            done.state = SegmentState::Done;
            done.cursor = None;
            done.rechecked = 0;
            moved_on(Who::Backfill, format!("backfill of {item:?} is done"), item, value, &done)
        }));
    }
}

/// As `backfill::Backfill::actions` and `walk::Walker::commit`.
fn commit_group(
    protocol: &Protocol,
    item: Item,
    value: Value,
    generation: u64,
    verdicts: &[(usize, Judgement)],
) -> Vec<Intent> {
    let mut next = value.segment().clone();
    let mut actions = Vec::new();
    let mut recorded = next.rejects_recorded;
    let mut what = Vec::new();
    for (key, judgement) in verdicts {
        let name = protocol.keys[*key];
        match judgement.1 {
            Verdict::Copy(bytes) => {
                let [check, mut put] = copy(&protocol.layout, name, bytes);
                if protocol.has(Flaw::CopyOverwrites) {
                    put.condition = Condition::None;
                }
                if !protocol.has(Flaw::NoV1Check) {
                    actions.push(check);
                }
                actions.push(put);
                what.push(format!("copies {name} = {}", String::from_utf8_lossy(bytes)));
            }
            Verdict::Reject(reject) => {
                let key = reject::key(generation, segment_number(item), recorded);
                actions.push(Action::record(&key, None, Write::Put(encode(reject).unwrap())));
                recorded += 1;
                what.push(format!("records {name}: {}", reject.detail));
            }
            _ => what.push(format!("passes {name}")),
        }
        judgement.1.count(name, &mut next);
    }
    let last = protocol.keys[verdicts.last().unwrap().0];
    next.cursor = Some(Position { bucket: None, pk: last.to_owned() });
    let what = format!("backfill of {item:?} {}", what.join(", "));
    let cursor = Action::record(item.key(), Some(value.bytes()), put(&next));
    match protocol.scope.flaw {
        Some(Flaw::CursorBeforeData | Flaw::CursorAfterData) if !actions.is_empty() => {
            let mut intents = one(Who::Backfill, format!("{what}, without its cursor"), actions);
            if protocol.has(Flaw::CursorBeforeData) {
                intents.extend(one(Who::Backfill, format!("{what}: its cursor, first"), vec![cursor]));
            }
            intents
        }
        _ => {
            actions.push(cursor);
            one(Who::Backfill, what, actions)
        }
    }
}

/// As `backfill::recheck`: each recorded reject is judged again; true while some are still to be looked at.
fn recheck(
    protocol: &Protocol,
    state: &State,
    item: Item,
    value: Value,
    generation: u64,
    decided: &mut Vec<Intent>,
) -> bool {
    let segment = value.segment();
    if segment.rejected + segment.diverged == 0 || segment.rechecked >= segment.rejects_recorded {
        if segment.state == SegmentState::Done && segment.rechecked > 0 {
            decided.extend(answer(Question::Record("rechecked", item, value, 0), || {
                let next = Segment { rechecked: 0, ..segment.clone() };
                moved_on(Who::Recheck, format!("the recheck of {item:?} ends"), item, value, &next)
            }));
        }
        return false;
    }
    for n in segment.rechecked..segment.rejects_recorded {
        let place = Item::v1(&reject::key(generation, segment_number(item), n));
        let Some(stored) = state.tables.get(place) else { continue };
        let old = reject_of(stored);
        let key = protocol.key_index(&old.key);
        let (v1, v2) = protocol.copies(&state.tables, key);
        let v1 = record(protocol, key, Side::V1, v1);
        let v2 = record(protocol, key, Side::V2, v2);
        let verdict = settled(&protocol.layout, &old.key, v1.as_ref(), v2.as_ref());
        if matches!(&verdict, Verdict::Reject(new) if *new == old) {
            continue;
        }
        let judgement = Judgement::of(verdict.clone());
        decided.extend(answer(Question::Recheck(item, value, place, stored, judgement), || {
            let mut next = segment.clone();
            let mut actions = Vec::new();
            match &verdict {
                Verdict::Reject(new) => {
                    let write = Write::Put(encode(new).unwrap());
                    actions.push(Action::record(place.key(), Some(stored.bytes()), write));
                }
                Verdict::Copy(bytes) => {
                    actions.extend(copy(&protocol.layout, &old.key, bytes));
                    actions.push(Action::record(place.key(), Some(stored.bytes()), Write::Delete));
                }
                _ => actions.push(Action::record(place.key(), Some(stored.bytes()), Write::Delete)),
            }
            if old.reason == RejectReason::Diverged {
                next.diverged = next.diverged.saturating_sub(1);
            } else {
                next.rejected = next.rejected.saturating_sub(1);
            }
            match &verdict {
                Verdict::Copy(_) => next.copied += 1,
                Verdict::AlreadyLive(_) => next.already_live += 1,
                Verdict::Reject(new) if new.reason == RejectReason::Diverged => next.diverged += 1,
                Verdict::Reject(_) => next.rejected += 1,
                _ => {}
            }
            let write = put(&next);
            actions.push(Action::record(item.key(), Some(value.bytes()), write));
            one(Who::Recheck, format!("the recheck of {item:?} judges {} anew", old.key), actions)
        }));
    }
    decided.extend(answer(Question::Record("recheck", item, value, 0), || {
        let next = Segment { rechecked: segment.rejects_recorded, ..segment.clone() };
        moved_on(Who::Recheck, format!("the recheck of {item:?} goes on"), item, value, &next)
    }));
    true
}
