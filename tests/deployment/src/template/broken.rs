//! Templates broken on purpose: each lint has to catch them.

use serde_json::Value;

use crate::Findings;
use crate::project::{self, MACHINES};

pub(super) type Lint = fn(&Value) -> Findings;

pub(super) type MachineLint = fn(&Value, &str, &Value) -> Findings;

pub(super) fn assert_clean(lint: Lint) {
    let found = lint(&project::template().unwrap());
    assert!(found.is_empty(), "{found:#?}");
}

pub(super) fn broken(pointer: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut template = project::template().unwrap();
    change(template.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")));
    template
}

pub(super) fn assert_holds(found: &Findings, wanted: &str) {
    assert!(found.iter().any(|finding| finding.contains(wanted)), "no finding holds {wanted:?}: {found:#?}");
}

pub(super) fn assert_caught(lint: Lint, pointer: &str, change: impl FnOnce(&mut Value), wanted: &str) {
    assert_holds(&lint(&broken(pointer, change)), wanted);
}

pub(super) fn assert_machines_clean(lint: MachineLint) {
    for name in MACHINES {
        let found = lint(&project::template().unwrap(), name, &project::machine(name).unwrap());
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

pub(super) fn assert_machine_caught(
    lint: MachineLint,
    pointer: &str,
    change: impl FnOnce(&mut Value),
    wanted: &str,
) {
    let template = broken(pointer, change);
    assert_holds(&lint(&template, "dynamodb-layout", &project::machine("dynamodb-layout").unwrap()), wanted);
}

pub(super) fn remove(field: &'static str) -> impl FnOnce(&mut Value) {
    move |value| {
        assert!(value.as_object_mut().unwrap().remove(field).is_some());
    }
}

pub(super) fn put(replacement: Value) -> impl FnOnce(&mut Value) {
    move |value| *value = replacement
}

pub(super) const LAYOUT: &str = "/Resources/DynamodbLayoutStateMachine/Properties";

pub(super) fn function(name: &str) -> String {
    format!("/Resources/{name}Function/Properties")
}

/// A pointer to the statement of a function's policy that has this name.
pub(super) fn statement(name: &str, sid: &str) -> String {
    let list = format!("{}/Policies/0/Statement", function(name));
    let template = project::template().unwrap();
    let index = template.pointer(&list).unwrap().as_array().unwrap().iter().position(|s| s["Sid"] == sid);
    format!("{list}/{}", index.unwrap())
}
