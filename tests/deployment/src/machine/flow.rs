//! Where the states of a machine lead, and that the barrier never stays behind.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{State, start, states, text};
use crate::Findings;

/// States that do not exist, are reached by nothing, end nowhere, or share a name.
pub fn broken_transitions(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for state in &all {
        *count.entry(state.name).or_default() += 1;
    }
    found.extend(
        count.iter().filter(|(_, n)| **n > 1).map(|(name, _)| format!("two states are called {name}")),
    );
    let scopes: BTreeSet<Option<&str>> = all.iter().map(|state| state.map).collect();
    for scope in scopes {
        let members: BTreeMap<&str, State<'_>> =
            all.iter().filter(|state| state.map == scope).map(|state| (state.name, *state)).collect();
        let mut reached = BTreeSet::new();
        let mut open = vec![start(machine, scope)];
        while let Some(name) = open.pop() {
            if !reached.insert(name) {
                continue;
            }
            match members.get(name) {
                Some(state) => open.extend(state.edges().into_iter().map(|(next, _)| next)),
                None => found.push(format!("{name:?} is no state of {}", scope.unwrap_or("the machine"))),
            }
        }
        for (name, state) in &members {
            if !reached.contains(name) {
                found.push(format!("{name} is reached by nothing"));
            }
            let ends = state.body.get("End") == Some(&Value::Bool(true))
                || matches!(state.kind(), "Succeed" | "Fail");
            if ends != state.edges().is_empty() && state.kind() != "Map" && state.kind() != "Task"
                || !ends && state.edges().is_empty()
            {
                found.push(format!("{name} has to end or to go on"));
            }
        }
    }
    found
}

/// From install-barrier on no end is reached but through release-barrier, the read checks after the marker, or a
/// hand-over; and nothing installs a barrier before its watchdog was started.
pub fn unreleased_barrier(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let invoking = |step: &str| -> BTreeSet<&str> {
        all.iter()
            .filter(|state| {
                state.body.pointer("/Arguments/FunctionName").and_then(Value::as_str) == Some(step)
            })
            .map(|state| state.map.unwrap_or(state.name))
            .collect()
    };
    let installing = invoking("${InstallBarrierArn}");
    if installing.is_empty() {
        return found;
    }
    let safe: BTreeSet<&str> = invoking("${ReleaseBarrierArn}")
        .into_iter()
        .chain(invoking("${VerifyPrefixReadsArn}"))
        .chain(["HandedOver"])
        .collect();
    for state in &all {
        for (next, _) in state.edges().into_iter().filter(|(next, _)| installing.contains(next)) {
            let watched = |name: &str| {
                text(machine.pointer(&format!("/States/{name}")).unwrap_or(&Value::Null), "Resource")
                    .ends_with(":states:startExecution")
            };
            let caught = all.iter().any(|other| {
                watched(other.name)
                    && other.list("Catch").iter().any(|entry| text(entry, "Next") == state.name)
            });
            if !watched(state.name) && !caught {
                found.push(format!("{} reaches {next} without a watchdog", state.name));
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = installing.iter().copied().collect();
    while let Some(name) = open.pop() {
        if safe.contains(name) || !seen.insert(name) {
            continue;
        }
        for state in all.iter().filter(|state| state.map.is_none() && state.name == name) {
            let next = state.edges();
            if next.is_empty() {
                found.push(format!("{name} ends a run whose barrier may stand"));
            }
            open.extend(next.into_iter().map(|(next, _)| next));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{assert_caught, assert_clean, put, remove};
    use super::*;

    #[test]
    fn every_state_exists_is_reached_and_ends_or_goes_on() {
        assert_clean(broken_transitions);
        assert_caught(
            broken_transitions,
            "/States/FinishRepair/Next",
            put(json!("Nowhere")),
            "\"Nowhere\" is no state",
        );
        assert_caught(
            broken_transitions,
            "/States/Planned/Choices/0/Next",
            put(json!("Paused")),
            "PlanReported is reached by nothing",
        );
        assert_caught(broken_transitions, "/States/Done", remove("End"), "Done has to end");
        let inner = "/States/Backfill/ItemProcessor/States/BackfillWait/Next";
        assert_caught(broken_transitions, inner, put(json!("Done")), "\"Done\" is no state of Backfill");
        let twin = |value: &mut Value| {
            value["Done"] = json!({ "Type": "Pass", "End": true });
        };
        assert_caught(
            broken_transitions,
            "/States/Backfill/ItemProcessor/States",
            twin,
            "two states are called Done",
        );
    }

    #[test]
    fn no_run_ends_with_its_barrier_standing() {
        assert_clean(unreleased_barrier);
        assert_caught(
            unreleased_barrier,
            "/States/Verify/Catch/0/Next",
            put(json!("Failed")),
            "Failed ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/InstallBarrier/Catch/0/Next",
            put(json!("Failed")),
            "Failed ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/Verified/Choices/1/Next",
            put(json!("Paused")),
            "Paused ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/CheckRollout/Next",
            put(json!("InstallBarrier")),
            "CheckRollout reaches InstallBarrier",
        );
    }
}
