//! The command as a person uses it: stopped by Ctrl-C, aborted, asked to compare again.

use std::process::{Output, Stdio};
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use metashift::ErrorKind;
use metashift::error::Class;
use metashift::layout::cutover::install_barrier;
use metashift::layout::records::plan::State;
use metashift::layout::records::{BARRIER_KEY, BARRIER_VALUE, MARKER_KEY};
use metashift::layout::transaction::Side;
use metashift::layout::{Mode, Mutation};
use metashift_faults::{Fault, Rule};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdout, Command};

use super::support::{Lake, TABLE, start};

fn command(endpoint: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout"]).args(arguments);
    command.args(["--table", TABLE, "--endpoint", endpoint]).kill_on_drop(true);
    command
}

/// Exit code, and what it printed last.
fn ended(output: &Output) -> (Option<i32>, Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

async fn run(lake: &Lake, arguments: &[&str]) -> (Option<i32>, Value) {
    ended(&command(&lake.server.endpoint(), arguments).output().await.unwrap())
}

/// It is refused with this name and exit code, says what to do next, and changes nothing.
async fn assert_refused(lake: &Lake, arguments: &[&str], code: i32, name: &str) -> Value {
    let before = lake.everything().await;
    let (exit, said) = run(lake, arguments).await;
    assert_eq!((exit, said["error"]["name"].as_str()), (Some(code), Some(name)), "{arguments:?}: {said}");
    assert!(said["error"]["next"].is_string(), "{said}");
    assert!(before == lake.everything().await, "{arguments:?}: something was changed");
    said["error"].clone()
}

const FINALIZE: [&str; 8] = [
    "run",
    "--local",
    "--segments",
    "2",
    "--finalize",
    "--writes-paused",
    "--rollout-acknowledged",
    "--epoch",
];

fn finalize(epoch: &str) -> Vec<&str> {
    [&FINALIZE[..], &[epoch]].concat()
}

#[tokio::test]
async fn a_signal_during_a_cutover_releases_the_barrier_and_the_command_goes_on_later() {
    for (signal, held) in [
        ("-INT", "/verify/e1/v1/0"),
        ("-INT", "prefix-v2-authority"),
        ("-TERM", "/verify/e1/v1/0"),
        ("-HUP", "prefix-v2-authority"),
    ] {
        if signal == "-HUP" && hang_up_is_ignored() {
            continue;
        }
        let mut late = 0;
        while !is_interrupted(signal, held).await {
            // On a busy machine the held request may have been sent again before the signal came.
            late += 1;
            assert!(late < 5, "{signal}, {held}: no signal came in time");
        }
    }
}

/// Whether this process, and so what it starts, was told to outlive its session, as by `nohup`: the command keeps to that.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Signals a cutover while one of its requests is held, and checks what it leaves; false if it was over by then.
async fn is_interrupted(signal: &str, held: &str) -> bool {
    let lake = Lake::with_items(40).await;
    lake.run(2).backfill().await.unwrap();
    let proxy = lake.proxy().await;
    // The first request that mentions the marker takes the barrier.
    let skip = u64::from(held == "prefix-v2-authority");
    proxy.add(Rule::new("held", Fault::Hold).on("TransactWriteItems").mentioning(held).skip(skip).times(1));
    let mut cutover = command(&proxy.endpoint(), &finalize("e1"));
    let cutover = cutover.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    proxy.reached("held", 1).await;
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await.as_deref(), Some(BARRIER_VALUE));
    let pid = cutover.id().unwrap().to_string();
    // A cutover that is over has nobody to take the signal.
    let _sent = Command::new("kill").args([signal, &pid]).stderr(Stdio::null()).status().await.unwrap();
    let (code, said) = ended(&cutover.wait_with_output().await.unwrap());
    if code == Some(0) {
        assert_eq!(said["published"], true, "{held}: {said}");
        return false;
    }
    assert_eq!((code, &said["stopped"]), (Some(130), &Value::Bool(true)), "{held}: {said}");
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None, "{held}");
    assert_eq!(lake.plan().await.unwrap().state, State::Open, "{held}");
    let store = lake.store(Mode::Dual).await;
    assert_eq!(store.cas("tbl/probe", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    // What was on its way arrives and changes nothing.
    let before = lake.everything().await;
    proxy.release("held");
    proxy.idle().await;
    assert!(before == lake.everything().await, "{held}: a late request landed");
    assert_eq!(run(&lake, &finalize("e2")).await.0, Some(0), "{held}");
    assert_eq!(lake.assert_equal().await, 41);
    true
}

#[tokio::test]
async fn an_abort_names_what_stands_in_its_way_and_says_when_there_is_nothing_to_end() {
    let lake = Lake::with_items(20).await;
    assert_eq!(run(&lake, &["abort"]).await.1["outcome"], "notHeld");
    lake.put(Side::V1, BARRIER_KEY, BARRIER_VALUE).await;
    let foreign = assert_refused(&lake, &["abort"], 6, "ForeignLeftovers").await;
    assert!(foreign["next"].as_str().unwrap().contains("--adopt-foreign-barrier"), "{foreign}");
    lake.remove(Side::V1, BARRIER_KEY).await;
    lake.run(2).backfill().await.unwrap();
    let (code, said) = run(&lake, &["abort"]).await;
    assert_eq!((code, said["outcome"].as_str()), (Some(0), Some("notHeld")));
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let other = assert_refused(&lake, &["abort", "--epoch", "e0"], 5, "Superseded").await;
    assert!(other["next"].as_str().unwrap().contains("--epoch e1"), "{other}");
    let (code, said) = run(&lake, &["abort", "--epoch", "e1"]).await;
    assert_eq!((code, said["outcome"].as_str()), (Some(0), Some("released")));
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None);
    assert_eq!(run(&lake, &finalize("e2")).await.0, Some(0));
    for arguments in [&["abort"][..], &["abort", "--epoch", "e2"], &["abort", "--epoch", "e1"]] {
        assert_refused(&lake, arguments, 6, "AlreadyFinalized").await;
    }
    assert!(lake.value(Side::V1, MARKER_KEY).await.is_some());
}

