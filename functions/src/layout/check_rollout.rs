//! `check-rollout`: the acknowledgement in the input, or the metric in CloudWatch.

use aws_sdk_cloudwatch::Client;
use metashift::Result;
use metashift::layout::{cloudwatch, input, steps};
use metashift::step::StepOutput;
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let input: input::CheckRolloutInput = input::parse(raw)?;
    let minutes = match steps::rollout_question(&input)? {
        None => Vec::new(),
        Some(metric) => {
            cloudwatch::writer_modes(&Client::new(context.config()), metric, context.environment().now())
                .await?
        }
    };
    steps::check_rollout(context.environment(), &input, minutes)
}
