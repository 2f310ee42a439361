//! Lints of the template: substitutions, time-outs, policies, metrics, protection, parameters.

use std::collections::{BTreeMap, BTreeSet};

use metashift::telemetry;
use serde_json::{Map, Value};

use crate::calls::{self, Target};
use crate::{Findings, machine};

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

fn substituted(resource: &Value) -> &str {
    let sub = at(resource, &["Fn::Sub"]);
    sub.as_str().or(sub.get(0).and_then(Value::as_str)).unwrap_or_default()
}

fn leading_keys_only(statement: &Value) -> bool {
    at(statement, &["Condition", "ForAllValues:StringLike", "dynamodb:LeadingKeys"])
        == &serde_json::json!(["__lake_internal/*"])
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

/// A metric of ours that an alarm or a widget reads.
#[derive(Debug)]
struct Read {
    by: String,
    name: String,
    dimensions: Vec<(String, Value)>,
}

fn metrics_read(template: &Value) -> Result<Vec<Read>, String> {
    let mut reads = Vec::new();
    for (name, alarm) in resources(template, "AWS::CloudWatch::Alarm") {
        for query in items(alarm, &["Properties", "Metrics"]) {
            let metric = at(query, &["MetricStat", "Metric"]);
            if text(metric, &["Namespace"]) == telemetry::NAMESPACE {
                let dimensions = items(metric, &["Dimensions"]);
                reads.push(Read {
                    by: name.to_owned(),
                    name: text(metric, &["MetricName"]).to_owned(),
                    dimensions: dimensions
                        .iter()
                        .map(|d| (text(d, &["Name"]).to_owned(), at(d, &["Value"]).clone()))
                        .collect(),
                });
            }
        }
    }
    for (name, dashboard) in resources(template, "AWS::CloudWatch::Dashboard") {
        let body = substituted(at(dashboard, &["Properties", "DashboardBody"]));
        let body: Value = serde_json::from_str(body).map_err(|error| format!("{name}: {error}"))?;
        for widget in items(&body, &["widgets"]) {
            let title = text(widget, &["properties", "title"]);
            let metrics = items(widget, &["properties", "metrics"]);
            if metrics.is_empty() {
                return Err(format!("the widget {title:?} shows nothing"));
            }
            for metric in metrics {
                let expression = text(metric.get(0).unwrap_or(&Value::Null), &["expression"]);
                let quoted = |key: &str| {
                    let rest = expression.split_once(&format!("{key}=\""))?.1;
                    Some(rest.split_once('"')?.0.to_owned())
                };
                if !expression.starts_with("SEARCH('{Metashift,migration,phase} ") {
                    return Err(format!("the widget {title:?} does not search {}", telemetry::NAMESPACE));
                }
                let migration = quoted("migration").unwrap_or_default();
                let label = migration.strip_prefix("${").and_then(|name| name.strip_suffix('}'));
                let value =
                    label.map_or(Value::from(migration.as_str()), |name| serde_json::json!({ "Ref": name }));
                reads.push(Read {
                    by: format!("the widget {title:?}"),
                    name: quoted("MetricName").unwrap_or_default(),
                    dimensions: vec![("migration".to_owned(), value)],
                });
            }
        }
    }
    Ok(reads)
}

/// Every metric that an alarm or a widget reads is one that the code emits, with the dimensions it emits: migration
/// is the label, phase the name of a step; the metadata nodes' own metric has its own.
pub fn unknown_metrics(template: &Value) -> Findings {
    let reads = match metrics_read(template) {
        Ok(reads) => reads,
        Err(problem) => return vec![problem],
    };
    let emitted: BTreeSet<&str> = telemetry::ALL.iter().map(|metric| metric.name).collect();
    let phases: BTreeSet<&str> = calls::ALL.iter().map(|(step, _)| *step).collect();
    let [writer_migration, writer_phase] = calls::WRITER;
    let mut found = Findings::new();
    for read in &reads {
        if !emitted.contains(read.name.as_str()) {
            found.push(format!("{} reads {}, which nothing emits", read.by, read.name));
        }
        let by_nodes = read.name == telemetry::WRITER_MODE.name;
        for (dimension, value) in &read.dimensions {
            let known = match dimension.as_str() {
                "migration" if by_nodes => value == writer_migration,
                "migration" if read.name.starts_with("Catalog") => value == calls::CATALOG,
                "migration" => value == &serde_json::json!({ "Ref": "MigrationLabel" }),
                "phase" if by_nodes => value == writer_phase,
                "phase" => value.as_str().is_some_and(|phase| phases.contains(phase)),
                _ => false,
            };
            if !known {
                found.push(format!("{} reads {} with {dimension} = {value}", read.by, read.name));
            }
        }
        if !read.by.starts_with("the widget") && read.dimensions.len() != 2 {
            found.push(format!("{} reads {} without both dimensions", read.by, read.name));
        }
    }
    if reads.is_empty() {
        found.push("no alarm and no widget reads a metric".to_owned());
    }
    found
}

/// Every alarm treats missing data as no alarm, notifies the topic, and has one query that decides.
pub fn weak_alarms(template: &Value) -> Findings {
    let mut found = Findings::new();
    for (name, alarm) in resources(template, "AWS::CloudWatch::Alarm") {
        if text(alarm, &["Properties", "TreatMissingData"]) != "notBreaching" {
            found.push(format!("{name} goes off or hangs while nothing runs"));
        }
        if at(alarm, &["Properties", "AlarmActions"]).is_null() {
            found.push(format!("{name} notifies nobody"));
        }
        let deciding = items(alarm, &["Properties", "Metrics"])
            .iter()
            .filter(|query| at(query, &["ReturnData"]) == true);
        if deciding.count() != 1 {
            found.push(format!("{name} is decided by none or by several"));
        }
    }
    found
}

/// The companion table outlives the stack, cannot be deleted by mistake, can be restored, and has the layout's keys.
pub fn unprotected_table(template: &Value) -> Findings {
    let mut found = Findings::new();
    let tables = resources(template, "AWS::DynamoDB::Table");
    if tables.is_empty() {
        found.push("there is no companion table".to_owned());
    }
    for (name, table) in tables {
        let properties = at(table, &["Properties"]);
        let keys: Vec<_> = items(properties, &["KeySchema"])
            .iter()
            .map(|key| (text(key, &["AttributeName"]), text(key, &["KeyType"])))
            .collect();
        let holds = [
            ("DeletionPolicy Retain", text(table, &["DeletionPolicy"]) == "Retain"),
            ("UpdateReplacePolicy Retain", text(table, &["UpdateReplacePolicy"]) == "Retain"),
            ("DeletionProtectionEnabled", at(properties, &["DeletionProtectionEnabled"]) == true),
            (
                "point-in-time recovery",
                at(properties, &["PointInTimeRecoverySpecification", "PointInTimeRecoveryEnabled"]) == true,
            ),
            ("on-demand billing", text(properties, &["BillingMode"]) == "PAY_PER_REQUEST"),
            ("the keys bucket and pk", keys == [("bucket", "HASH"), ("pk", "RANGE")]),
            ("a condition", !text(table, &["Condition"]).is_empty()),
        ];
        found.extend(
            holds.iter().filter(|(_, held)| !held).map(|(what, _)| format!("{name} is without {what}")),
        );
    }
    found
}

/// Functions are built by cargo-lambda for the chosen CPU and log into a group that is kept for a set time; machines
/// log and trace; the end of a layout execution that did not succeed is handed to release-barrier.
pub fn loose_ends(template: &Value) -> Findings {
    let mut found = Findings::new();
    let globals = at(template, &["Globals", "Function"]);
    if text(globals, &["Runtime"]) != "provided.al2023"
        || at(globals, &["Architectures"]) != &serde_json::json!([{ "Ref": "Architecture" }])
    {
        found.push("functions do not run on provided.al2023 on the chosen CPU".to_owned());
    }
    for (name, function) in functions(template) {
        let binary =
            if step(function).starts_with("catalog") { "metashift-catalog" } else { "metashift-layout" };
        if text(function, &["Metadata", "BuildMethod"]) != "rust-cargolambda"
            || text(function, &["Metadata", "BuildProperties", "Binary"]) != binary
        {
            found.push(format!("{name} is not built from {binary}"));
        }
        let group = referred(at(function, &["Properties", "LoggingConfig", "LogGroup"]));
        if at(template, &["Resources", group, "Properties", "RetentionInDays"]).is_null() {
            found.push(format!("{name} logs into no group with a retention"));
        }
    }
    for (name, resource) in resources(template, "AWS::Serverless::StateMachine") {
        let properties = at(resource, &["Properties"]);
        let group = referred(at(
            items(properties, &["Logging", "Destinations"]).first().unwrap_or(&Value::Null),
            &["CloudWatchLogsLogGroup", "LogGroupArn"],
        ));
        if at(template, &["Resources", group, "Properties", "RetentionInDays"]).is_null() {
            found.push(format!("{name} logs into no group with a retention"));
        }
        if at(properties, &["Tracing", "Enabled"]) != true {
            found.push(format!("{name} is not traced"));
        }
    }
    let release = at(template, &["Resources", "ReleaseBarrierFunction", "Properties"]);
    for variable in ["METASHIFT_TABLE", "METASHIFT_COMPANION"] {
        if at(release, &["Environment", "Variables", variable]).is_null() {
            found.push(format!(
                "release-barrier is not told {variable}, which the event of an execution may not name"
            ));
        }
    }
    let pattern = at(
        template,
        &[
            "Resources",
            "ReleaseBarrierFunction",
            "Properties",
            "Events",
            "ExecutionEnded",
            "Properties",
            "Pattern",
        ],
    );
    let wanted = serde_json::json!({
        "source": ["aws.states"],
        "detail-type": ["Step Functions Execution Status Change"],
        "detail": { "status": ["FAILED", "TIMED_OUT", "ABORTED"], "stateMachineArn": [{ "Ref": "DynamodbLayoutStateMachine" }] },
    });
    if pattern != &wanted {
        found.push("an execution that did not succeed is not handed to release-barrier".to_owned());
    }
    found
}

/// Every parameter is described, and every text or number is limited.
pub fn weak_parameters(template: &Value) -> Findings {
    let mut found = Findings::new();
    for (name, parameter) in object(template, &["Parameters"]) {
        if text(parameter, &["Description"]).is_empty() {
            found.push(format!("{name} is not described"));
        }
        let limited = ["AllowedPattern", "AllowedValues", "MinValue"]
            .iter()
            .any(|field| parameter.get(field).is_some());
        if !limited {
            found.push(format!("{name} takes anything"));
        }
        if parameter.get("AllowedPattern").is_some() && parameter.get("ConstraintDescription").is_none() {
            found.push(format!("{name} does not say what it takes"));
        }
    }
    found
}

/// `sam build` with a cache does not see a change in `shared/`.
pub fn cached_builds(samconfig: &str) -> Findings {
    let lines = samconfig.lines().map(|line| line.split('#').next().unwrap_or_default().replace(' ', ""));
    lines
        .filter(|line| line == "cached=true")
        .map(|_| "samconfig.toml turns the build cache on".to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::project::{self, MACHINES};

    type Lint = fn(&Value) -> Findings;
    type MachineLint = fn(&Value, &str, &Value) -> Findings;

    fn assert_clean(lint: Lint) {
        let found = lint(&project::template().unwrap());
        assert!(found.is_empty(), "{found:#?}");
    }

    fn broken(pointer: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut template = project::template().unwrap();
        change(template.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")));
        template
    }

    fn assert_holds(found: &Findings, wanted: &str) {
        assert!(
            found.iter().any(|finding| finding.contains(wanted)),
            "no finding holds {wanted:?}: {found:#?}"
        );
    }

    fn assert_caught(lint: Lint, pointer: &str, change: impl FnOnce(&mut Value), wanted: &str) {
        assert_holds(&lint(&broken(pointer, change)), wanted);
    }

    fn assert_machines_clean(lint: MachineLint) {
        for name in MACHINES {
            let found = lint(&project::template().unwrap(), name, &project::machine(name).unwrap());
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
    }

    fn assert_machine_caught(
        lint: MachineLint,
        pointer: &str,
        change: impl FnOnce(&mut Value),
        wanted: &str,
    ) {
        let template = broken(pointer, change);
        assert_holds(
            &lint(&template, "dynamodb-layout", &project::machine("dynamodb-layout").unwrap()),
            wanted,
        );
    }

    fn remove(field: &'static str) -> impl FnOnce(&mut Value) {
        move |value| {
            assert!(value.as_object_mut().unwrap().remove(field).is_some());
        }
    }

    fn put(replacement: Value) -> impl FnOnce(&mut Value) {
        move |value| *value = replacement
    }

    const LAYOUT: &str = "/Resources/DynamodbLayoutStateMachine/Properties";

    fn function(name: &str) -> String {
        format!("/Resources/{name}Function/Properties")
    }

    /// A pointer to the statement of a function's policy that has this name.
    fn statement(name: &str, sid: &str) -> String {
        let list = format!("{}/Policies/0/Statement", function(name));
        let template = project::template().unwrap();
        let index = template.pointer(&list).unwrap().as_array().unwrap().iter().position(|s| s["Sid"] == sid);
        format!("{list}/{}", index.unwrap())
    }

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
        let all = put(json!(["*"]));
        let keys = format!(
            "{}/Condition/ForAllValues:StringLike/dynamodb:LeadingKeys",
            statement("BackfillPage", "WriteV1InternalKeys")
        );
        assert_caught(wrong_policies, &keys, all, "may dynamodb:PutItem on V1 and never does");
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

    #[test]
    fn alarms_and_widgets_read_metrics_that_the_code_emits() {
        assert_clean(unknown_metrics);
        let metric = "/Resources/RejectsAlarm/Properties/Metrics/0/MetricStat/Metric";
        assert_caught(
            unknown_metrics,
            &format!("{metric}/MetricName"),
            put(json!("Rejects")),
            "reads Rejects, which nothing emits",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions/1/Value"),
            put(json!("copying")),
            "with phase",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions/1/Name"),
            put(json!("table")),
            "with table",
        );
        assert_caught(
            unknown_metrics,
            &format!("{metric}/Dimensions"),
            put(json!([])),
            "without both dimensions",
        );
        let writers = "/Resources/V1OnlyPeersAlarm/Properties/Metrics/0/MetricStat/Metric/Dimensions/1/Value";
        assert_caught(unknown_metrics, writers, put(json!("verify")), "reads WriterMode with phase");
        let renamed = |value: &mut Value| {
            *value = json!(value.as_str().unwrap().replace("\\\"ItemsCopied\\\"", "\\\"Copies\\\""));
        };
        let body = "/Resources/Dashboard/Properties/DashboardBody/Fn::Sub";
        assert_caught(unknown_metrics, body, renamed, "reads Copies, which nothing emits");
        let torn =
            |value: &mut Value| *value = json!(value.as_str().unwrap().trim_end().trim_end_matches('}'));
        assert_caught(unknown_metrics, body, torn, "Dashboard: ");
    }

    #[test]
    fn an_alarm_can_go_off_and_does_not_while_nothing_runs() {
        assert_clean(weak_alarms);
        let alarm = "/Resources/StalledAlarm/Properties";
        assert_caught(
            weak_alarms,
            &format!("{alarm}/TreatMissingData"),
            put(json!("breaching")),
            "while nothing runs",
        );
        assert_caught(weak_alarms, alarm, remove("AlarmActions"), "notifies nobody");
        assert_caught(weak_alarms, &format!("{alarm}/Metrics/0/ReturnData"), put(json!(true)), "by several");
    }

    #[test]
    fn the_companion_table_is_protected() {
        assert_clean(unprotected_table);
        let table = "/Resources/CompanionTable";
        for field in ["DeletionPolicy", "UpdateReplacePolicy", "Condition"] {
            assert_caught(unprotected_table, table, remove(field), "CompanionTable is without");
        }
        for field in
            ["DeletionProtectionEnabled", "PointInTimeRecoverySpecification", "BillingMode", "KeySchema"]
        {
            assert_caught(
                unprotected_table,
                &format!("{table}/Properties"),
                remove(field),
                "CompanionTable is without",
            );
        }
        assert_caught(unprotected_table, "/Resources", remove("CompanionTable"), "no companion table");
    }

    #[test]
    fn functions_and_machines_are_built_logged_traced_and_watched() {
        assert_clean(loose_ends);
        assert_caught(loose_ends, "/Globals/Function/Runtime", put(json!("provided.al2")), "provided.al2023");
        let binary = "/Resources/VerifyFunction/Metadata/BuildProperties/Binary";
        assert_caught(
            loose_ends,
            binary,
            put(json!("metashift-catalog")),
            "VerifyFunction is not built from",
        );
        assert_caught(
            loose_ends,
            &function("Verify"),
            remove("LoggingConfig"),
            "VerifyFunction logs into no group",
        );
        assert_caught(
            loose_ends,
            "/Resources/MachineLogs/Properties",
            remove("RetentionInDays"),
            "StateMachine logs into no group",
        );
        assert_caught(loose_ends, &format!("{LAYOUT}/Tracing/Enabled"), put(json!(false)), "is not traced");
        let variables = format!("{}/Environment/Variables", function("ReleaseBarrier"));
        assert_caught(loose_ends, &variables, remove("METASHIFT_TABLE"), "not told METASHIFT_TABLE");
        let pattern = "/Resources/ReleaseBarrierFunction/Properties/Events/ExecutionEnded/Properties/Pattern/detail/status";
        assert_caught(loose_ends, pattern, put(json!(["FAILED"])), "not handed to release-barrier");
    }

    #[test]
    fn every_parameter_is_described_and_limited() {
        assert_clean(weak_parameters);
        assert_caught(
            weak_parameters,
            "/Parameters/TableName",
            remove("Description"),
            "TableName is not described",
        );
        assert_caught(
            weak_parameters,
            "/Parameters/TableName",
            remove("AllowedPattern"),
            "TableName takes anything",
        );
        assert_caught(
            weak_parameters,
            "/Parameters/TableName",
            remove("ConstraintDescription"),
            "does not say",
        );
    }

    #[test]
    fn sam_never_builds_from_its_cache() {
        assert_eq!(cached_builds(&project::text("samconfig.toml").unwrap()), Findings::new());
        assert_eq!(cached_builds("[default.build.parameters]\ncached = true # quick").len(), 1);
    }
}
