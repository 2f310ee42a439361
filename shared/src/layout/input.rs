//! The inputs of the steps: small JSON documents, unknown fields refused; `docs/steps.md` shows one of each.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::family::Layout;
use super::records::plan::OnFailure;
use crate::{Error, ErrorKind, Result};

/// Version of every input.
pub const VERSION: u64 = 1;

/// Reads a step's input; anything that is not of its documented form is `InvalidInput`.
pub fn parse<T: DeserializeOwned>(raw: Value) -> Result<T> {
    let invalid = |message: String| {
        Error::new(ErrorKind::InvalidInput, message)
            .next("docs/steps.md shows an example of each step's input")
    };
    match raw.get("version").and_then(Value::as_u64) {
        Some(VERSION) => serde_json::from_value(raw).map_err(|error| invalid(format!("input: {error}"))),
        Some(version) => Err(invalid(format!("input: version {version}; this binary reads {VERSION}"))),
        None => Err(invalid("input: no version; it is an object with \"version\":1".to_owned())),
    }
}

macro_rules! inputs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Deserialize)]
            #[serde(rename_all = "camelCase", deny_unknown_fields)]
            pub struct $name {
                /// 1.
                pub version: u32,
                /// Label in metrics; `layout` where it is left out.
                #[serde(default)]
                pub migration: Option<String>,
                /// The v1 table.
                pub table: String,
                /// The v2 table; the v1 table's name and `_prefix_v2` where it is left out.
                #[serde(default)]
                pub companion: Option<String>,
                /// Another shard table than the field's.
                #[serde(default)]
                pub layout: Option<Value>,
                $($(#[$attribute])* pub $field: $type,)*
            }

            impl Input for $name {
                fn tables(&self) -> (&str, Option<&str>, Option<&Value>) {
                    (&self.table, self.companion.as_deref(), self.layout.as_ref())
                }
            }
        )*
    };
}

/// What every input names.
pub trait Input: DeserializeOwned {
    /// The v1 table, the v2 table, the layout.
    fn tables(&self) -> (&str, Option<&str>, Option<&Value>);

    /// The layout that the input names, or the field's.
    fn layout(&self) -> Result<Layout> {
        self.tables()
            .2
            .map_or_else(|| Ok(Layout::default()), |json| Layout::from_json(json.to_string().as_bytes()))
    }
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunMode {
    /// Looks, and changes nothing.
    Plan,
    /// Copies.
    Backfill,
    /// Copies, then compares online.
    Rehearse,
    /// Makes v2 follow v1.
    Repair,
    /// Cuts over.
    Finalize,
    /// Ends a cutover.
    Abort,
    /// Compares after the marker.
    Audit,
}

/// Which comparison a verify step makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VerifyMode {
    /// Online.
    Rehearse,
    /// Under the barrier.
    Final,
}

/// Which table is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// From v1.
    V1,
    /// From v2.
    V2,
}

/// Why a barrier is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// The run failed.
    Failure,
    /// A person says so.
    Abort,
    /// The watchdog's time has come.
    Watchdog,
    /// The execution ended without releasing it.
    Event,
}

/// Evidence that every writer is dual-capable: exactly one of the two.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RolloutInput {
    /// A person says so.
    #[serde(default)]
    pub acknowledged: Option<bool>,
    /// CloudWatch says so.
    #[serde(default)]
    pub metric: Option<MetricInput>,
}

/// Where the metric `WriterMode` is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetricInput {
    /// CloudWatch namespace; `Metashift` where it is left out.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Nodes that must have reported: 1 or more.
    pub minimum_reporters: u32,
    /// How far back: 60 to 3,600 seconds.
    pub window_seconds: u32,
}

