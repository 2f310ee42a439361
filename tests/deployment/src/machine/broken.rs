//! Definitions broken on purpose: each lint has to catch them.

use serde_json::Value;

use crate::Findings;
use crate::project::{MACHINES, machine};

pub(super) type Lint = fn(&Value) -> Findings;

pub(super) fn assert_clean(lint: Lint) {
    for name in MACHINES {
        let found = lint(&machine(name).unwrap());
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

/// Breaks the layout machine at `pointer` and expects a finding that holds `wanted`.
pub(super) fn assert_caught(lint: Lint, pointer: &str, change: impl FnOnce(&mut Value), wanted: &str) {
    let mut broken = machine("dynamodb-layout").unwrap();
    change(broken.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")));
    let found = lint(&broken);
    assert!(found.iter().any(|finding| finding.contains(wanted)), "no finding holds {wanted:?}: {found:#?}");
}

pub(super) fn remove(field: &'static str) -> impl FnOnce(&mut Value) {
    move |value| {
        assert!(value.as_object_mut().unwrap().remove(field).is_some());
    }
}

pub(super) fn put(replacement: Value) -> impl FnOnce(&mut Value) {
    move |value| *value = replacement
}

pub(super) const PAGE: &str = "/States/Backfill/ItemProcessor/States/BackfillPage";