#[tokio::test]
async fn an_audit_or_a_survey_that_is_done_is_followed_by_a_second_one_and_a_stopped_one_goes_on() {
    let lake = Lake::with_items(40).await;
    let survey = ["plan", "--survey", "--survey-id", "s", "--segments", "2", "--page-size", "10"];
    // Killed while the second write of its records is on its way, which never arrives.
    let stopped = async |arguments: &[&str], records: &str| {
        let proxy = lake.proxy().await;
        proxy.add(Rule::new("held", Fault::Hold).on("TransactWriteItems").mentioning(records).skip(1));
        let mut child = command(&proxy.endpoint(), arguments).stdout(Stdio::null()).spawn().unwrap();
        proxy.reached("held", 1).await;
        child.kill().await.unwrap();
    };
    let surveyed = async || {
        let (code, said) = run(&lake, &survey).await;
        assert_eq!((code, &said["survey"]["items"]), (Some(0), &Value::from(40)), "{said}");
        said["survey"]["id"].clone()
    };
    stopped(&survey, "/survey/s-2/").await;
    assert_eq!(surveyed().await, "s-2");
    assert_eq!(surveyed().await, "s-2-2");
    stopped(&survey, "/survey/s-2-3/").await;
    assert_eq!(surveyed().await, "s-2-3");

    assert_refused(&lake, &["audit"], 2, "PlanMismatch").await;
    assert_eq!(run(&lake, &finalize("e1")).await.0, Some(0));
    let audit = ["audit", "--audit-id", "a", "--page-size", "10"];
    let audited = async || {
        let (code, said) = run(&lake, &audit).await;
        assert_eq!((code, &said["v1Items"]), (Some(0), &Value::from(40)), "{said}");
        said["audit"].clone()
    };
    assert_eq!(audited().await, "audit-a");
    assert_eq!(lake.plan().await.unwrap().audited.unwrap().run, "audit-a");
    stopped(&audit, "/rehearse/audit-a-2/").await;
    assert_eq!(audited().await, "audit-a-2");
    assert_eq!(audited().await, "audit-a-3");
    assert_eq!(lake.plan().await.unwrap().audited.unwrap().run, "audit-a", "the first one counts");
}

