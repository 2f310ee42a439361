//! What functions and machines may do, against what their steps call.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{at, functions, items, referred, several, state_machine, step, substituted, text};
use crate::calls::Target;
use crate::{Findings, calls, machine};

fn leading_keys_only(statement: &Value) -> bool {
    at(statement, &["Condition", "ForAllValues:StringLike", "dynamodb:LeadingKeys"])
        == &serde_json::json!(["__lake_internal/dynamo-prefix-v2*"])
        && text(statement, &["Condition", "Null", "dynamodb:LeadingKeys"]) == "false"
}

fn target(statement: &Value, resource: &Value) -> Option<Target> {
    match resource {
        Value::String(star) if star == "*" => Some(Target::Metrics),
        _ if resource.get("Fn::If").is_some() => {
            let branches = items(resource, &["Fn::If"]);
            branches
                .iter()
                .skip(1)
                .all(|branch| substituted(branch).ends_with("/*"))
                .then_some(Target::Objects)
        }
        _ => match substituted(resource).rsplit_once([':', '/'])?.1 {
            "${TableName}" if leading_keys_only(statement) => Some(Target::V1Internal),
            "${TableName}" => Some(Target::V1),
            "${Companion}" => Some(Target::V2),
            "${CatalogBucket}" => Some(Target::Bucket),
            _ => None,
        },
    }
}

fn statements(properties: &Value) -> impl Iterator<Item = &Value> {
    items(properties, &["Policies"]).iter().flat_map(|policy| items(policy, &["Statement"]))
}

/// What a function's policies allow is exactly what its step calls. A key permission may be added by condition.
pub fn wrong_policies(template: &Value) -> Findings {
    let mut found = Findings::new();
    let wanted: BTreeMap<&str, _> = calls::ALL.iter().copied().collect();
    let deployed: Vec<&str> = functions(template).iter().map(|(_, function)| step(function)).collect();
    for name in wanted.keys() {
        if deployed.iter().filter(|step| *step == name).count() != 1 {
            found.push(format!("{name} is not one function"));
        }
    }
    for (name, function) in functions(template) {
        let Some(calls) = wanted.get(step(function)) else {
            found.push(format!("{name} runs {:?}, which is no step", step(function)));
            continue;
        };
        let needed: BTreeSet<(Target, String)> = calls
            .iter()
            .flat_map(|(target, actions)| {
                let service = match target {
                    Target::Metrics => "cloudwatch",
                    Target::Bucket | Target::Objects => "s3",
                    Target::V1 | Target::V1Internal | Target::V2 => "dynamodb",
                };
                actions.iter().map(move |action| (*target, format!("{service}:{action}")))
            })
            .collect();
        let mut allowed = BTreeSet::new();
        for statement in statements(at(function, &["Properties"])) {
            if let Some(choice) = statement.get("Fn::If") {
                let key = choice.get(1).unwrap_or(&Value::Null);
                let only_kms = several(at(key, &["Action"]))
                    .iter()
                    .all(|action| action.as_str().is_some_and(|a| a.starts_with("kms:")));
                if choice.get(0).and_then(Value::as_str) != Some("HasKmsKey")
                    || !only_kms
                    || at(key, &["Resource", "Ref"]) != "KmsKeyArn"
                {
                    found.push(format!("{name}: a conditional statement is not about the key"));
                }
                continue;
            }
            for resource in several(at(statement, &["Resource"])) {
                for action in several(at(statement, &["Action"])) {
                    match (target(statement, resource), action.as_str()) {
                        (Some(target), Some(action)) if !action.contains('*') => {
                            allowed.insert((target, action.to_owned()));
                        }
                        _ => found.push(format!("{name}: {action} on {resource} is too wide or unknown")),
                    }
                }
            }
        }
        found.extend(
            needed
                .difference(&allowed)
                .map(|(target, action)| format!("{name} lacks {action} on {target:?}")),
        );
        found.extend(
            allowed
                .difference(&needed)
                .map(|(target, action)| format!("{name} may {action} on {target:?} and never does")),
        );
    }
    found
}

