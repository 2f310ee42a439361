//! `plan`: the one record that everything which must exclude something else goes through. Never removed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Record;

/// Key of the record.
pub const KEY: &str = "__lake_internal/dynamo-prefix-v2/plan";

/// Version of the plan. A binary that knows version 1 alone publishes over records that it does not check, so it refuses
/// this one. An open plan of version 1 becomes one of version 2 with its next transition; a plan never goes back.
pub const VERSION: u32 = 2;

/// Most segments of a plan.
pub const MOST_SEGMENTS: u32 = 256;

/// Ended epochs that a plan names; older ones are refused by their number.
pub const MAX_ENDED_EPOCHS: usize = 16;

/// State of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// The generation's segment records are being created.
    Opening,
    /// Backfill may run.
    Open,
    /// The generation's segment records are being closed.
    Closing,
    /// A repair runs.
    Repairing,
    /// The barrier is held by the cutover's epoch.
    Finalizing,
    /// Another migrator published the marker; the workers of this plan are being fenced.
    Takeover,
    /// The marker is published.
    Final,
}

/// What happens to the barrier when a cutover fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// It is taken away; writers go on under v1.
    #[default]
    Release,
    /// It stays until a person aborts.
    Hold,
}

/// A cutover that holds, or held, the barrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    /// Id of this cutover; never used twice.
    pub epoch: String,
    /// When the barrier was installed, RFC 3339 in UTC.
    pub installed_at: jiff::Timestamp,
    /// When the cutover fails if it is not published, RFC 3339 in UTC.
    pub deadline: jiff::Timestamp,
    /// What happens to the barrier then.
    pub on_failure: OnFailure,
    /// Who runs it: an execution or `local:<id>`.
    pub owner: String,
    /// Random secret of the verification's digests, 32 hex digits, drawn with the barrier.
    #[serde(default)]
    pub digest_key: String,
    /// Items that the verification found equal; set with the marker.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verified: Option<u64>,
}

/// The first comparison after the marker that found no difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Audited {
    /// When it was recorded, RFC 3339 in UTC.
    pub at: jiff::Timestamp,
    /// Id of the comparison.
    pub run: String,
}

/// The plan of a migration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// 2, or 1 of a plan that an earlier version made and that was not open since.
    pub version: u32,
    /// Fingerprint of the layout.
    pub layout: String,
    /// Name of the companion table that it copies to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub companion: Option<String>,
    /// Segments of every walk: 1 to 256.
    pub segments: u32,
    /// Number of the backfill generation, from 0.
    pub generation: u64,
    /// State.
    pub state: State,
    /// Id of the repair, while repairing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repair_run: Option<String>,
    /// The cutover, while finalizing and once final.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cutover: Option<Cutover>,
    /// Epoch of the last cutover that was released.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub released: Option<String>,
    /// Cutovers that began or were cancelled before they began. A cutover begins only on the number that its run saw, so a
    /// request that arrives late begins none.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub cutovers: u64,
    /// The last [`MAX_ENDED_EPOCHS`] epochs that were released or cancelled, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended_epochs: Vec<String>,
    /// When this software took the table over from the migrator that published the marker.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub taken_over_at: Option<jiff::Timestamp>,
    /// The first clean audit after the marker; v2-only nodes and `retire` rest on it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub audited: Option<Audited>,
    /// Id of the last repair that ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_repair: Option<String>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record for Plan {
    const NEWEST: u32 = VERSION;
}

impl Plan {
    /// True where this epoch was released or cancelled.
    pub fn has_ended(&self, epoch: &str) -> bool {
        self.released.as_deref() == Some(epoch) || self.ended_epochs.iter().any(|ended| ended == epoch)
    }

    /// The plan of a table that has none: generation 0, opening.
    pub fn first(layout: String, segments: u32) -> Self {
        Self {
            version: VERSION,
            layout,
            companion: None,
            segments,
            generation: 0,
            state: State::Opening,
            repair_run: None,
            cutover: None,
            released: None,
            cutovers: 0,
            ended_epochs: Vec::new(),
            taken_over_at: None,
            audited: None,
            ended_repair: None,
            extra: Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn the_wire_form_is_pinned() {
        let at = |text: &str| text.parse().unwrap();
        let plan = Plan {
            state: State::Finalizing,
            cutover: Some(Cutover {
                epoch: "e1".to_owned(),
                installed_at: at("2026-01-02T03:04:05Z"),
                deadline: at("2026-01-02T03:19:05Z"),
                on_failure: OnFailure::Hold,
                owner: "local:a".to_owned(),
                digest_key: "0f".to_owned(),
                verified: None,
            }),
            ..Plan::first("f".to_owned(), 16)
        };
        let bytes = encode(&plan).unwrap();
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            concat!(
                r#"{"version":2,"layout":"f","segments":16,"generation":0,"state":"finalizing","#,
                r#""cutover":{"epoch":"e1","installedAt":"2026-01-02T03:04:05Z","#,
                r#""deadline":"2026-01-02T03:19:05Z","onFailure":"hold","owner":"local:a","digestKey":"0f"}}"#
            )
        );
        assert_eq!(decode::<Plan>(KEY, &bytes).unwrap(), plan);
    }

    #[test]
    fn a_plan_of_version_1_is_read_and_keeps_its_version() {
        let old = br#"{"version":1,"layout":"f","segments":4,"generation":2,"state":"open","released":"e1"}"#;
        let plan: Plan = decode(KEY, old).unwrap();
        assert_eq!((plan.version, plan.cutovers, plan.has_ended("e1")), (1, 0, true));
        assert_eq!(String::from_utf8(encode(&plan).unwrap()).unwrap().as_bytes(), old);
    }
}