#[tokio::test]
async fn a_repair_that_finds_what_it_cannot_mend_says_that_a_person_has_to() {
    let lake = Lake::with_items(10).await;
    lake.run(2).backfill().await.unwrap();
    lake.put(Side::V1, &format!("tbl/{}", "k".repeat(1021)), b"v").await;
    let (code, said) = run(&lake, &["repair", "--local"]).await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(3), Some("VerificationFailed")), "{said}");
    let next = said["error"]["next"].as_str().unwrap();
    assert!(next.contains("keyTooLong") && !next.contains("repair"), "{next}");
}

/// `layout status --watch` as a person calls it.
fn watch(endpoint: &str, program: &str, before: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(before).args(["layout", "status", "--watch", "--every", "1"]);
    command.args(["--table", TABLE, "--endpoint", endpoint]).kill_on_drop(true);
    command.env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// The next line that says this; every line is one look, in UTC and without escape codes.
async fn next_look(lines: &mut tokio::io::Lines<BufReader<ChildStdout>>, says: &str) -> String {
    loop {
        let line = lines.next_line().await.unwrap().expect("the watch goes on");
        assert!(!line.contains('\u{1b}'), "{line:?}");
        let at = line.split(' ').next().unwrap();
        assert!(at.ends_with('Z') && at.parse::<jiff::Timestamp>().is_ok(), "{line}");
        if line.contains(says) {
            return line;
        }
    }
}

#[tokio::test]
async fn a_watch_into_a_pipe_is_a_plain_line_a_look_outlives_an_outage_and_ends_with_130() {
    let lake = Lake::with_items(40).await;
    lake.put(Side::V1, &format!("tbl/{}", "k".repeat(1021)), b"v").await;
    lake.run(2).backfill().await.unwrap_err();
    let proxy = lake.proxy().await;
    let mut child = watch(&proxy.endpoint(), env!("CARGO_BIN_EXE_metashift"), &[]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = next_look(&mut lines, " backfill ").await;
    for part in ["authority=v1", "segments=2/2", "scanned=41", "rejected=1", "barrier=none", "cannot-move="] {
        assert!(first.contains(part), "no {part}: {first}");
    }
    proxy.add(Rule::new("down", Fault::DropBefore));
    let dark = next_look(&mut lines, "error=").await;
    assert!(dark.contains("Unavailable") && dark.contains("scanned=41"), "{dark}");
    proxy.remove("down");
    lake.remove(Side::V1, &format!("tbl/{}", "k".repeat(1021))).await;
    lake.run(2).backfill().await.unwrap();
    next_look(&mut lines, "rejected=0").await;
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let held = next_look(&mut lines, " finalizing ").await;
    assert!(held.contains("barrier=") && held.contains("s,until="), "{held}");
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
}

#[tokio::test]
async fn a_watch_at_a_terminal_is_drawn_in_place_and_has_no_colours_where_no_color_is_set() {
    let lake = Lake::with_items(40).await;
    assert_eq!(run(&lake, &finalize("e1")).await.0, Some(0));
    let on_a_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let before = ["-c", on_a_terminal, env!("CARGO_BIN_EXE_metashift")];
    let drawn = async |no_color: bool| {
        let mut command = watch(&lake.server.endpoint(), "python3", &before);
        if no_color {
            command.env("NO_COLOR", "1");
        }
        let output = command.output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "final: nothing left to watch: {text}");
        for part in ["\u{1b}[H", "final, authority v2", "2 of 2 done", "Z  every 1 s"] {
            assert!(text.contains(part), "no {part:?}: {text:?}");
        }
        // What sets a colour ends in m.
        let mut codes = text.split("\u{1b}[").skip(1);
        codes.any(|code| code.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'))
    };
    assert!(drawn(false).await, "colours at a terminal");
    assert!(!drawn(true).await, "no colours with NO_COLOR");
}

#[tokio::test]
async fn the_help_and_the_manual_page_say_every_exit_code() {
    let said = async |argument: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_metashift")).arg(argument).output().await.unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let (help, manual) = (said("--help").await, said("man").await);
    let manual = manual.split(".SH \"EXIT STATUS\"").nth(1).expect("a section of the manual page");
    for class in Class::ALL {
        let (code, means) = (class.exit_code(), class.meaning());
        assert!(help.contains(&format!("{code}  {means}")), "{help}");
        assert!(manual.contains(&format!("\\fB{code}\\fR\n{means}")), "{manual}");
    }
    for kind in ErrorKind::ALL {
        assert!(manual.contains(kind.name()), "{kind}");
    }
}

#[tokio::test]
async fn what_is_for_after_the_marker_says_so_before_it() {
    let lake = Lake::with_items(10).await;
    lake.run(2).backfill().await.unwrap();
    for arguments in [&["audit"][..], &["retire"], &["retire", "--dry-run"]] {
        let refused = assert_refused(&lake, arguments, 2, "PlanMismatch").await;
        assert!(refused["next"].as_str().unwrap().contains("--rehearse"), "{refused}");
    }
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    assert_refused(&lake, &["audit"], 5, "Superseded").await;
}

#[tokio::test]
async fn a_refused_retire_says_each_obstacle_once_and_a_dry_run_says_the_commands_too() {
    let lake = Lake::with_items(10).await;
    assert_eq!(run(&lake, &finalize("e1")).await.0, Some(0));
    let said = async |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command.env_clear().args(["layout", "retire", "--table", TABLE, "--endpoint"]);
        let output = command.arg(lake.server.endpoint()).args(arguments).output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for (arguments, code, listed) in [(&[][..], 3, 0), (&["--dry-run"], 0, 1)] {
        let (exit, text) = said(arguments).await;
        assert_eq!(exit, Some(code), "{text}");
        for (what, times) in [
            ("v1 is kept for 7 days", 1),
            ("no audit after the marker", 1),
            ("aws dynamodb create-backup", listed),
        ] {
            assert_eq!(text.matches(what).count(), times, "{arguments:?}, {what}: {text}");
        }
    }
}

#[tokio::test]
async fn no_companion_is_made_for_a_table_that_is_not_there_or_is_of_another_shape() {
    let lake = Lake::with_items(1).await;
    let wrong = format!("{TABLE}_prefix_v2");
    for (table, companion) in [("nowhere", "nowhere_prefix_v2"), (wrong.as_str(), "another")] {
        let of = async |arguments: &[&str], table: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
            command.env_clear().args(["--json", "layout"]).args(arguments);
            command.args(["--table", table, "--endpoint", &lake.server.endpoint()]);
            ended(&command.output().await.unwrap())
        };
        let (code, said) =
            of(&["run", "--local", "--create-companion", "--companion", companion], table).await;
        assert_eq!((code, &said["error"]["name"]), (Some(2), &Value::from("TableMismatch")), "{said}");
        let (_, said) = of(&["plan"], companion).await;
        assert!(said["error"]["message"].as_str().unwrap().contains("does not exist"), "{companion}: {said}");
    }
}

#[tokio::test]
async fn another_companion_than_the_plan_s_is_refused_before_one_is_made() {
    let lake = Lake::with_items(1).await;
    lake.run(2).backfill().await.unwrap();
    for arguments in [
        &["run", "--local", "--create-companion", "--companion", "nosuch"][..],
        &["status", "--companion", "nosuch"],
    ] {
        let refused = assert_refused(&lake, arguments, 2, "PlanMismatch").await;
        assert!(refused["next"].as_str().unwrap().contains("--companion lake_prefix_v2"), "{refused}");
    }
    let tables = lake.client.list_tables().send().await.unwrap();
    assert!(!tables.table_names().contains(&"nosuch".to_owned()), "{tables:?}");
}

#[tokio::test]
async fn the_commands_of_a_rollback_plan_work_in_their_order() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    let (_, plan) = run(&lake, &["rollback-plan"]).await;
    let mut ran = 0;
    for step in plan["steps"].as_array().unwrap() {
        let step = step.as_str().unwrap().split('#').next().unwrap();
        if step.contains("roll the nodes back") {
            lake.put(Side::V1, "tbl/v1-only", b"v").await;
        }
        // As it is printed: it names the table and the server itself.
        if let Some((_, arguments)) = step.split_once("metashift layout ") {
            let mut pasted = Command::new(env!("CARGO_BIN_EXE_metashift"));
            pasted
                .env_clear()
                .args(["--json", "layout"])
                .args(arguments.split_whitespace())
                .kill_on_drop(true);
            let output = tokio::time::timeout(Duration::from_secs(30), pasted.output()).await.expect(step);
            let (code, said) = ended(&output.unwrap());
            assert_eq!(code, Some(0), "{step}: {said}");
            ran += 1;
        }
    }
    assert_eq!((ran, lake.assert_equal().await), (5, 21));
}

