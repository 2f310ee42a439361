//! What a state machine does about errors: time-outs, retries, catches, names, causes.

use std::collections::BTreeSet;

use metashift::ErrorKind;
use metashift::error::Class;
use serde_json::Value;

use super::variables::placed;
use super::{State, list, number, states, text};
use crate::{Findings, expression};

/// Names that are not the project's own and that Retry and Catch may use.
pub const PLATFORM_ERRORS: &[&str] = &[
    "Lambda.AWSLambdaException",
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.SdkClientException",
    "Lambda.ServiceException",
    "Lambda.TooManyRequestsException",
    "States.ALL",
    "States.Timeout",
];

fn error_names(entry: &Value) -> impl Iterator<Item = &str> {
    list(entry, "ErrorEquals").iter().filter_map(Value::as_str)
}

/// Every task has a time-out, retries and a catch for everything; every map has that catch.
pub fn unguarded(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        let task = state.kind() == "Task";
        if task && number(state.body, "TimeoutSeconds").is_none() {
            found.push(format!("{} has no TimeoutSeconds", state.name));
        }
        if task && state.list("Retry").is_empty() {
            found.push(format!("{} has no Retry", state.name));
        }
        let catches_all = state.list("Catch").last().is_some_and(|last| error_names(last).eq(["States.ALL"]));
        if (task || state.kind() == "Map") && !catches_all {
            found.push(format!("{} does not catch States.ALL", state.name));
        }
    }
    found
}

/// Every retrier says how often, how long at most and with full jitter; States.ALL stands alone and last.
pub fn loose_retries(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        for (index, retrier) in state.list("Retry").iter().enumerate() {
            let at = format!("{}'s retrier {index}", state.name);
            let Some(attempts) = number(retrier, "MaxAttempts") else {
                found.push(format!("{at} has no MaxAttempts"));
                continue;
            };
            if attempts > 0 {
                if text(retrier, "JitterStrategy") != "FULL" {
                    found.push(format!("{at} does not say JitterStrategy FULL"));
                }
                let interval = number(retrier, "IntervalSeconds").unwrap_or(0);
                if interval < 1 || number(retrier, "MaxDelaySeconds").is_none_or(|most| most <= interval) {
                    found.push(format!("{at} has no MaxDelaySeconds above its IntervalSeconds"));
                }
                if retrier.get("BackoffRate").and_then(Value::as_f64).is_none_or(|rate| rate < 1.5) {
                    found.push(format!("{at} does not back off"));
                }
            }
            let all = error_names(retrier).any(|name| name == "States.ALL");
            if all && (list(retrier, "ErrorEquals").len() > 1 || index + 1 < state.list("Retry").len()) {
                found.push(format!("{at} names States.ALL, which has to stand alone and last"));
            }
        }
    }
    found
}

/// Every task that invokes a function names every error kind once and retries it as its class says: `RetryLater`
/// is retried, `SomebodyElse` at most three times, nothing else at all. What has no name (a crash) is `States.ALL`.
pub fn misjudged_errors(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine).into_iter().filter(State::invokes_lambda) {
        for kind in ErrorKind::ALL {
            let attempts: Vec<_> = state
                .list("Retry")
                .iter()
                .filter(|retrier| error_names(retrier).any(|name| name == kind.name()))
                .filter_map(|retrier| number(retrier, "MaxAttempts"))
                .collect();
            let fits = match (kind.class(), attempts.as_slice()) {
                (Class::RetryLater, [attempts]) => *attempts >= 1,
                (Class::SomebodyElse, [attempts]) => (1..=3).contains(attempts),
                (_, [attempts]) => *attempts == 0,
                _ => false,
            };
            if !fits {
                found.push(format!("{} retries {kind} {attempts:?} times", state.name));
            }
        }
        if state.list("Retry").last().is_none_or(|last| !error_names(last).eq(["States.ALL"])) {
            found.push(format!("{} has no retrier for crashes", state.name));
        }
    }
    found
}

/// Every name in a Retry, a Catch or a Fail.
pub fn names(machine: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for state in states(machine) {
        for entry in state.list("Retry").iter().chain(state.list("Catch")) {
            names.extend(error_names(entry).map(str::to_owned));
        }
        let error = text(state.body, "Error");
        if state.kind() == "Fail" && expression::body(error).is_none() {
            names.insert(error.to_owned());
        }
    }
    names
}

