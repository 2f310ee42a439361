//! `install-barrier`.

use metashift::Result;
use metashift::layout::{input, steps};
use metashift::step::StepOutput;
use serde_json::Value;

use crate::context::Context;

pub(crate) async fn run(context: &Context, raw: Value) -> Result<StepOutput> {
    let input: input::InstallBarrierInput = input::parse(raw)?;
    steps::install_barrier(&context.tables(&input)?, input).await
}