#[tokio::test]
async fn a_rehearsal_that_finds_differences_names_the_command_that_lists_them() {
    let lake = Lake::with_items(10).await;
    for plant in ["extra", "odd"] {
        if plant == "extra" {
            lake.put(Side::V2, "tbl/extra", b"v").await;
        } else {
            lake.put_bare(Side::V2, "tbl/odd").await;
        }
        let (code, said) = run(&lake, &["run", "--local", "--segments", "2", "--rehearse"]).await;
        assert_eq!((code, &said["error"]["name"]), (Some(3), &Value::from("VerificationFailed")), "{said}");
        let next = said["error"]["next"].as_str().unwrap();
        assert!(next.contains("--local --dry-run lists") && !next.contains("layout status"), "{next}");
    }
}

#[tokio::test]
async fn after_the_marker_no_run_is_left_to_pause_and_an_audit_says_what_to_do_by_kind() {
    let lake = Lake::with_items(10).await;
    assert_eq!(run(&lake, &finalize("e1")).await.0, Some(0));
    assert_refused(&lake, &["pause"], 6, "AlreadyFinalized").await;
    assert_refused(&lake, &["throttle", "--write-units", "9"], 6, "AlreadyFinalized").await;
    for arguments in ["resume", "throttle"] {
        assert_eq!(run(&lake, &[arguments]).await.0, Some(0));
    }
    // Both heal as the audit says; the third is moved by hand.
    lake.put(Side::V1, "tbl/wanted", b"v").await;
    lake.put(Side::V2, "tbl/extra", b"v").await;
    lake.put_in(Side::V2, "odd", "tbl/lost", b"v").await;
    let audit = async || {
        let output = command(&lake.server.endpoint(), &["audit"]).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.lines().find(|line| line.contains("\"mend\"")).expect("what it found");
        (output.status.code(), serde_json::from_str::<Value>(found).unwrap())
    };
    let (code, found) = audit().await;
    let kinds: Vec<_> = found["mend"].as_object().unwrap().keys().cloned().collect();
    assert_eq!((code, kinds), (Some(3), ["extra", "missing", "wrongBucket"].map(str::to_owned).to_vec()));
    let store = lake.store(Mode::Dual).await;
    assert_eq!(store.cas("tbl/wanted", None, Some(b"v")).await.unwrap(), Mutation::Applied);
    assert_eq!(store.cas("tbl/extra", Some(b"v"), Some(b"w")).await.unwrap(), Mutation::Applied);
    let lost = lake.tables.layout().bucket("tbl/lost");
    lake.put_in(Side::V2, &lost, "tbl/lost", b"v").await;
    lake.put(Side::V1, "tbl/lost", b"v").await;
    lake.client
        .delete_item()
        .table_name(lake.tables.name(Side::V2))
        .key("pk", AttributeValue::S("tbl/lost".to_owned()))
        .key("bucket", AttributeValue::S("odd".to_owned()))
        .send()
        .await
        .unwrap();
    assert_eq!(audit().await.0, Some(0));
    assert_eq!(lake.assert_equal().await, 13);
}

