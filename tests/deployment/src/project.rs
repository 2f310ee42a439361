//! The project's own files, found from this crate's folder.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// State machines, by the stem of their file.
pub const MACHINES: &[&str] = &["dynamodb-layout", "cutover-watchdog", "catalog-format"];

/// The project's top folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Text of a file, by its path from the top folder.
pub fn text(path: &str) -> Result<String, String> {
    std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// A state machine's definition, by the stem of its file.
pub fn machine(name: &str) -> Result<Value, String> {
    let path = format!("statemachine/{name}.asl.json");
    serde_json::from_str(&text(&path)?).map_err(|error| format!("{path}: {error}"))
}

/// The template, with every short intrinsic (`!Ref x`) in its long form (`{"Ref": "x"}`).
pub fn template() -> Result<Value, String> {
    crate::yaml::parse(&text("template.yaml")?)
}
