//! `control`: what an operator changes while a migration runs. Lives as long as the plan; absent means the default.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Record, VERSION};

/// Key of the record.
pub const KEY: &str = "__lake_internal/dynamo-prefix-v2/control";

/// Pause and rate of the whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Control {
    /// 1.
    pub version: u32,
    /// True: every worker stops at its next page.
    pub paused: bool,
    /// Write request units a second for all workers together; `None`: unlimited.
    pub write_units: Option<u32>,
    /// Drawn for each write: no two have the same bytes, so that a late one never finds what it was sent upon.
    #[serde(default)]
    pub write: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Record for Control {}

impl Default for Control {
    fn default() -> Self {
        Self { version: VERSION, paused: false, write_units: None, write: String::new(), extra: Map::new() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn a_record_from_before_writes_had_ids_is_read() {
        let read = decode::<Control>(KEY, br#"{"version":1,"paused":true,"writeUnits":5}"#).unwrap();
        assert_eq!(read, Control { paused: true, write_units: Some(5), ..Control::default() });
    }

    proptest! {
        #[test]
        fn it_survives_its_codec(paused: bool, write_units: Option<u32>, write: String) {
            let control = Control { paused, write_units, write, ..Control::default() };
            prop_assert_eq!(decode::<Control>(KEY, &encode(&control).unwrap()).unwrap(), control);
        }
    }
}