/// A machine may invoke exactly the functions it names and start exactly the machines it starts.
pub fn wrong_machine_policies(template: &Value, name: &str, definition: &Value) -> Findings {
    let properties = match state_machine(template, name) {
        Ok(properties) => properties,
        Err(problem) => return vec![problem],
    };
    let mut needed = BTreeSet::new();
    for state in machine::states(definition) {
        let argument = |field| text(state.body, &["Arguments", field]);
        for target in [argument("FunctionName"), argument("StateMachineArn")] {
            if let Some(placeholder) = target.strip_prefix("${") {
                needed.insert(
                    referred(at(properties, &["DefinitionSubstitutions", placeholder.trim_end_matches('}')]))
                        .to_owned(),
                );
            } else if target.contains("StateMachine.Id") {
                needed.insert(format!("${{AWS::StackName}}-{name}"));
            }
        }
    }
    let mut allowed = BTreeSet::new();
    for statement in statements(properties) {
        for action in several(at(statement, &["Action"])) {
            if ["lambda:InvokeFunction", "states:StartExecution"]
                .contains(&action.as_str().unwrap_or_default())
            {
                for resource in several(at(statement, &["Resource"])) {
                    let own = substituted(resource).rsplit_once(":stateMachine:").map_or("*", |(_, own)| own);
                    let name = referred(resource);
                    allowed.insert(if name.is_empty() { own.to_owned() } else { name.to_owned() });
                }
            }
        }
    }
    let missing = needed.difference(&allowed).map(|target| format!("{name} may not use {target}"));
    let excess = allowed.difference(&needed).map(|target| format!("{name} may use {target} and never does"));
    missing.chain(excess).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{
        LAYOUT, assert_caught, assert_clean, assert_machine_caught, assert_machines_clean, function, put,
        remove, statement,
    };
    use super::*;

    #[test]
    fn a_function_may_do_what_its_step_calls_and_nothing_else() {
        assert_clean(wrong_policies);
        let delete =
            |value: &mut Value| value["Action"].as_array_mut().unwrap().push(json!("dynamodb:DeleteItem"));
        assert_caught(
            wrong_policies,
            &statement("BackfillPage", "UseV2"),
            delete,
            "may dynamodb:DeleteItem on V2",
        );
        let check = put(json!(["dynamodb:Scan"]));
        let reads = format!("{}/Action", statement("BackfillPage", "ReadV1"));
        assert_caught(wrong_policies, &reads, check, "lacks dynamodb:ConditionCheckItem on V1");
        let wide = put(json!(["dynamodb:*"]));
        assert_caught(wrong_policies, &reads, wide, "too wide");
        assert_caught(
            wrong_policies,
            &format!("{}/Resource", statement("Verify", "UseV2")),
            put(json!("arn:x")),
            "too wide or unknown",
        );
        let other = put(json!("verify-twice"));
        assert_caught(
            wrong_policies,
            &format!("{}/Environment/Variables/METASHIFT_STEP", function("Verify")),
            other,
            "is no step",
        );
        assert_caught(
            wrong_policies,
            "/Resources",
            remove("PublishMarkerFunction"),
            "publish-marker is not one function",
        );
        let list = format!("{}/Policies/0/Statement", function("FinishRepair"));
        let conditional = |value: &mut Value| {
            value
                .as_array_mut()
                .unwrap()
                .push(json!({ "Fn::If": ["HasKmsKey", { "Action": "dynamodb:*", "Resource": "*" }, null] }));
        };
        assert_caught(wrong_policies, &list, conditional, "not about the key");
    }

    #[test]
    fn v1_is_written_only_under_its_internal_prefix() {
        for pointer in ["Condition", "Condition/ForAllValues:StringLike", "Condition/Null"] {
            let at = format!("{}/{pointer}", statement("InstallBarrier", "WriteV1InternalKeys"));
            assert_caught(wrong_policies, &at, put(json!({})), "may dynamodb:PutItem on V1 and never does");
        }
        // Not even lake's own keys beside the migrator's.
        for wider in ["*", "__lake_internal/*"] {
            let keys = format!(
                "{}/Condition/ForAllValues:StringLike/dynamodb:LeadingKeys",
                statement("BackfillPage", "WriteV1InternalKeys")
            );
            let excess = "may dynamodb:PutItem on V1 and never does";
            assert_caught(wrong_policies, &keys, put(json!([wider])), excess);
        }
    }

    #[test]
    fn a_machine_may_use_what_it_names_and_nothing_else() {
        assert_machines_clean(wrong_machine_policies);
        let invoke = format!("{LAYOUT}/Policies/0/Statement/0/Resource");
        let none = put(json!([{ "Fn::GetAtt": ["VerifyFunction", "Arn"] }]));
        assert_machine_caught(wrong_machine_policies, &invoke, none, "may not use PreflightFunction");
        let more = |value: &mut Value| value.as_array_mut().unwrap().push(json!("*"));
        assert_machine_caught(wrong_machine_policies, &invoke, more, "may use * and never does");
        let start = format!("{LAYOUT}/Policies/0/Statement/1/Resource");
        assert_machine_caught(
            wrong_machine_policies,
            &start,
            put(json!([])),
            "may not use CutoverWatchdogStateMachine",
        );
        assert_machine_caught(
            wrong_machine_policies,
            &start,
            put(json!([])),
            "may not use ${AWS::StackName}-dynamodb-layout",
        );
    }
}
