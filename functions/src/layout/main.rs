//! The Lambdas of the DynamoDB layout, packed as one binary: `METASHIFT_STEP` names the step that a function is.

mod backfill_page;
mod check_rollout;
mod context;
mod finish_repair;
mod install_barrier;
mod preflight;
mod publish_marker;
mod release_barrier;
mod repair_page;
mod verify;
mod verify_prefix_reads;

use std::io::Write;

use context::Context;
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use metashift::step::StepOutput;
use metashift::{Error, ErrorKind, Result};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::result::Result<(), lambda_runtime::Error> {
    tracing_subscriber::fmt().json().with_current_span(false).with_ansi(false).init();
    let context = Context::load().await?;
    lambda_runtime::run(service_fn(|event: LambdaEvent<Value>| handle(&context, event))).await
}

async fn handle(context: &Context, event: LambdaEvent<Value>) -> std::result::Result<StepOutput, Diagnostic> {
    let label = event.payload.get("migration").and_then(Value::as_str).map(str::to_owned);
    let started = context.environment().now();
    let ended = step(context, event.payload, event.context.deadline).await;
    let line = context.metrics(label.as_deref(), &ended, started);
    // The embedded metric format is a line of its own on standard output.
    let _written = writeln!(std::io::stdout().lock(), "{line}");
    ended.map_err(|error| {
        tracing::error!(error = error.kind().name(), message = %error, "the step failed");
        Diagnostic { error_type: error.kind().name().to_owned(), error_message: error.to_string() }
    })
}

async fn step(context: &Context, raw: Value, deadline_millis: u64) -> Result<StepOutput> {
    let budget = context.budget(deadline_millis)?;
    let context = &context.until(&budget);
    match context.step() {
        "preflight" => preflight::run(context, raw).await,
        "backfill-page" => backfill_page::run(context, raw, budget).await,
        "verify" => verify::run(context, raw, budget).await,
        "repair-page" => repair_page::run(context, raw, budget).await,
        "finish-repair" => finish_repair::run(context, raw).await,
        "check-rollout" => check_rollout::run(context, raw).await,
        "install-barrier" => install_barrier::run(context, raw).await,
        "publish-marker" => publish_marker::run(context, raw).await,
        "release-barrier" => release_barrier::run(context, raw).await,
        "verify-prefix-reads" => verify_prefix_reads::run(context, raw, &budget).await,
        other => {
            Err(Error::new(ErrorKind::InvalidInput, format!("METASHIFT_STEP is {other:?}, which is no step"))
                .next("deploy the template as it is"))
        }
    }
}
