//! `release-barrier`: a step's input, or the event of an execution that has ended.

use metashift::Result;
use metashift::layout::{input, steps};
use metashift::step::StepOutput;
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let (table, companion) =
        (std::env::var("METASHIFT_TABLE").ok(), std::env::var("METASHIFT_COMPANION").ok());
    let raw = input::release_of_event(&raw, table.as_deref(), companion.as_deref())?.unwrap_or(raw);
    let input: input::ReleaseBarrierInput = input::parse(raw)?;
    steps::release_barrier(&context.tables(&input)?, input).await
}
