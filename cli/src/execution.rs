//! Starting a deployed state machine, or attaching to one of its executions, and following it to its end.
//!
//! Needs `states:ListStateMachines`, `ListExecutions`, `StartExecution` and `DescribeExecution`, and for the progress
//! of a layout migration read access to v1; no permission to write data.

use std::future::Future;
use std::time::Duration;

use aws_sdk_sfn::Client;
use aws_sdk_sfn::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sfn::types::{ExecutionStatus, StateMachineListItem};
use clap::Args;
use metashift::catalog::driver::FINAL_LIFETIME;
use metashift::catalog::format::NEWEST;
use metashift::error::Class;
use metashift::layout::walk::DEFAULT_PAGE_SIZE;
use metashift::{Error, ErrorKind, Result, aws};
use serde_json::{Map, Value, json};

use crate::output::Output;

/// The service, by the name that settings have for it.
const SERVICE: &str = "SFN";

/// Time between two looks at an execution.
const POLL: Duration = Duration::from_secs(2);

/// Longest time between two looks, where they fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How many looks in a row may fail: about half an hour.
const MOST_FAILURES: u32 = 60;

/// Which state machine, and which execution of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineArgs {
    /// ARN of the deployed state machine; found by its name where there is one only.
    #[arg(long, value_name = "ARN", env = "METASHIFT_STATE_MACHINE")]
    state_machine: Option<String>,
    /// Name of the execution, and so of the run: 1 to 64 letters, digits, -, _ or .; a random one unless named.
    #[arg(long, value_parser = run_name)]
    name: Option<String>,
    /// Follows this execution, by its ARN, instead of starting one.
    #[arg(long, value_name = "ARN", conflicts_with = "name")]
    attach: Option<String>,
}

fn run_name(text: &str) -> std::result::Result<String, String> {
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&text.len()) && text.chars().all(valid) {
        return Ok(text.to_owned());
    }
    Err("1 to 64 letters, digits, -, _ or . are possible".to_owned())
}

/// A state machine that executions are started of.
pub(crate) struct Machine {
    client: Client,
    arn: String,
    /// A server that is not AWS has no console.
    console: bool,
}

