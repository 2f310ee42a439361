//! Starting a deployed state machine, or attaching to one of its executions, and following it to its end.
//!
//! Needs `states:ListStateMachines`, `ListExecutions`, `StartExecution` and `DescribeExecution`, and for the progress
//! of a layout migration read access to v1; no permission to write data.

use std::future::Future;
use std::time::Duration;

use aws_sdk_sfn::Client;
use aws_sdk_sfn::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_sfn::types::{ExecutionStatus, StateMachineListItem};
use clap::Args;
use metashift::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::connect;
use crate::output::Output;

/// Time between two looks at an execution.
const POLL: Duration = Duration::from_secs(2);

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
}

impl Machine {
    /// The machine that the flags name, or the only one whose name ends with `suffix`.
    pub(crate) async fn find(args: &MachineArgs, suffix: &str, region: Option<&str>) -> Result<Self> {
        let client = Client::new(&connect::sdk_config(region).await);
        if let Some(attach) = &args.attach {
            return Ok(Self { client, arn: attach.clone() });
        }
        if let Some(arn) = &args.state_machine {
            return Ok(Self { client, arn: arn.clone() });
        }
        let listed: std::result::Result<Vec<StateMachineListItem>, _> =
            client.list_state_machines().into_paginator().items().send().collect().await;
        let mut found = listed.map_err(|error| failed("looking for the state machine", &error))?;
        found.retain(|one| one.name().ends_with(suffix));
        match found.as_slice() {
            [one] => Ok(Self { client, arn: one.state_machine_arn().to_owned() }),
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
    /// `Superseded` where that one is of another mode, table or store. `look` is waited for before one is started: what
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
        let differs = ["mode", "table", "store", "toFormat"].iter().find(|name| {
            let (theirs, ours) = (theirs.get(**name), input.get(**name));
            theirs.is_some() && ours.is_some() && theirs != ours
        });
        match differs {
            None => Ok(()),
            Some(name) => Err(Error::new(
                ErrorKind::Superseded,
                format!("{running} is for another {name}: {}", theirs.get(*name).unwrap_or(&Value::Null)),
            )
            .next("wait for it, or start beside it with --name")),
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
        announce(&arn, output);
        let mut shown = String::new();
        loop {
            let found = self
                .client
                .describe_execution()
                .execution_arn(&arn)
                .send()
                .await
                .map_err(|error| failed("following the execution", &error))?;
            let (line, object) = look().await?;
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
                    announce(&arn, output);
                }
                status => return Err(ended_badly(status, found.error(), found.cause())),
            }
        }
    }
}

fn announce(arn: &str, output: &Output) {
    let region = arn.split(':').nth(3).unwrap_or_default();
    output.say(format!("execution {arn}"));
    // A server on this machine has no console.
    if ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SFN"].iter().any(|name| std::env::var_os(name).is_some()) {
        output.emit(&json!({ "execution": arn }));
        return;
    }
    output.say(format!(
        "  https://{region}.console.aws.amazon.com/states/home?region={region}#/v2/executions/details/{arn}"
    ));
    output.emit(&json!({ "execution": arn }));
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
        None => DisplayErrorContext(error).to_string(),
    };
    let (kind, next) = match code {
        "AccessDeniedException" => {
            (ErrorKind::AccessDenied, "allow the command to list, start and describe executions")
        }
        "ExecutionAlreadyExists" => {
            (ErrorKind::InvalidInput, "give the run another --name, or follow it with --attach")
        }
        "StateMachineDoesNotExist" | "ExecutionDoesNotExist" | "InvalidArn" | "InvalidName" => {
            (ErrorKind::InvalidInput, "check --state-machine, --attach and --name")
        }
        _ if text.contains("credentials") => {
            return Error::new(
                ErrorKind::AccessDenied,
                format!("{what}: no usable AWS credentials were found"),
            )
            .next("set AWS credentials and a region, or run the steps in this process with --local");
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
