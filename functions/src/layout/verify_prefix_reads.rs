//! `verify-prefix-reads`.

use metashift::Result;
use metashift::layout::{input, steps};
use metashift::step::{Budget, StepOutput};
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value, budget: &Budget) -> Result<StepOutput> {
    let input: input::VerifyPrefixReadsInput = input::parse(raw)?;
    steps::verify_prefix_reads(&context.tables(&input)?, input, budget).await
}
