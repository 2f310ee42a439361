//! How many events an execution's history takes at most, and how many bytes its state.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{State, fields, number, start, states, text};
use crate::{Findings, expression};

/// Most segments of a plan, and so most iterations of a map over segments.
pub const MOST_SEGMENTS: u64 = 256;

/// Events that an execution's history may hold: the service ends an execution that exceeds them.
pub const MOST_EVENTS: u64 = 25_000;

/// Most bytes of state that the project allows itself (the service allows 256 KiB).
pub const MOST_STATE: usize = 32_768;

/// Most events that one visit of a state adds to the history, all retries used.
fn events(state: &State<'_>) -> u64 {
    let retries: u64 = state.list("Retry").iter().filter_map(|retrier| number(retrier, "MaxAttempts")).sum();
    match state.kind() {
        "Task" => 2 + 3 * (1 + retries),
        "Map" => 4,
        "Fail" => 1,
        _ => 2,
    }
}

/// Every loop is bounded, and what a whole execution may spend stays under the history's limit even if every
/// attempt of every task fails as often as its retries allow.
pub fn event_budget(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let entry = machine.pointer(&format!("/States/{}", start(machine, None))).unwrap_or(&Value::Null);
    let limit = |name: &str| entry.pointer(&format!("/Assign/limits/{name}")).and_then(Value::as_u64);
    let outer: Vec<_> = all.iter().filter(|state| state.map.is_none()).copied().collect();
    let twice: u64 = outer.iter().map(|state| 2 * events(state)).sum();
    let looping: Vec<_> = outer.iter().filter(|state| returns_to(state, &outer)).collect();
    for state in &looping {
        let cycle: Vec<_> = looping
            .iter()
            .filter(|other| reaches(state, other.name, &outer) && reaches(other, state.name, &outer))
            .collect();
        let conditions: Vec<&str> = cycle
            .iter()
            .flat_map(|state| state.list("Choices").iter().map(|rule| text(rule, "Condition")))
            .collect();
        let turn: u64 = cycle.iter().map(|state| events(state)).sum();
        let counted = conditions
            .iter()
            .filter_map(|condition| condition.split_once("$asked >= "))
            .find_map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
        let spent =
            conditions.iter().any(|condition| condition.contains("$used + $limits.turn > $limits.events"));
        let once = conditions.iter().any(|condition| condition.contains("$phase = "));
        match counted {
            Some(turns) if turns * turn > 20_000 => {
                found.push(format!("{}: {turns} turns of {turn} events", state.name));
            }
            Some(_) => {}
            None if spent && limit("turn").is_none_or(|most| turn > most) => {
                found.push(format!(
                    "{}: a turn may take {turn} events, limits.turn says {:?}",
                    state.name,
                    limit("turn")
                ));
            }
            None if spent || once => {}
            None => found.push(format!("{} is in a loop without a bound", state.name)),
        }
    }
    let maps: Vec<_> = outer.iter().filter(|state| state.kind() == "Map").collect();
    if maps.is_empty() && limit("events").is_none() {
        return found;
    }
    let (Some(most), Some(turn), Some(iteration)) = (limit("events"), limit("turn"), limit("iteration"))
    else {
        found.push("the first state assigns no limits".to_owned());
        return found;
    };
    if most > 20_000 || most + twice > MOST_EVENTS {
        found.push(format!("{most} events in maps and {twice} outside exceed the limits"));
    }
    for map in maps {
        let inner: Vec<_> = all.iter().filter(|state| state.map == Some(map.name)).collect();
        let waits = inner.iter().filter(|state| state.kind() == "Wait").count() as u64;
        let worst: u64 = inner
            .iter()
            .map(|state| match state.kind() {
                "Task" | "Wait" => events(state),
                "Choice" => events(state) * (1 + waits),
                _ => 0,
            })
            .sum();
        let around: u64 =
            2 + inner.iter().filter(|state| state.kind() == "Pass").map(|state| events(state)).sum::<u64>();
        if worst > turn || around > iteration {
            found.push(format!(
                "{}: a turn may take {worst} and an iteration {around} events more than the limits say",
                map.name
            ));
        }
        let iterations = match text(map.body, "Items") {
            "{% [0..$plan.segments - 1] %}" => MOST_SEGMENTS,
            "{% [0..2 * $plan.segments - 1] %}" => 2 * MOST_SEGMENTS,
            other => {
                found.push(format!("{}: no bound is known for {other}", map.name));
                continue;
            }
        };
        if iterations * (turn + iteration) > most {
            found.push(format!(
                "{}: a fresh execution has no room for one turn of each of {iterations} iterations",
                map.name
            ));
        }
        let stops = inner.iter().flat_map(|state| state.list("Choices")).any(|rule| {
            let condition = text(rule, "Condition");
            condition.contains("$turns >= $turnLimit")
                && condition.contains("$used + $limits.turn > $allowance")
        });
        let counts = inner.iter().filter(|state| state.kind() == "Task").all(|state| {
            state
                .body
                .pointer("/Assign/used")
                .and_then(Value::as_str)
                .is_some_and(|used| used.contains("3 * $states.context.State.RetryCount"))
        });
        if !stops || !counts {
            found.push(format!("{}: its turns do not stop at what they have spent", map.name));
        }
        let before: Vec<_> =
            outer.iter().filter(|state| state.edges().iter().any(|(next, _)| *next == map.name)).collect();
        let gated = matches!(before.as_slice(), [gate] if gate.list("Choices").iter().any(|rule|
            text(rule, "Condition").contains("$limits.events - $spent >=") && fields(rule, "Assign").any(|(name, _)| name == "allowance")
                && fields(rule, "Assign").any(|(name, _)| name == "turnLimit")));
        if !gated {
            found.push(format!("{} is entered without asking for room", map.name));
        }
    }
    found
}

