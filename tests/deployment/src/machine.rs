//! Lints of one state machine, by subject; here what they all look at: its states.

#[cfg(test)]
mod broken;
pub mod errors;
pub mod flow;
pub mod size;
pub mod variables;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// One state, with the states it lives beside.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its definition.
    pub body: &'a Value,
    /// The map that it is a part of.
    pub map: Option<&'a str>,
}

impl<'a> State<'a> {
    fn kind(&self) -> &'a str {
        text(self.body, "Type")
    }

    fn list(&self, field: &str) -> &'a [Value] {
        list(self.body, field)
    }

    fn invokes_lambda(&self) -> bool {
        text(self.body, "Resource").ends_with(":lambda:invoke")
    }

    /// Where it goes, and what is assigned on the way.
    fn edges(&self) -> Vec<(&'a str, BTreeSet<&'a str>)> {
        let assigned = |value: &'a Value| -> BTreeSet<&'a str> {
            fields(value, "Assign").map(|(name, _)| name).collect()
        };
        let mut edges = Vec::new();
        for field in ["Next", "Default"] {
            if let Some(next) = self.body.get(field).and_then(Value::as_str) {
                edges.push((next, assigned(self.body)));
            }
        }
        for field in ["Choices", "Catch"] {
            edges.extend(self.list(field).iter().map(|entry| (text(entry, "Next"), assigned(entry))));
        }
        edges
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value, field: &str) -> Option<u64> {
    value.get(field).and_then(Value::as_u64)
}

fn fields<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let object: Option<&'a Map<String, Value>> = value.get(field).and_then(Value::as_object);
    object.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// Every state, the outer ones first.
pub fn states(machine: &Value) -> Vec<State<'_>> {
    let outer: Vec<_> =
        fields(machine, "States").map(|(name, body)| State { name, body, map: None }).collect();
    let inner = outer.iter().filter(|state| state.kind() == "Map").flat_map(|state| {
        let processor = state.body.get("ItemProcessor").unwrap_or(&Value::Null);
        fields(processor, "States").map(|(name, body)| State { name, body, map: Some(state.name) })
    });
    let inner: Vec<_> = inner.collect();
    outer.into_iter().chain(inner).collect()
}

fn start<'a>(machine: &'a Value, map: Option<&str>) -> &'a str {
    match map {
        None => text(machine, "StartAt"),
        Some(map) => machine
            .pointer(&format!("/States/{map}/ItemProcessor/StartAt"))
            .and_then(Value::as_str)
            .unwrap_or_default(),
    }
}
