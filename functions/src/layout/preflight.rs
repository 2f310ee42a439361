//! `preflight`.

use aws_sdk_cloudwatch::Client;
use metashift::Result;
use metashift::layout::{cloudwatch, input, steps};
use metashift::step::StepOutput;
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let input: input::PreflightInput = input::parse(raw)?;
    let now = context.environment().now();
    let rate = cloudwatch::writes_per_second(&Client::new(context.config()), &input.table, now).await;
    if let Err(error) = &rate {
        tracing::warn!(message = %error, "the write rate is not known");
    }
    steps::preflight(&context.tables(&input)?, input, rate.ok().flatten()).await
}