#[tokio::test]
async fn writers_are_paused_or_stay_not_both() {
    let lake = Lake::with_items(1).await;
    let both = ["run", "--local", "--finalize", "--writes-paused", "--under-load", "--rollout-acknowledged"];
    let output = command(&lake.server.endpoint(), &both).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(lake.plan().await.is_none());
}

#[tokio::test]
async fn a_survey_takes_away_the_warning_that_asks_for_one() {
    let lake = Lake::with_items(10).await;
    let warned =
        async |arguments: &[&str]| run(&lake, arguments).await.1["warnings"].to_string().contains("--survey");
    assert!(warned(&["plan"]).await);
    assert!(!warned(&["plan", "--survey"]).await);
}

#[tokio::test]
async fn what_a_rehearsal_reads_is_among_the_units_of_the_run() {
    let lake = Lake::with_items(40).await;
    let units =
        async |arguments: &[&str]| run(&lake, arguments).await.1["consumed"]["readUnits"].as_f64().unwrap();
    units(&["run", "--local"]).await;
    let without = units(&["run", "--local"]).await;
    let with = units(&["run", "--local", "--rehearse"]).await;
    assert!(with >= without + 40.0, "{with} after {without}");
}

#[tokio::test]
async fn a_report_is_written_into_a_bucket_as_a_page() {
    let lake = Lake::with_items(10).await;
    lake.run(2).backfill().await.unwrap();
    let server = crate::ministack::Server::start().await;
    let report = async |place: &str| {
        let mut command = crate::ministack::Server::command(&server.endpoint());
        command.args(["report", "--table", TABLE, "--endpoint", &lake.server.endpoint(), "--html", place]);
        ended(&command.output().await.unwrap())
    };
    assert_eq!(report("s3://lake/reports/one.html").await.0, Some(0));
    let (status, page) =
        crate::http::send(&server.endpoint(), "GET", "/lake/reports/one.html", "").await.unwrap();
    assert!(status == 200 && page.contains("<html") && page.contains(TABLE), "{status}");
    let (code, said) = report("s3://nowhere/one.html").await;
    assert_eq!((code, &said["error"]["name"]), (Some(2), &Value::from("InvalidInput")), "{said}");
}

