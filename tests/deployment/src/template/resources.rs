//! The table, functions, machines and parameters themselves.

use serde_json::Value;

use super::{at, functions, items, object, referred, resources, step, text};
use crate::Findings;

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

    use super::super::broken::{LAYOUT, assert_caught, assert_clean, function, put, remove};
    use super::*;
    use crate::project;

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