inputs! {
    /// `preflight`.
    PreflightInput {
        /// What the run is for.
        mode: RunMode,
        /// Segments of the plan: 1 to 256.
        #[serde(default)]
        segments: Option<u32>,
        /// Walks everything again.
        #[serde(default)]
        new_generation: bool,
        /// Removes another migrator's cursor.
        #[serde(default)]
        discard_foreign_cursor: bool,
        /// Takes over another migrator's barrier.
        #[serde(default)]
        adopt_foreign_barrier: bool,
        /// Accepts TTL on v1.
        #[serde(default)]
        allow_ttl: bool,
        /// Accepts replicas of v1.
        #[serde(default)]
        allow_replicas: bool,
        /// Id of the repair to begin.
        #[serde(default)]
        repair_run: Option<String>,
        /// A repair only counts what would change.
        #[serde(default)]
        dry_run: bool,
        /// Items of one Scan; checked here so that a run fails before it begins.
        #[serde(default)]
        page_size: Option<u32>,
    }
    /// `backfill-page`.
    BackfillPageInput {
        /// The plan's generation.
        generation: u64,
        /// The segment.
        segment: u32,
        /// Items of one Scan.
        #[serde(default)]
        page_size: Option<u32>,
        /// Pages of this invocation.
        #[serde(default)]
        max_pages: Option<u32>,
    }
    /// `verify`.
    VerifyInput {
        /// Online or under the barrier.
        mode: VerifyMode,
        /// Id of the rehearsal.
        #[serde(default)]
        run: Option<String>,
        /// The cutover.
        #[serde(default)]
        epoch: Option<String>,
        /// Which table is walked.
        direction: Direction,
        /// The segment.
        segment: u32,
        /// Reads the other table for each key, under the barrier; a rehearsal does so anyway.
        #[serde(default)]
        exact: bool,
        /// Items of one Scan.
        #[serde(default)]
        page_size: Option<u32>,
        /// Pages of this invocation.
        #[serde(default)]
        max_pages: Option<u32>,
    }
    /// `repair-page`.
    RepairPageInput {
        /// Id of the repair.
        run: String,
        /// Which table is walked.
        direction: Direction,
        /// The segment.
        segment: u32,
        /// Only counts what would change.
        #[serde(default)]
        dry_run: bool,
        /// Items of one Scan.
        #[serde(default)]
        page_size: Option<u32>,
        /// Pages of this invocation.
        #[serde(default)]
        max_pages: Option<u32>,
    }
    /// `finish-repair`.
    FinishRepairInput {
        /// Id of the repair.
        run: String,
    }
    /// `check-rollout`.
    CheckRolloutInput {
        /// The evidence.
        rollout: RolloutInput,
    }
    /// `install-barrier`.
    InstallBarrierInput {
        /// The cutover.
        epoch: String,
        /// How long it may take: 1 to 86,400 seconds; 900 where it is left out.
        #[serde(default)]
        deadline_seconds: Option<u64>,
        /// What happens to the barrier when it fails.
        #[serde(default)]
        on_failure: OnFailure,
        /// Admission of metadata writes is paused.
        #[serde(default)]
        writes_paused: bool,
        /// Writers stay, and are refused.
        #[serde(default)]
        cutover_under_load: bool,
        /// Who runs it.
        owner: String,
        /// Takes over another migrator's barrier.
        #[serde(default)]
        adopt_foreign_barrier: bool,
        /// The plan's generation, as preflight answered it: what was copied and compared.
        #[serde(default)]
        generation: Option<u64>,
        /// The plan's number of cutovers, as preflight answered it.
        #[serde(default)]
        cutovers: Option<u64>,
    }
    /// `publish-marker`.
    PublishMarkerInput {
        /// The cutover.
        epoch: String,
    }
    /// `release-barrier`.
    ReleaseBarrierInput {
        /// The cutover; `None`, for an abort: whichever holds the barrier.
        #[serde(default)]
        epoch: Option<String>,
        /// Why.
        reason: Reason,
    }
    /// `verify-prefix-reads`.
    VerifyPrefixReadsInput {
        /// The family to go on after; `None` at the start.
        #[serde(default)]
        after: Option<String>,
    }
    /// `record-audit`.
    RecordAuditInput {
        /// Id of the audit: of the comparison that is done.
        run: String,
    }
}

