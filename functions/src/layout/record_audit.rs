//! `record-audit`.

use metashift::Result;
use metashift::layout::{input, steps};
use metashift::step::StepOutput;
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let input: input::RecordAuditInput = input::parse(raw)?;
    steps::record_audit(&context.tables(&input)?, input).await
}