impl Machine {
    /// The machine that the flags name, or the only one whose name ends with `suffix`.
    pub(crate) async fn find(args: &MachineArgs, suffix: &str, region: Option<&str>) -> Result<Self> {
        let config = aws::config(region).await;
        let (client, console) = (Client::new(&config), aws::endpoint(&config, SERVICE).is_none());
        if let Some(arn) = args.attach.as_ref().or(args.state_machine.as_ref()) {
            return Ok(Self { client, arn: arn.clone(), console });
        }
        let listed: std::result::Result<Vec<StateMachineListItem>, _> =
            client.list_state_machines().into_paginator().items().send().collect().await;
        let mut found = listed.map_err(|error| failed("looking for the state machine", &error))?;
        found.retain(|one| one.name().ends_with(suffix));
        match found.as_slice() {
            [one] => Ok(Self { client, arn: one.state_machine_arn().to_owned(), console }),
            [] => Err(Error::new(
                ErrorKind::InvalidInput,
                format!("no state machine whose name ends with {suffix} is deployed here"),
            )
            .next("deploy the template, or run the steps in this process with --local")),
            many => {
                let names: Vec<_> = many.iter().map(StateMachineListItem::state_machine_arn).collect();
                Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!("several are deployed: {}", names.join(", ")),
                )
                .next("name one with --state-machine"))
            }
        }
    }

    /// Starts an execution, or attaches to the one that is named or runs already, and gives its ARN.
    ///
    /// `Superseded` where that one was asked for anything else. `look` is waited for before one is started: what
    /// is wrong with the input is better said than started.
    pub(crate) async fn start(
        &self,
        args: &MachineArgs,
        id: &str,
        input: &Value,
        output: &Output,
        look: impl Future<Output = Result<()>>,
    ) -> Result<String> {
        if let Some(attach) = &args.attach {
            self.check_same(attach, input).await?;
            return Ok(attach.clone());
        }
        if args.name.is_none()
            && let Some(running) = self.running().await?
        {
            self.check_same(&running, input).await?;
            output
                .say("one is running already; following that (name another with --name to start beside it)");
            return Ok(running);
        }
        look.await?;
        let name = args.name.clone().unwrap_or_else(|| id.to_owned());
        let started = self
            .client
            .start_execution()
            .state_machine_arn(&self.arn)
            .name(&name)
            .input(input.to_string())
            .send()
            .await
            .map_err(|error| failed("starting the execution", &error))?;
        Ok(started.execution_arn)
    }

    /// `Superseded` where an execution was started for something else.
    async fn check_same(&self, running: &str, input: &Value) -> Result<()> {
        let theirs = self.input_of(running).await?;
        match difference(&theirs, input) {
            None => Ok(()),
            Some((name, theirs, ours)) => Err(Error::new(
                ErrorKind::Superseded,
                format!("{running} is for another {name}: {theirs}, where this command asks for {ours}"),
            )
            .next("wait for it, ask for the same to follow it, or start beside it with --name")),
        }
    }

    async fn running(&self) -> Result<Option<String>> {
        let listed = self
            .client
            .list_executions()
            .state_machine_arn(&self.arn)
            .status_filter(ExecutionStatus::Running)
            .send()
            .await
            .map_err(|error| failed("looking for a running execution", &error))?;
        // The audits after a cutover wait for days, and stand in nothing's way.
        for one in listed.executions() {
            if self.input_of(one.execution_arn()).await?.get("mode").is_none_or(|mode| mode != "audit") {
                return Ok(Some(one.execution_arn().to_owned()));
            }
        }
        Ok(None)
    }

    /// What an execution was started with; null where that is not known.
    async fn input_of(&self, execution: &str) -> Result<Value> {
        let found = self
            .client
            .describe_execution()
            .execution_arn(execution)
            .send()
            .await
            .map_err(|error| failed("looking at the execution", &error))?;
        Ok(found.input().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    /// Follows an execution and its successors to the end; gives the last one's output.
    ///
    /// `look` is called at each poll and gives a line for a person and an object for a program; a line is shown when it
    /// has changed.
    pub(crate) async fn follow<F, Fut>(&self, first: &str, output: &Output, look: F) -> Result<Value>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(String, Value)>>,
    {
        let mut arn = first.to_owned();
        self.announce(&arn, output);
        let mut shown = String::new();
        let mut failures = 0;
        loop {
            let looked = async {
                let found = self.client.describe_execution().execution_arn(&arn).send().await;
                let found = found.map_err(|error| failed("following the execution", &error))?;
                Ok::<_, Error>((found, look().await?))
            };
            let (found, (line, object)) = match looked.await {
                // The execution goes on whether it can be seen or not.
                Err(error) if error.kind().class() == Class::RetryLater && failures < MOST_FAILURES => {
                    if failures == 0 {
                        output.say(format!("it goes on, but cannot be seen: {}", error.message()));
                    }
                    failures += 1;
                    tokio::time::sleep((POLL * failures).min(LONGEST_PAUSE)).await;
                    continue;
                }
                looked => looked?,
            };
            failures = 0;
            if line != shown {
                output.say(&line);
                output.emit(&object);
                shown = line;
            }
            match found.status() {
                ExecutionStatus::Running | ExecutionStatus::PendingRedrive => tokio::time::sleep(POLL).await,
                ExecutionStatus::Succeeded => {
                    let ended: Value =
                        found.output().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
                    let successor = ended.get("successor").and_then(Value::as_str);
                    let (Some(successor), Some((base, _))) = (successor, arn.rsplit_once(':')) else {
                        return Ok(ended);
                    };
                    arn = format!("{base}:{successor}");
                    self.announce(&arn, output);
                }
                status => return Err(ended_badly(status, found.error(), found.cause())),
            }
        }
    }

    fn announce(&self, arn: &str, output: &Output) {
        let region = arn.split(':').nth(3).unwrap_or_default();
        output.say(format!("execution {arn}"));
        if self.console {
            output.say(format!(
                "  https://{region}.console.aws.amazon.com/states/home?region={region}#/v2/executions/details/{arn}"
            ));
        }
        output.emit(&json!({ "execution": arn }));
    }
}

/// What an execution does where its input leaves a field out; a field that is not here is then the stack's own.
fn left_out(name: &str) -> Option<Value> {
    Some(match name {
        "newGeneration"
        | "allowTtl"
        | "allowReplicas"
        | "discardForeignCursor"
        | "adoptForeignBarrier"
        | "dryRun"
        | "writesPaused"
        | "cutoverUnderLoad"
        | "checkpoint" => json!(false),
        "segments" | "layout" | "commitLogOrigin" => Value::Null,
        "onFailure" => json!("release"),
        "rollout" => json!({ "acknowledged": false }),
        "pageSize" => json!(DEFAULT_PAGE_SIZE),
        "finalCheckpointDays" => json!(FINAL_LIFETIME.as_secs() / 86_400),
        "toFormat" => json!(NEWEST),
        _ => return None,
    })
}

/// Fields that say how an execution goes on or how long its turns are, not what for.
const OF_THE_EXECUTION: [&str; 7] =
    ["version", "migration", "maxPages", "maxSteps", "turnLimit", "resume", "epoch"];

/// The first field in which two executions are for something else: its name, theirs, ours.
fn difference(theirs: &Value, ours: &Value) -> Option<(String, String, String)> {
    let names = [ours, theirs].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    let mut names: Vec<_> = names.filter(|name| !OF_THE_EXECUTION.contains(&name.as_str())).collect();
    // A successor carries the name of the repair that it goes on with.
    names.retain(|name| *name != "repairRun" || ours.get("repairRun").is_some());
    // What it is about before how it is done.
    let about = ["mode", "table", "companion", "store"];
    names.sort_by_key(|name| (about.iter().position(|one| one == name).unwrap_or(about.len()), *name));
    names.into_iter().find_map(|name| {
        let of = |input: &Value| input.get(name).cloned().or_else(|| left_out(name));
        let (theirs, ours) = (of(theirs), of(ours));
        let shown =
            |value: Option<Value>| value.map_or_else(|| "the stack's own".to_owned(), |it| it.to_string());
        (theirs != ours).then(|| (name.clone(), shown(theirs), shown(ours)))
    })
}

/// The error that an execution ended with, by its name in the vocabulary.
fn ended_badly(status: &ExecutionStatus, name: Option<&str>, cause: Option<&str>) -> Error {
    let cause = cause.unwrap_or("no cause was given");
    match status {
        ExecutionStatus::Aborted => {
            Error::new(ErrorKind::Superseded, "the execution was stopped by somebody")
                .next("see metashift layout status; the same command goes on from there")
        }
        ExecutionStatus::TimedOut => Error::new(ErrorKind::Timeout, "the execution ran out of time")
            .next("the same command goes on from there"),
        _ => {
            let name = name.unwrap_or_default();
            let kind = ErrorKind::ALL.iter().find(|kind| kind.name() == name).copied();
            match kind {
                Some(kind) => {
                    let text = step_message(cause, name);
                    match text.split_once("; next: ") {
                        Some((message, next)) => Error::new(kind, message).next(next),
                        None => Error::new(kind, text),
                    }
                }
                None => Error::new(ErrorKind::Internal, format!("the execution failed with {name}: {cause}"))
                    .next("see its events in the console"),
            }
        }
    }
}

/// What a step said, out of the JSON that Lambda wraps it in; other causes as they are.
fn step_message(cause: &str, name: &str) -> String {
    let wrapped: Option<Value> = serde_json::from_str(cause).ok();
    let message =
        wrapped.as_ref().and_then(|json| json.get("errorMessage")).and_then(Value::as_str).unwrap_or(cause);
    message.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message).to_owned()
}