/// The event that Step Functions sends when an execution has ended, as an input of `release-barrier`.
///
/// `None` where `raw` is no such event. The epoch is the execution input's `epoch`, else the execution's name; the
/// tables are the input's, else `table` and `companion`, which the function's environment names.
pub fn release_of_event(raw: &Value, table: Option<&str>, companion: Option<&str>) -> Result<Option<Value>> {
    if raw.get("detail-type").and_then(Value::as_str) != Some("Step Functions Execution Status Change") {
        return Ok(None);
    }
    let detail = raw.get("detail").cloned().unwrap_or_default();
    // An input of 32 KB or more is left out of the event; the name is always there.
    let input: Value = detail
        .get("input")
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let invalid = |what: &str| {
        Error::new(ErrorKind::InvalidInput, format!("the event of an ended execution names no {what}"))
            .next("release by hand: metashift layout abort")
    };
    let epoch =
        text(&input, "epoch").or_else(|| text(&detail, "name")).ok_or_else(|| invalid("execution"))?;
    let table = text(&input, "table").or(table.map(str::to_owned)).ok_or_else(|| invalid("table"))?;
    let mut release =
        serde_json::json!({ "version": VERSION, "table": table, "epoch": epoch, "reason": "event" });
    let optional = [
        ("companion", text(&input, "companion").or(companion.map(str::to_owned))),
        ("migration", text(&input, "migration")),
    ];
    for (name, value) in optional {
        if let (Some(value), Some(object)) = (value, release.as_object_mut()) {
            object.insert(name.to_owned(), Value::String(value));
        }
    }
    Ok(Some(release))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn kind<T: DeserializeOwned + std::fmt::Debug>(raw: Value) -> ErrorKind {
        parse::<T>(raw).unwrap_err().kind()
    }

    #[test]
    fn an_input_that_is_not_of_its_form_is_invalid() {
        let good = json!({ "version": 1, "table": "t", "generation": 0, "segment": 1 });
        assert!(parse::<BackfillPageInput>(good.clone()).is_ok());
        for (field, value) in [
            ("version", json!(2)),
            ("version", json!(null)),
            ("table", json!(3)),
            ("segment", json!(-1)),
            ("pageSiz", json!(10)),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert_eq!(kind::<BackfillPageInput>(bad), ErrorKind::InvalidInput, "{field}");
        }
        for raw in [json!(null), json!([]), json!("x"), json!({})] {
            assert_eq!(kind::<BackfillPageInput>(raw), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn the_event_of_an_ended_execution_names_its_epoch() {
        let event = |input: &str| {
            json!({ "detail-type": "Step Functions Execution Status Change",
                    "detail": { "name": "cutover-7-2", "status": "ABORTED", "input": input } })
        };
        let release = |raw: &Value| release_of_event(raw, Some("lake"), None).unwrap().unwrap();
        assert_eq!(release(&event("{}"))["epoch"], "cutover-7-2");
        assert_eq!(release(&event("{}"))["table"], "lake");
        let named = event(r#"{"epoch":"cutover-7","table":"other"}"#);
        assert_eq!(
            (&release(&named)["epoch"], &release(&named)["table"]),
            (&json!("cutover-7"), &json!("other"))
        );
        assert_eq!(release(&event("not json"))["epoch"], "cutover-7-2");
        assert!(release_of_event(&json!({ "version": 1 }), None, None).unwrap().is_none());
        assert!(release_of_event(&event("{}"), None, None).is_err());
        assert!(parse::<ReleaseBarrierInput>(release(&event("{}"))).is_ok());
    }

    /// The examples that `docs/steps.md` quotes.
    #[test]
    fn every_documented_input_parses() {
        fn parses<T: DeserializeOwned>(raw: Value) -> Result<()> {
            parse::<T>(raw).map(drop)
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/deployment/examples");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let Some(step) = name.strip_suffix(".input.json").map(|name| name.split('.').next().unwrap())
            else {
                continue;
            };
            let mut raw: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            if let Some(release) = release_of_event(&raw, Some("lake"), None).unwrap() {
                raw = release;
            }
            let parsed = match step {
                "preflight" => parses::<PreflightInput>(raw),
                "backfill-page" => parses::<BackfillPageInput>(raw),
                "verify" => parses::<VerifyInput>(raw),
                "repair-page" => parses::<RepairPageInput>(raw),
                "finish-repair" => parses::<FinishRepairInput>(raw),
                "check-rollout" => parses::<CheckRolloutInput>(raw),
                "install-barrier" => parses::<InstallBarrierInput>(raw),
                "publish-marker" => parses::<PublishMarkerInput>(raw),
                "release-barrier" => parses::<ReleaseBarrierInput>(raw),
                "verify-prefix-reads" => parses::<VerifyPrefixReadsInput>(raw),
                "record-audit" => parses::<RecordAuditInput>(raw),
                _ => continue,
            };
            parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
            seen += 1;
        }
        assert!(seen >= 11, "{seen} examples");
    }

    /// Every step refuses what it is not made for, and nothing else happens.
    fn is_an_input_or_invalid(raw: &Value) {
        fn typed<T: Input>(raw: &Value) {
            if let Err(error) = parse::<T>(raw.clone()).and_then(|input| input.layout().map(drop)) {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
        }
        typed::<PreflightInput>(raw);
        typed::<BackfillPageInput>(raw);
        typed::<VerifyInput>(raw);
        typed::<RepairPageInput>(raw);
        typed::<FinishRepairInput>(raw);
        typed::<CheckRolloutInput>(raw);
        typed::<InstallBarrierInput>(raw);
        typed::<PublishMarkerInput>(raw);
        typed::<ReleaseBarrierInput>(raw);
        typed::<VerifyPrefixReadsInput>(raw);
        typed::<RecordAuditInput>(raw);
        match release_of_event(raw, Some("lake"), None) {
            Ok(release) => release.iter().for_each(typed::<ReleaseBarrierInput>),
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}"),
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("\\PC{0,8}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// Every field that any input has.
    const FIELDS: &[&str] = &[
        "version",
        "migration",
        "table",
        "companion",
        "layout",
        "mode",
        "segments",
        "newGeneration",
        "repairRun",
        "dryRun",
        "pageSize",
        "maxPages",
        "generation",
        "segment",
        "run",
        "epoch",
        "direction",
        "exact",
        "rollout",
        "deadlineSeconds",
        "onFailure",
        "writesPaused",
        "owner",
        "reason",
        "detail-type",
        "detail",
    ];

    proptest! {
        #[test]
        fn arbitrary_json_is_an_input_or_invalid(raw in any_json()) {
            is_an_input_or_invalid(&raw);
        }

        #[test]
        fn an_input_with_arbitrary_fields_is_an_input_or_invalid(
            fields in proptest::collection::vec((proptest::sample::select(FIELDS), any_json()), 0..4),
            event: bool,
        ) {
            let mut raw = if event {
                json!({ "detail-type": "Step Functions Execution Status Change", "detail": { "name": "e" } })
            } else {
                json!({ "version": 1, "table": "t", "segment": 0, "epoch": "e", "run": "r" })
            };
            for (name, value) in fields {
                raw[name] = value;
            }
            is_an_input_or_invalid(&raw);
        }
    }
}
