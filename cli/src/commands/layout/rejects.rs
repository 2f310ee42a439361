//! `metashift layout rejects`.

use clap::Args;
use metashift::Result;
use metashift::layout::generation::{load_plan, no_plan};
use metashift::layout::status;
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::Output;

#[derive(Debug, Args)]
pub(crate) struct RejectsArgs {
    #[command(flatten)]
    tables: TableArgs,
}

pub(crate) async fn run(args: RejectsArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let plan = load_plan(&tables).await?.ok_or_else(no_plan)?.record;
    let rejects = status::rejects(&tables, &plan).await?;
    output.emit(&json!({ "rejects": rejects }));
    if rejects.is_empty() {
        output.say("no key is rejected");
        return Ok(());
    }
    let reason = |reject: &metashift::layout::records::reject::Reject| {
        serde_json::to_value(reject.reason)
            .ok()
            .and_then(|text| text.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let rows = rejects
        .iter()
        .map(|reject| vec![crate::output::key(&reject.key), reason(reject), reject.detail.clone()]);
    output.table(&["key", "reason", "detail"], &rows.collect::<Vec<_>>());
    output.say(
        "mend or delete them (diverged: metashift layout repair), then metashift layout run clears them",
    );
    Ok(())
}
