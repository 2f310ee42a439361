//! What the template gives its state machines: substitutions and time.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{at, object, referred, state_machine, text};
use crate::{Findings, machine};

/// Every `${…}` in a definition.
fn placeholders(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(string) => {
            found.extend(
                string.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())),
            );
        }
        Value::Array(list) => list.iter().for_each(|item| placeholders(item, found)),
        Value::Object(map) => map.values().for_each(|item| placeholders(item, found)),
        _ => {}
    }
}

/// Placeholders of a machine and the template's substitutions are the same set.
pub fn unmatched_substitutions(template: &Value, name: &str, definition: &Value) -> Findings {
    let properties = match state_machine(template, name) {
        Ok(properties) => properties,
        Err(problem) => return vec![problem],
    };
    let mut used = BTreeSet::new();
    placeholders(definition, &mut used);
    let given: BTreeSet<String> =
        object(properties, &["DefinitionSubstitutions"]).map(|(key, _)| key.to_owned()).collect();
    let missing = used.difference(&given).map(|key| format!("{name}: ${{{key}}} is substituted by nothing"));
    let idle = given.difference(&used).map(|key| format!("{name}: the substitution {key} is used nowhere"));
    missing.chain(idle).collect()
}

/// Every task that invokes a function waits longer than that function may run, and invokes what its name says.
pub fn short_timeouts(template: &Value, name: &str, definition: &Value) -> Findings {
    let properties = match state_machine(template, name) {
        Ok(properties) => properties,
        Err(problem) => return vec![problem],
    };
    let mut found = Findings::new();
    for state in machine::states(definition) {
        let Some(placeholder) = text(state.body, &["Arguments", "FunctionName"]).strip_prefix("${") else {
            continue;
        };
        let placeholder = placeholder.trim_end_matches('}');
        let function = referred(at(properties, &["DefinitionSubstitutions", placeholder]));
        if function.strip_suffix("Function") != placeholder.strip_suffix("Arn") {
            found.push(format!("{name}: {placeholder} stands for {function:?}"));
        }
        let own = at(template, &["Resources", function, "Properties", "Timeout"]).as_u64();
        let longest = own.or(at(template, &["Globals", "Function", "Timeout"]).as_u64()).unwrap_or(u64::MAX);
        if at(state.body, &["TimeoutSeconds"]).as_u64().is_none_or(|seconds| seconds <= longest) {
            found.push(format!("{name}: {} gives up before {function} does ({longest} s)", state.name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{LAYOUT, assert_machine_caught, assert_machines_clean, function, put, remove};
    use super::*;

    #[test]
    fn placeholders_and_substitutions_are_the_same() {
        assert_machines_clean(unmatched_substitutions);
        let substitutions = format!("{LAYOUT}/DefinitionSubstitutions");
        assert_machine_caught(
            unmatched_substitutions,
            &substitutions,
            remove("VerifyArn"),
            "${VerifyArn} is substituted by nothing",
        );
        let idle = |value: &mut Value| value["Spare"] = json!("x");
        assert_machine_caught(unmatched_substitutions, &substitutions, idle, "Spare is used nowhere");
        let uri = put(json!("statemachine/other.asl.json"));
        assert_machine_caught(
            unmatched_substitutions,
            &format!("{LAYOUT}/DefinitionUri"),
            uri,
            "no state machine is made",
        );
    }

    #[test]
    fn a_task_waits_longer_than_its_function_runs() {
        assert_machines_clean(short_timeouts);
        let slow = |value: &mut Value| value["Timeout"] = json!(600);
        assert_machine_caught(
            short_timeouts,
            &function("Verify"),
            slow,
            "VerifyPage gives up before VerifyFunction",
        );
        let other = put(json!({ "Fn::GetAtt": ["PreflightFunction", "Arn"] }));
        assert_machine_caught(
            short_timeouts,
            &format!("{LAYOUT}/DefinitionSubstitutions/VerifyArn"),
            other,
            "VerifyArn stands for",
        );
    }
}
