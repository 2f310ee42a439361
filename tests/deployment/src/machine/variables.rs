//! What the expressions of a machine read, and that it is there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{State, fields, start, states};
use crate::{Findings, expression};

/// An expression of a state, where it stands, and whether a result or an error is at hand there.
pub(super) struct Placed<'a> {
    pub(super) at: String,
    pub(super) text: &'a str,
    pub(super) members: &'static [&'static str],
    pub(super) sibling: Option<(&'a str, BTreeSet<&'a str>)>,
}

fn collect<'a>(
    value: &'a Value,
    at: &str,
    members: &'static [&'static str],
    sibling: Option<(&'a str, BTreeSet<&'a str>)>,
    out: &mut Vec<Placed<'a>>,
) {
    match value {
        Value::String(string) => {
            if let Some(text) = expression::body(string) {
                out.push(Placed { at: at.to_owned(), text, members, sibling });
            } else if string.contains("{%") || string.contains("%}") {
                out.push(Placed { at: at.to_owned(), text: "'", members, sibling });
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, at, members, sibling.clone(), out)),
        Value::Object(object) => {
            object.values().for_each(|item| collect(item, at, members, sibling.clone(), out));
        }
        _ => {}
    }
}

const BEFORE: &[&str] = &["input", "context"];

const AFTER: &[&str] = &["input", "context", "result"];

const CAUGHT: &[&str] = &["input", "context", "errorOutput"];

pub(super) fn placed<'a>(state: &State<'a>) -> Vec<Placed<'a>> {
    let mut out = Vec::new();
    let has_result = matches!(state.kind(), "Task" | "Map" | "Pass");
    let after = if has_result { AFTER } else { BEFORE };
    let mut outcome = |value: &'a Value, at: &str, members: &'static [&'static str]| {
        let names: BTreeSet<&str> = fields(value, "Assign").map(|(name, _)| name).collect();
        for (name, assigned) in fields(value, "Assign") {
            let others = names.iter().copied().filter(|other| *other != name).collect();
            collect(assigned, &format!("{at}, Assign {name}"), members, Some((name, others)), &mut out);
        }
        if let Some(output) = value.get("Output") {
            collect(output, &format!("{at}, Output"), members, None, &mut out);
        }
    };
    outcome(state.body, state.name, after);
    for entry in state.list("Catch") {
        outcome(entry, &format!("{}, Catch", state.name), CAUGHT);
    }
    for entry in state.list("Choices") {
        outcome(entry, &format!("{}, Choices", state.name), BEFORE);
    }
    for field in ["Arguments", "Items", "ItemSelector", "Seconds", "Error", "Cause"] {
        if let Some(value) = state.body.get(field) {
            collect(value, &format!("{}, {field}", state.name), BEFORE, None, &mut out);
        }
    }
    for entry in state.list("Choices") {
        collect(
            entry.get("Condition").unwrap_or(&Value::Null),
            &format!("{}, Condition", state.name),
            BEFORE,
            None,
            &mut out,
        );
    }
    out
}

/// Variables that some path leaves unassigned before they are read, parts of `$states` that are not there,
/// expressions that Step Functions does not understand, and assignments that depend on the order within one Assign.
pub fn undefined_variables(machine: &Value) -> Findings {
    let all = states(machine);
    let universe: BTreeSet<&str> =
        all.iter().flat_map(|state| state.edges().into_iter().flat_map(|(_, names)| names)).collect();
    let universe: BTreeSet<&str> = universe
        .into_iter()
        .chain(all.iter().flat_map(|state| fields(state.body, "Assign").map(|(name, _)| name)))
        .collect();
    let mut known: BTreeMap<(Option<&str>, &str), BTreeSet<&str>> = BTreeMap::new();
    for state in &all {
        known.insert((state.map, state.name), universe.clone());
    }
    known.insert((None, start(machine, None)), BTreeSet::new());
    loop {
        let mut changed = false;
        for state in &all {
            let here = known.get(&(state.map, state.name)).cloned().unwrap_or_default();
            let mut flows: Vec<(Option<&str>, &str, BTreeSet<&str>)> = state
                .edges()
                .into_iter()
                .map(|(next, assigned)| (state.map, next, here.union(&assigned).copied().collect()))
                .collect();
            if state.kind() == "Map" {
                flows.push((Some(state.name), start(machine, Some(state.name)), here.clone()));
            }
            for (scope, next, flow) in flows {
                if let Some(entry) = known.get_mut(&(scope, next)) {
                    let met: BTreeSet<&str> = entry.intersection(&flow).copied().collect();
                    changed |= met.len() != entry.len();
                    *entry = met;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let mut found = Findings::new();
    for state in &all {
        let here = known.get(&(state.map, state.name)).cloned().unwrap_or_default();
        for expression in placed(state) {
            let uses = expression::read(expression.text);
            found.extend(uses.problems.iter().map(|problem| format!("{}: {problem}", expression.at)));
            for variable in &uses.variables {
                if !here.contains(variable.as_str()) {
                    found.push(format!("{}: ${variable} may be unassigned", expression.at));
                }
                if let Some((_, others)) = &expression.sibling
                    && others.contains(variable.as_str())
                {
                    found.push(format!(
                        "{}: ${variable} is assigned beside it and has its old value",
                        expression.at
                    ));
                }
            }
            for member in uses.states.iter().filter(|member| !expression.members.contains(&member.as_str())) {
                found.push(format!("{}: there is no $states.{member}", expression.at));
            }
        }
        if let Some(map) = state.map {
            let outer = known.get(&(None, map)).cloned().unwrap_or_default();
            let own = state.edges().into_iter().flat_map(|(_, names)| names).collect::<BTreeSet<_>>();
            found.extend(
                own.intersection(&outer)
                    .map(|name| format!("{}: ${name} hides the outer variable", state.name)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{PAGE, assert_caught, assert_clean, put, remove};
    use super::*;

    #[test]
    fn every_variable_is_assigned_on_every_path_before_it_is_read() {
        assert_clean(undefined_variables);
        assert_caught(
            undefined_variables,
            "/States/Start/Assign",
            remove("spent"),
            "$spent may be unassigned",
        );
        assert_caught(
            undefined_variables,
            "/States/BackfillBudget/Choices/0/Assign",
            remove("turnLimit"),
            "$turnLimit may be unassigned",
        );
        assert_caught(undefined_variables, &format!("{PAGE}/Assign"), remove("status"), "$status");
        let early = put(json!("{% $states.result.x %}"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            early,
            "no $states.result",
        );
        let caught = put(json!("{% $states.result.x %}"));
        assert_caught(
            undefined_variables,
            "/States/Preflight/Catch/0/Assign/failure/error",
            caught,
            "no $states.result",
        );
        let unbalanced = put(json!("{% $merge([$common %}"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            unbalanced,
            "not closed",
        );
        let unfinished = put(json!("{% $common"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            unfinished,
            "not closed",
        );
        let beside = put(json!("{% $turns * 8 %}"));
        assert_caught(undefined_variables, &format!("{PAGE}/Assign/used"), beside, "has its old value");
        let hidden = |value: &mut Value| value["spent"] = json!(0);
        assert_caught(undefined_variables, &format!("{PAGE}/Assign"), hidden, "hides the outer variable");
    }
}
