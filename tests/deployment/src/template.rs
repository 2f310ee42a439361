//! Lints of the template, by subject; here what they all look at: its resources.

#[cfg(test)]
mod broken;
pub mod machines;
pub mod policies;
pub mod resources;
pub mod watching;

use serde_json::{Map, Value};

fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, name| value.get(name).unwrap_or(&Value::Null))
}

fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

fn object<'a>(value: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let map: Option<&'a Map<String, Value>> = at(value, path).as_object();
    map.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// One value or a list of them.
fn several(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |list| list.iter().collect())
}

fn resources<'a>(template: &'a Value, kind: &str) -> Vec<(&'a str, &'a Value)> {
    object(template, &["Resources"]).filter(|(_, resource)| text(resource, &["Type"]) == kind).collect()
}

fn functions(template: &Value) -> Vec<(&str, &Value)> {
    resources(template, "AWS::Serverless::Function")
}

fn step(function: &Value) -> &str {
    text(function, &["Properties", "Environment", "Variables", "METASHIFT_STEP"])
}

/// The logical name in `!GetAtt Name.Arn` or `!Ref Name`.
fn referred(value: &Value) -> &str {
    at(value, &["Fn::GetAtt"]).get(0).or(value.get("Ref")).and_then(Value::as_str).unwrap_or_default()
}

/// The state machine resource made from `statemachine/<name>.asl.json`.
fn state_machine<'a>(template: &'a Value, name: &str) -> Result<&'a Value, String> {
    let uri = format!("statemachine/{name}.asl.json");
    resources(template, "AWS::Serverless::StateMachine")
        .into_iter()
        .map(|(_, resource)| at(resource, &["Properties"]))
        .find(|properties| text(properties, &["DefinitionUri"]) == uri)
        .ok_or_else(|| format!("no state machine is made from {uri}"))
}

fn substituted(resource: &Value) -> &str {
    let sub = at(resource, &["Fn::Sub"]);
    sub.as_str().or(sub.get(0).and_then(Value::as_str)).unwrap_or_default()
}