#[tokio::test]
async fn what_status_says_is_next_does_that_to_the_same_table() {
    let lake = Lake::with_items(10).await;
    let (code, said) = run(&lake, &["run", "--local", "--segments", "2"]).await;
    assert_eq!(code, Some(0), "{said}");
    let (_, said) = run(&lake, &["status"]).await;
    let next = said["next"].as_str().unwrap();
    let (_, named) = next.split_once("metashift layout ").unwrap();
    let (named, _) = named.split_once(" compares").unwrap();
    // As it is printed: nothing is added.
    let mut pasted = Command::new(env!("CARGO_BIN_EXE_metashift"));
    pasted.env_clear().args(["--json", "layout"]).args(named.split_whitespace()).kill_on_drop(true);
    let (code, said) = ended(&pasted.output().await.unwrap());
    assert_eq!(code, Some(0), "{named}: {said}");
}

#[tokio::test]
async fn who_may_only_read_can_look_at_a_dead_cutover_and_looking_ends_none() {
    let lake = Lake::with_items(20).await;
    lake.run(2).backfill().await.unwrap();
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let proxy = lake.proxy().await;
    let denied = Fault::Error { name: "AccessDeniedException".to_owned() };
    proxy.add(Rule::new("writes", denied).on("TransactWriteItems"));
    proxy.add(Rule::new("date", Fault::Date { seconds: Some(700) }).on("GetItem"));
    let before = lake.everything().await;
    for arguments in [&["status"][..], &["plan"], &["rejects"], &["rollback-plan"]] {
        let (code, said) = ended(&command(&proxy.endpoint(), arguments).output().await.unwrap());
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        if arguments == ["status"] {
            let next = said["next"].as_str().unwrap();
            assert!(next.contains("past its deadline") && next.contains("layout abort"), "{next}");
        }
    }
    let report = ["--json", "report", "--table", TABLE, "--endpoint"];
    let mut report_of = Command::new(env!("CARGO_BIN_EXE_metashift"));
    let said = report_of.env_clear().args(report).arg(proxy.endpoint()).output().await.unwrap();
    assert_eq!(ended(&said).0, Some(0));
    assert_eq!(proxy.hits("writes"), 0);
    proxy.remove("writes");
    // What sets something for a run ends none either.
    for arguments in [&["throttle", "--write-units", "50"][..], &["pause"], &["resume"], &["status"]] {
        assert_eq!(
            ended(&command(&proxy.endpoint(), arguments).output().await.unwrap()).0,
            Some(0),
            "{arguments:?}"
        );
    }
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await.as_deref(), Some(BARRIER_VALUE));
    let control = "__lake_internal/dynamo-prefix-v2/control";
    lake.remove(Side::V1, control).await;
    assert!(before == lake.everything().await, "looking has changed something");
    let (code, said) =
        ended(&command(&proxy.endpoint(), &["run", "--local", "--segments", "2"]).output().await.unwrap());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(lake.value(Side::V1, BARRIER_KEY).await, None, "a verb ends it");
}