/// The rule: a machine's names are exactly the code's error kinds and the platform's names listed here. Neither may
/// be missing: a kind that no machine names would never be retried or reported as what it is.
pub fn unknown_or_missing_names(machine: &Value) -> Findings {
    let known: BTreeSet<String> = ErrorKind::ALL
        .iter()
        .map(|kind| kind.name())
        .chain(PLATFORM_ERRORS.iter().copied())
        .map(str::to_owned)
        .collect();
    let used = names(machine);
    let unknown = used.difference(&known).map(|name| format!("{name} is no error of the code"));
    let missing = known.difference(&used).map(|name| format!("{name} is named nowhere"));
    unknown.chain(missing).collect()
}

/// A cause is taken only where it may be missing, empty, no JSON, or 32 KB long.
pub fn trusted_causes(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        for expression in placed(&state) {
            let text = expression.text;
            if !text.contains("errorOutput") {
                continue;
            }
            for field in ["Error", "Cause"] {
                let whole = format!("$states.errorOutput.{field}");
                let guarded = format!("$exists({whole}) ? ");
                let cut = format!("$substring($string({whole}), 0, ");
                if text.contains(&whole) && !text.contains(&guarded) {
                    found.push(format!("{}: {field} may be missing", expression.at));
                }
                if field == "Cause" && text.contains(&whole) && !text.contains(&cut) {
                    found.push(format!("{}: {field} may be 32 KB", expression.at));
                }
            }
            if text.contains("$parse(") || text.contains("errorOutput.Cause.") {
                found.push(format!("{}: a cause may be no JSON", expression.at));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::broken::{PAGE, assert_caught, assert_clean, put, remove};
    use super::*;
    use crate::project::machine;

    #[test]
    fn every_task_has_a_time_out_retries_and_a_catch() {
        assert_clean(unguarded);
        assert_caught(unguarded, PAGE, remove("TimeoutSeconds"), "BackfillPage has no TimeoutSeconds");
        assert_caught(unguarded, "/States/HandOver", remove("Retry"), "HandOver has no Retry");
        assert_caught(unguarded, "/States/Verify", remove("Catch"), "Verify does not catch");
        let some = put(json!(["Throttled"]));
        assert_caught(unguarded, "/States/Preflight/Catch/0/ErrorEquals", some, "Preflight does not catch");
    }

    #[test]
    fn every_retry_is_bounded_and_jittered() {
        assert_clean(loose_retries);
        let retry = "/States/Preflight/Retry/0";
        assert_caught(
            loose_retries,
            &format!("{retry}/JitterStrategy"),
            put(json!("HALF")),
            "JitterStrategy",
        );
        assert_caught(loose_retries, retry, remove("MaxDelaySeconds"), "MaxDelaySeconds");
        assert_caught(loose_retries, retry, remove("MaxAttempts"), "MaxAttempts");
        assert_caught(loose_retries, &format!("{retry}/BackoffRate"), put(json!(1)), "back off");
        assert_caught(
            loose_retries,
            &format!("{retry}/ErrorEquals"),
            put(json!(["Throttled", "States.ALL"])),
            "alone",
        );
    }

    #[test]
    fn an_error_is_retried_as_its_class_says() {
        assert_clean(misjudged_errors);
        let taken = format!("{PAGE}/Retry/1/MaxAttempts");
        assert_caught(misjudged_errors, &taken, put(json!(4)), "retries Superseded [4]");
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/2/MaxAttempts"),
            put(json!(1)),
            "retries AccessDenied [1]",
        );
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/0/ErrorEquals"),
            put(json!(["Throttled"])),
            "retries Contended []",
        );
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/3/ErrorEquals"),
            put(json!(["States.Timeout"])),
            "crashes",
        );
    }

    #[test]
    fn the_names_in_retry_catch_and_fail_are_the_codes() {
        assert_clean(unknown_or_missing_names);
        assert_caught(
            unknown_or_missing_names,
            "/States/NoPlan/Error",
            put(json!("NoPlan")),
            "NoPlan is no error",
        );
        let mut broken = serde_json::to_string(&machine("dynamodb-layout").unwrap()).unwrap();
        broken = broken.replace("\"Corruption\"", "\"Internal\"");
        let found = unknown_or_missing_names(&serde_json::from_str(&broken).unwrap());
        assert_eq!(found, ["Corruption is named nowhere"]);
    }

    #[test]
    fn a_cause_may_be_missing_empty_no_json_or_huge() {
        assert_clean(trusted_causes);
        let cause = "/States/Preflight/Catch/0/Assign/failure/cause";
        assert_caught(trusted_causes, cause, put(json!("{% $states.errorOutput.Cause %}")), "may be missing");
        assert_caught(
            trusted_causes,
            cause,
            put(json!("{% $parse($states.errorOutput.Cause).errorMessage %}")),
            "no JSON",
        );
        let whole = put(json!("{% $exists($states.errorOutput.Cause) ? $states.errorOutput.Cause : '' %}"));
        assert_caught(trusted_causes, cause, whole, "32 KB");
    }
}