fn failed<E, R>(what: &str, error: &SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: std::fmt::Debug + 'static,
{
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code).unwrap_or_default();
    let text = match error.as_service_error() {
        Some(service) => format!("{code}: {}", service.message().unwrap_or("no message")),
        None => aws::reason(error),
    };
    let (kind, next) = match code {
        "ThrottlingException" | "Throttling" | "TooManyRequestsException" | "RequestLimitExceeded" => {
            (ErrorKind::Throttled, "run it again; what runs already goes on")
        }
        "ExpiredTokenException"
        | "ExpiredToken"
        | "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken" => (ErrorKind::AccessDenied, aws::NEEDS_CREDENTIALS),
        "AccessDeniedException" => {
            (ErrorKind::AccessDenied, "allow the command to list, start and describe executions")
        }
        "ExecutionAlreadyExists" => {
            (ErrorKind::InvalidInput, "give the run another --name, or follow it with --attach")
        }
        "StateMachineDoesNotExist" | "ExecutionDoesNotExist" | "InvalidArn" | "InvalidName" => {
            (ErrorKind::InvalidInput, "check --state-machine, --attach and --name")
        }
        _ if text.contains("credential") => {
            return Error::new(
                ErrorKind::AccessDenied,
                format!("{what}: no usable AWS credentials were found: {text}"),
            )
            .next(format!("{}; --local runs the steps in this process", aws::NEEDS_CREDENTIALS));
        }
        _ if text.contains("region") && code.is_empty() => {
            return Error::new(ErrorKind::InvalidInput, format!("{what}: no AWS region is set"))
                .next("set AWS_REGION or --region, or run the steps in this process with --local");
        }
        _ => (ErrorKind::Unavailable, "check the network and the region, then run it again"),
    };
    Error::new(kind, format!("{what}: {text}")).next(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_an_execution_cannot_have_is_refused_before_it_starts() {
        assert_eq!(run_name("run-1_a.b").as_deref(), Ok("run-1_a.b"));
        for name in ["", "bad name", &"n".repeat(65)] {
            assert!(run_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn an_execution_is_the_same_if_nothing_that_was_asked_differs() {
        let differs = |theirs: Value, ours: Value| difference(&theirs, &ours).map(|(name, ..)| name);
        let ours =
            json!({ "version": 1, "mode": "backfill", "table": "t", "companion": "c", "pageSize": 200 });
        let with = |name: &str, value: Value| {
            let mut input = ours.clone();
            input[name] = value;
            input
        };
        assert_eq!(differs(ours.clone(), ours.clone()), None);
        let successor = json!({ "run": "r", "number": 1, "phase": "backfill" });
        for same in [
            with("resume", successor),
            with("epoch", json!("e")),
            with("repairRun", json!("r")),
            with("newGeneration", json!(false)),
            with("segments", Value::Null),
            with("onFailure", json!("release")),
        ] {
            assert_eq!(differs(same, ours.clone()), None);
        }
        for (name, value) in [
            ("newGeneration", json!(true)),
            ("segments", json!(8)),
            ("pageSize", json!(50)),
            ("layout", json!({ "version": 1 })),
            ("onFailure", json!("hold")),
            ("deadlineSeconds", json!(60)),
            ("allowTtl", json!(true)),
            ("rollout", json!({ "acknowledged": true })),
            ("companion", json!("other")),
            ("another", json!(1)),
        ] {
            assert_eq!(differs(with(name, value.clone()), ours.clone()).as_deref(), Some(name));
            assert_eq!(differs(ours.clone(), with(name, value)).as_deref(), Some(name));
        }
        // Which table a stack works on cannot be seen here.
        assert_eq!(differs(json!({ "mode": "backfill" }), ours).as_deref(), Some("table"));
        let catalog = json!({ "mode": "run", "store": "s", "toFormat": 12, "checkpoint": true, "finalCheckpointDays": 7 });
        assert_eq!(differs(json!({ "mode": "run", "store": "s" }), catalog).as_deref(), Some("checkpoint"));
    }

    #[test]
    fn a_failed_execution_ends_with_the_error_that_it_names() {
        let kind = |name| ended_badly(&ExecutionStatus::Failed, Some(name), Some("c")).kind();
        assert_eq!(kind("BlockedByRejects"), ErrorKind::BlockedByRejects);
        assert_eq!(kind("States.Timeout"), ErrorKind::Internal);
        let cause = r#"{"errorType":"Throttled","errorMessage":"Throttled: too fast; next: run it again"}"#;
        let error = ended_badly(&ExecutionStatus::Failed, Some("Throttled"), Some(cause));
        assert_eq!((error.message(), error.next_step()), ("too fast", Some("run it again")));
        assert_eq!(ended_badly(&ExecutionStatus::Aborted, None, None).kind(), ErrorKind::Superseded);
    }
}