fn reaches(from: &State<'_>, target: &str, among: &[State<'_>]) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = from.edges().into_iter().map(|(next, _)| next).collect();
    while let Some(name) = open.pop() {
        if name == target {
            return true;
        }
        if seen.insert(name) {
            open.extend(
                among
                    .iter()
                    .filter(|state| state.name == name)
                    .flat_map(|state| state.edges().into_iter().map(|(next, _)| next)),
            );
        }
    }
    false
}

fn returns_to(state: &State<'_>, among: &[State<'_>]) -> bool {
    reaches(state, state.name, among)
}

/// The list of a map's results stays under the state's limit with the most iterations and the largest numbers.
pub fn large_results(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    for map in all.iter().filter(|state| state.kind() == "Map") {
        let iterations =
            if text(map.body, "Items").contains("2 *") { 2 * MOST_SEGMENTS } else { MOST_SEGMENTS };
        for report in
            all.iter().filter(|state| state.map == Some(map.name) && state.body.get("End").is_some())
        {
            let Some(output) = report.body.get("Output").and_then(Value::as_object) else {
                found.push(format!("{} returns its whole input", report.name));
                continue;
            };
            let each: usize = output
                .iter()
                .map(|(name, value)| {
                    let digits = match (name.as_str(), value.as_str().and_then(expression::body)) {
                        ("status", _) => 10,
                        ("events", _) => 5,
                        (_, Some(text)) if text.starts_with("$counts.") => 12,
                        _ => MOST_STATE,
                    };
                    name.len() + 4 + digits
                })
                .sum();
            let bytes = usize::try_from(iterations).unwrap_or(usize::MAX).saturating_mul(each + 2);
            if bytes > MOST_STATE {
                found.push(format!("{}: {iterations} results may take {bytes} bytes", map.name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{PAGE, assert_caught, assert_clean, put, remove};
    use super::*;
    use crate::project::machine;

    #[test]
    fn an_execution_stays_under_the_events_it_may_have() {
        assert_clean(event_budget);
        let limits = "/States/Start/Assign/limits";
        assert_caught(event_budget, &format!("{limits}/events"), put(json!(19_000)), "no room for one turn");
        assert_caught(event_budget, &format!("{limits}/events"), put(json!(24_000)), "exceed the limits");
        assert_caught(event_budget, &format!("{limits}/turn"), put(json!(31)), "a turn may take 32");
        assert_caught(
            event_budget,
            &format!("{PAGE}/Retry/0/MaxAttempts"),
            put(json!(4)),
            "a turn may take 35",
        );
        assert_caught(
            event_budget,
            &format!("{PAGE}/Assign/used"),
            put(json!("{% $used + 7 %}")),
            "do not stop",
        );
        assert_caught(
            event_budget,
            "/States/Backfill/ItemProcessor/States/BackfillTurn/Choices",
            put(json!([])),
            "do not stop",
        );
        assert_caught(
            event_budget,
            "/States/Rehearsed/Default",
            put(json!("Verify")),
            "without asking for room",
        );
        assert_caught(
            event_budget,
            "/States/Repair/Items",
            put(json!("{% [0..9999] %}")),
            "no bound is known",
        );
        assert_caught(
            event_budget,
            "/States/Rehearsed/Default",
            put(json!("RehearseBudget")),
            "in a loop without a bound",
        );
        assert_caught(event_budget, "/States/Start/Assign", remove("limits"), "assigns no limits");
        for (name, pointer, change, wanted) in [
            (
                "cutover-watchdog",
                "/States/AskAgain/Choices/0/Condition",
                json!("{% $asked >= 800 %}"),
                "800 turns",
            ),
            ("cutover-watchdog", "/States/AskAgain/Choices", json!([]), "without a bound"),
            ("catalog-format", "/States/Start/Assign/limits/turn", json!(20), "limits.turn says Some(20)"),
            (
                "catalog-format",
                "/States/Migrated/Choices/4/Condition",
                json!("{% $turns > 9 %}"),
                "without a bound",
            ),
        ] {
            let mut broken = machine(name).unwrap();
            *broken.pointer_mut(pointer).unwrap() = change;
            let found = event_budget(&broken);
            assert!(found.iter().any(|finding| finding.contains(wanted)), "{wanted}: {found:?}");
        }
    }

    #[test]
    fn the_results_of_a_map_stay_small() {
        assert_clean(large_results);
        let report = "/States/Verify/ItemProcessor/States/VerifyReport";
        assert_caught(large_results, report, remove("Output"), "whole input");
        let more = |value: &mut Value| value["lastKey"] = json!("{% $states.input.lastKey %}");
        assert_caught(large_results, &format!("{report}/Output"), more, "512 results may take");
    }
}
