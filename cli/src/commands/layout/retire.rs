//! `metashift layout retire`: what removing v1's user items would take. Removes nothing itself.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use metashift::environment::elapsed;
use metashift::layout::key::RESERVED_PREFIX;
use metashift::layout::transaction::Side;
use metashift::{Error, ErrorKind, Result};
use serde_json::json;

use crate::connect::TableArgs;
use crate::output::{Output, time};

#[derive(Debug, Args)]
pub(crate) struct RetireArgs {
    #[command(flatten)]
    tables: TableArgs,
    /// Days that v1 is kept after the cutover: at least one append-operation retention horizon.
    #[arg(long, default_value_t = 7)]
    horizon_days: u32,
    /// Lists what would go, whether or not it may go yet.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: RetireArgs, output: &Output) -> Result<()> {
    let tables = args.tables.tables().await?;
    let plan = super::final_plan(&tables).await?;
    let since = plan.taken_over_at.or(plan.cutover.as_ref().map(|cutover| cutover.installed_at)).ok_or_else(
        || Error::new(ErrorKind::Corruption, "a final plan says when neither it nor its takeover was"),
    )?;
    let age = elapsed(since, tables.environment().now());
    let horizon = Duration::from_secs(u64::from(args.horizon_days) * 24 * 3600);
    let mut obstacles = Vec::new();
    if age < horizon {
        obstacles.push(
            Error::new(
                ErrorKind::RolloutNotReady,
                format!(
                    "the cutover was at {}; v1 is kept for {} days, until {}",
                    time(since),
                    args.horizon_days,
                    time(since.saturating_add(horizon).unwrap_or(Timestamp::MAX))
                ),
            )
            .next("wait for the retention horizon"),
        );
    }
    if plan.audited.is_none() {
        obstacles.push(
            Error::new(
                ErrorKind::RolloutNotReady,
                "no audit after the marker has found the tables equal yet",
            )
            .next("metashift layout audit"),
        );
    }
    let commands = commands(tables.name(Side::V1));
    let items = tables.describe(Side::V1).await?.map_or(0, |facts| facts.items);
    output.emit(&json!({
        "userItems": items, "kept": RESERVED_PREFIX, "commands": commands,
        "obstacles": obstacles.iter().map(|one| json!({ "name": one.kind().name(), "message": one.message() }))
            .collect::<Vec<_>>(),
    }));
    output.say(format!(
        "about {items} items of {} would go; those under {RESERVED_PREFIX} stay, since every node reads the marker there",
        tables.name(Side::V1)
    ));
    let mut obstacles = obstacles.into_iter();
    // The one that the command ends with is said there.
    let refusal = if args.dry_run { None } else { obstacles.next() };
    for obstacle in obstacles {
        output.say(format!("not yet: {obstacle}"));
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    output.say("nothing was removed; these commands would, the backup first:\n");
    for command in &commands {
        output.say(format!("{command}\n"));
    }
    Ok(())
}

/// The commands that take v1's user items away; the backup first.
fn commands(table: &str) -> Vec<String> {
    vec![
        format!("aws dynamodb create-backup --table-name {table} --backup-name {table}-before-retire"),
        format!("aws dynamodb list-backups --table-name {table}   # go on once its status is AVAILABLE"),
        format!(
            "aws dynamodb scan --table-name {table} --projection-expression pk \\\n  \
             --filter-expression 'NOT begins_with(pk, :kept)' \\\n  \
             --expression-attribute-values '{{\":kept\":{{\"S\":\"{RESERVED_PREFIX}\"}}}}' --output json |\n  \
             jq -c '.Items as $all | range(0; $all | length; 25) as $n |\n    \
             {{\"{table}\": ($all[$n:$n + 25] | map({{DeleteRequest: {{Key: .}}}}))}}' |\n  \
             while IFS= read -r batch; do while [ \"$batch\" != '{{}}' ]; do\n    \
             batch=$(aws dynamodb batch-write-item --request-items \"$batch\" --query UnprocessedItems --output json) ||\n      \
             exit 1; done; done   # again until it lists nothing"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backup_comes_first_and_the_marker_stays() {
        let commands = commands("lake");
        assert!(commands.first().is_some_and(|first| first.contains("create-backup")));
        assert!(commands.last().is_some_and(|last| last.contains("NOT begins_with(pk, :kept)")));
    }
}
