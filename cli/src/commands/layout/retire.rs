//! `metashift layout retire`: what removing v1's user items would take. Removes nothing itself.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use metashift::environment::elapsed;
use metashift::layout::generation::final_plan;
use metashift::layout::key::RESERVED_PREFIX;
use metashift::layout::status::rehearsal;
use metashift::layout::transaction::Side;
use metashift::{Error, ErrorKind, Result};
use serde_json::json;

use crate::again::quoted;
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
    let plan = final_plan(&tables).await?;
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
    let commands = commands(tables.name(Side::V1), &args.tables.aws_flags().await);
    // Of the last audit, else of the cutover: DynamoDB's own count has the records of the migration in it.
    let items = match &plan.audited {
        Some(audited) => rehearsal(&tables, &plan, &audited.run).await?.v1_items,
        None => plan.cutover.as_ref().and_then(|cutover| cutover.verified).unwrap_or_default(),
    };
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

/// The commands that take v1's user items away, with these flags; the backup first.
fn commands(table: &str, flags: &str) -> Vec<String> {
    let (name, backup) = (quoted(table), quoted(&format!("{table}-before-retire")));
    let aws = |verb: &str| format!("aws dynamodb {verb}{flags}");
    vec![
        format!("{} --table-name {name} --backup-name {backup}", aws("create-backup")),
        format!("{} --table-name {name}   # go on once its status is AVAILABLE", aws("list-backups")),
        // 25 items a turn, as many as one request takes; what it leaves over, the next turn finds again.
        format!(
            "while batch=$({} --table-name {name} --consistent-read --page-size 100 --max-items 25 \\\n    \
             --projection-expression pk --filter-expression 'NOT begins_with(pk, :kept)' \\\n    \
             --expression-attribute-values '{{\":kept\":{{\"S\":\"{RESERVED_PREFIX}\"}}}}' \\\n    \
             --query {} --output json); do\n  \
             case $batch in *DeleteRequest*) ;; *) echo 'nothing is left'; break ;; esac\n  \
             {} --request-items \"$batch\" >/dev/null || break\ndone",
            aws("scan"),
            quoted(&format!("{{\"{table}\": Items[].{{DeleteRequest: {{Key: @}}}}}}")),
            aws("batch-write-item"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backup_comes_first_and_the_marker_stays() {
        let commands = commands("lake", " --region eu-west-1");
        assert!(commands.first().is_some_and(|first| first.contains("create-backup")));
        assert!(commands.last().is_some_and(|last| last.contains("NOT begins_with(pk, :kept)")));
        assert!(commands.iter().all(|command| command.contains("--region eu-west-1 --table-name lake")));
    }
}