#[tokio::test]
async fn no_output_has_the_secret_of_a_cutover_that_holds_the_barrier() {
    let lake = Lake::with_items(5).await;
    lake.run(2).backfill().await.unwrap();
    install_barrier(&lake.tables, &start("e1")).await.unwrap();
    let secret = lake.plan().await.unwrap().cutover.unwrap().digest_key;
    assert!(!secret.is_empty());
    let endpoint = lake.server.endpoint();
    for json in [true, false] {
        for arguments in [
            &["layout", "status"][..],
            &["layout", "plan"],
            &["layout", "rollback-plan"],
            &["layout", "rejects"],
            &["report"],
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
            command.env_clear().args(json.then_some("--json")).args(arguments).args(["--table", TABLE]);
            let output = command.args(["--endpoint", &endpoint]).kill_on_drop(true).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!said.contains(&secret) && !said.contains("digestKey"), "{arguments:?}: {said}");
        }
    }
}

#[tokio::test]
async fn names_of_attributes_and_keys_reach_the_terminal_without_control_characters() {
    let lake = Lake::with_items(5).await;
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let odd = lake.client.put_item().table_name(TABLE).item("pk", text("tbl/\u{1b}[31mred\u{9b}1m"));
    let odd = odd.item("val", AttributeValue::B(aws_sdk_dynamodb::primitives::Blob::new(b"v")));
    odd.item("\u{1b}]0;title\u{7}\u{9b}2J\u{202e}", text("more")).send().await.unwrap();
    let (code, said) = run(&lake, &["run", "--local", "--segments", "2"]).await;
    assert_eq!((code, said["error"]["name"].as_str()), (Some(3), Some("BlockedByRejects")), "{said}");
    for json in [true, false] {
        for arguments in
            [&["rejects"][..], &["status"], &["plan", "--survey"], &["status", "--watch", "--every", "1"]]
        {
            let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
            command.env_clear().args(json.then_some("--json")).arg("layout").args(arguments);
            command.args(["--table", TABLE, "--endpoint", &lake.server.endpoint()]).kill_on_drop(true);
            let said = if arguments.contains(&"--watch") {
                let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
                let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
                lines.next_line().await.unwrap().unwrap()
            } else {
                let output = command.output().await.unwrap();
                String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
            };
            let harmless = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
            assert!(said.chars().all(harmless), "{arguments:?}: {said:?}");
            if arguments == ["rejects"] {
                assert!(said.contains("title"), "{said}");
            }
        }
    }
}

#[tokio::test]
async fn a_companion_is_encrypted_as_v1_is_and_what_the_account_refuses_is_typed() {
    let lake = Lake::with_items(5).await;
    lake.client.delete_table().table_name("lake_prefix_v2").send().await.unwrap();
    let proxy = lake.proxy().await;
    let make = ["run", "--local", "--segments", "2", "--create-companion"];
    for (name, code, kind) in [
        ("LimitExceededException", 2, "TableMismatch"),
        ("ResourceInUseException", 4, "Contended"),
        ("KMSAccessDeniedException", 2, "AccessDenied"),
        ("AccessDeniedException", 2, "AccessDenied"),
    ] {
        proxy.add(Rule::new("refused", Fault::Error { name: name.to_owned() }).on("CreateTable"));
        let (exit, said) = ended(&command(&proxy.endpoint(), &make).output().await.unwrap());
        assert_eq!((exit, said["error"]["name"].as_str()), (Some(code), Some(kind)), "{name}: {said}");
        assert!(said["error"]["next"].is_string(), "{said}");
    }
    proxy.remove("refused");
    let key = "arn:aws:kms:us-east-1:000000000000:key/of-v1";
    let body = format!(
        r#"{{"Table":{{"TableName":"{TABLE}","TableStatus":"ACTIVE","KeySchema":[{{"AttributeName":"pk","KeyType":"HASH"}}],
        "AttributeDefinitions":[{{"AttributeName":"pk","AttributeType":"S"}}],
        "SSEDescription":{{"Status":"ENABLED","SSEType":"KMS","KMSMasterKeyArn":"{key}"}}}}}}"#
    );
    proxy.add(Rule::new("encrypted", Fault::Answer { body }).on("DescribeTable").table(TABLE));
    let asked = Fault::Delay { millis: 0 };
    proxy.add(Rule::new("key", asked).on("CreateTable").mentioning(key).mentioning("\"SSEType\":\"KMS\""));
    let (exit, said) = ended(&command(&proxy.endpoint(), &make).output().await.unwrap());
    assert_eq!((exit, proxy.hits("key")), (Some(0), 1), "{said}");
}
