//! What a person or a program sees.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use jiff::Timestamp;
use metashift::layout::run::{Event, Observer};
use metashift::step::Progress;
use metashift::{Error, ErrorKind};
use serde_json::{Value, json};

use crate::again::Again;

/// Why standard output did not take something, the first time.
static UNWRITTEN: OnceLock<String> = OnceLock::new();

/// Keeps why something was not written. Whoever read it may have gone away (`| head`); the work goes on without them.
fn written(result: std::io::Result<()>) {
    if let Err(error) = result
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        // Only the first reason is of interest.
        let _known = UNWRITTEN.set(error.to_string());
    }
}

/// A line on standard output.
pub(crate) fn put(line: impl std::fmt::Display) {
    written(writeln!(std::io::stdout(), "{line}"));
}

/// A text on standard output, with nothing added.
pub(crate) fn put_raw(text: &str) {
    let mut out = std::io::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// The exit code of a command that has succeeded, unless its output could not be written.
pub(crate) fn ended(code: ExitCode, output: &Output) -> ExitCode {
    written(std::io::stdout().flush());
    let Some(reason) = UNWRITTEN.get() else { return code };
    let error = Error::new(ErrorKind::InvalidInput, format!("standard output took not all of it: {reason}"))
        .next("what was to be done is done; make room, or write it elsewhere, and run it again");
    output.error(&error);
    if output.is_json() {
        note(&error);
    }
    ExitCode::from(error.kind().exit_code())
}

/// A line on standard error, which may have gone away with its terminal.
fn note(line: impl std::fmt::Display) {
    let _gone = writeln!(std::io::stderr(), "{}", plain(&line.to_string()));
}

/// A text that moves no cursor and colours nothing, whoever wrote it: a server, or who named a key or an attribute.
pub(crate) fn plain(text: &str) -> String {
    let harmless = |c: char| c == '\n' || !(c.is_control() || turns_the_line(c));
    if text.chars().all(harmless) {
        return text.to_owned();
    }
    let shown = |c: char| if harmless(c) { c.to_string() } else { c.escape_unicode().to_string() };
    text.chars().map(shown).collect()
}

/// Characters that change the direction in which the others are shown.
fn turns_the_line(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON as a terminal may show it: a control character that JSON allows is spelled out.
fn put_json(value: &Value) {
    let text = value.to_string();
    let shown = |c: char| {
        if c.is_control() || turns_the_line(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() }
    };
    put(if text.chars().any(|c| c.is_control() || turns_the_line(c)) {
        text.chars().map(shown).collect()
    } else {
        text
    });
}

/// Ctrl-C, the end of the session, or a supervisor's request to end.
pub(crate) async fn stop_asked() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Ok(mut end) = signal(SignalKind::terminate()) {
            let hangup = if hangup_ends(&status) { signal(SignalKind::hangup()).ok() } else { None };
            let hung_up = async {
                match hangup {
                    Some(mut hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = end.recv() => {}
                _ = hung_up => {}
            }
            return;
        }
    }
    let _asked = tokio::signal::ctrl_c().await;
}

/// Whether SIGHUP, by the kernel's account of this process, would end it: not under `nohup`, which ignores it.
#[cfg(any(unix, test))]
fn hangup_ends(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 0)
}

/// A time for a person, with its zone.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%F %T UTC").to_string()
}

/// Most characters of a key in a table for a person; `--json` has all of it.
const MOST_SHOWN: usize = 100;

/// A key for a person: quoted, and cut where nobody would read on.
pub(crate) fn key(key: &str) -> String {
    if key.chars().count() <= MOST_SHOWN {
        return format!("{key:?}");
    }
    let head: String = key.chars().take(MOST_SHOWN).collect();
    format!("{head:?}… ({} bytes; --json has all of it)", key.len())
}

/// What to do next, also where the error came from so deep that nobody there could say.
fn next_of(error: &Error) -> Option<&str> {
    let usual = match error.kind() {
        ErrorKind::Corruption => {
            Some("change nothing by hand; bring what it names back from a copy, or go back to a checkpoint")
        }
        ErrorKind::InvalidInput => Some("the same command with --help shows what it takes"),
        // Every command finds out by itself whether its last write landed.
        ErrorKind::OutcomeUnknown => {
            return Some("run the same command again; it goes on from what is there");
        }
        _ => None,
    };
    error.next_step().or(usual)
}

/// The field of a cutover that nobody needs to see.
const SECRET: &str = "digestKey";

/// A table that fits the terminal, if there is one.
fn framed() -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    if std::io::stdout().is_terminal()
        && let Some((terminal_size::Width(width), _)) = terminal_size::terminal_size()
        && width > 0
    {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    table
}

/// The rate of a bar, without decimals that flicker.
pub(crate) fn with_rate(style: ProgressStyle) -> ProgressStyle {
    style.with_key("rate", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
        let _unwritten = write!(to, "{:.0}/s", state.per_sec());
    })
}

/// Where everything that is said goes.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    json: bool,
    /// How commands that are named are spelled.
    again: Arc<Again>,
    /// A command that has to tidy up handles Ctrl-C itself.
    handles_stop: Arc<AtomicBool>,
    /// What is kept when it is stopped.
    kept: Arc<Mutex<&'static str>>,
}

impl Output {
    pub(crate) fn new(json: bool, again: Again) -> Self {
        let kept = "everything done so far is kept, the same command goes on from there";
        Self { json, again: Arc::new(again), handles_stop: Arc::default(), kept: Arc::new(Mutex::new(kept)) }
    }

    /// Whether a program reads it.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// From here on the command handles Ctrl-C itself.
    pub(crate) fn handle_stop(&self) {
        self.handles_stop.store(true, Ordering::Release);
    }

    /// Whether the command handles Ctrl-C itself.
    pub(crate) fn stop_is_handled(&self) -> bool {
        self.handles_stop.load(Ordering::Acquire)
    }

    /// What to say is kept when the command is stopped.
    pub(crate) fn keeps(&self, what: &'static str) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// A line for a person; nothing for a program.
    pub(crate) fn say(&self, text: impl AsRef<str>) {
        if !self.json {
            put(plain(&self.again.spelled(text.as_ref())));
        }
    }

    /// A picture for a terminal, as it is.
    pub(crate) fn draw(&self, text: &str) {
        if !self.json {
            put_raw(text);
        }
    }

    /// An object for a program; nothing for a person. What it calls `next` and `steps` is spelled like a message.
    pub(crate) fn emit(&self, value: &Value) {
        if !self.json {
            return;
        }
        let mut value = value.clone();
        self.spell(&mut value);
        put_json(&value);
    }

    /// Spells every command that an object names under `next` or `steps`, and takes a cutover's secret out: who knows the key of
    /// the digest can write what it does not see.
    fn spell(&self, value: &mut Value) {
        let Value::Object(fields) = value else {
            if let Value::Array(all) = value {
                for one in all {
                    self.spell(one);
                }
            }
            return;
        };
        fields.remove(SECRET);
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("next", Value::String(text)) => *text = self.again.spelled(text),
                ("steps", Value::Array(steps)) => {
                    for step in steps {
                        match step {
                            Value::String(text) => *text = self.again.spelled(text),
                            other => self.spell(other),
                        }
                    }
                }
                (_, value) => self.spell(value),
            }
        }
    }

    /// Rows for a person, the object for a program.
    pub(crate) fn rows(&self, rows: &[(&str, String)], value: &Value) {
        if self.json {
            self.emit(value);
            return;
        }
        let mut table = framed();
        for (name, text) in rows {
            table.add_row([(*name).to_owned(), plain(&self.again.spelled(text))]);
        }
        put(&table);
    }

    /// A table with a header, for a person.
    pub(crate) fn table(&self, header: &[&str], rows: &[Vec<String>]) {
        if self.json {
            return;
        }
        let mut table = framed();
        table.set_header(header.iter().copied());
        table.add_rows(rows.iter().map(|row| row.iter().map(|cell| plain(cell))));
        put(&table);
    }

    /// How a command failed.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            put_json(&json!({ "error": {
                "name": error.kind().name(),
                "message": error.message(),
                "next": next_of(error).map(|next| self.again.spelled(next)),
                "exitCode": error.kind().exit_code(),
            }}));
        } else {
            note(format!("error: {}: {}", error.kind(), error.message()));
            if let Some(next) = next_of(error) {
                note(format!(" next: {}", self.again.spelled(next)));
            }
        }
    }

    /// Ctrl-C.
    pub(crate) fn stopped(&self) {
        if self.json {
            put(json!({ "stopped": true, "exitCode": 130 }));
        } else {
            note(format!("\nstopped; {}", self.kept.lock().unwrap_or_else(PoisonError::into_inner)));
        }
    }

    /// Shows a run's events: bars for a person at a terminal, lines elsewhere, objects for a program.
    ///
    /// `expected` is the number of items that one direction of a walk passes, where it is known.
    pub(crate) fn observer(&self, expected: Option<u64>) -> Observer {
        if self.json {
            return Arc::new(|event| put_json(&event_json(&event)));
        }
        let bars = Mutex::new(Bars::new(expected));
        Arc::new(move |event| bars.lock().unwrap_or_else(PoisonError::into_inner).show(event))
    }
}

fn event_json(event: &Event) -> Value {
    match event {
        Event::Phase { name, segments } => json!({ "phase": name, "segments": segments }),
        Event::Segment { name, segment, progress, consumed, done } => json!({
            "phase": name, "segment": segment, "progress": progress, "consumed": consumed, "done": done,
        }),
        Event::Note(text) => json!({ "note": text }),
    }
}

struct Bars {
    expected: Option<u64>,
    bar: Option<ProgressBar>,
    segments: HashMap<u32, Progress>,
    of: u32,
    done: u32,
    name: &'static str,
    /// What the last walk counted.
    last: String,
    terminal: bool,
}

impl Bars {
    fn new(expected: Option<u64>) -> Self {
        Self {
            expected,
            bar: None,
            segments: HashMap::new(),
            of: 0,
            done: 0,
            name: "",
            last: String::new(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Phase { name, segments } => {
                self.close();
                self.segments.clear();
                (self.name, self.of, self.done) = (name, segments, 0);
                if self.terminal {
                    self.bar = Some(self.open());
                }
            }
            Event::Segment { segment, progress, done, .. } => {
                self.segments.insert(segment, progress);
                self.done += u32::from(done);
                let scanned = self.scanned();
                if let Some(bar) = &self.bar {
                    bar.set_position(scanned);
                    bar.set_message(format!("{} of {} segments", self.done, self.of));
                }
                if self.done == self.of {
                    self.close();
                }
            }
            Event::Note(text) => match &self.bar {
                Some(bar) => bar.println(plain(&text)),
                None => note(text),
            },
        }
    }

    fn scanned(&self) -> u64 {
        self.segments.values().map(|progress| progress.scanned).sum()
    }

    fn open(&self) -> ProgressBar {
        let directions = if matches!(self.name, "backfill" | "survey") { 1 } else { 2 };
        let bar = ProgressBar::new(self.expected.unwrap_or(0) * directions);
        let template = if self.expected.is_some() {
            "{prefix:>14} {wide_bar} {human_pos}/{human_len} items, {rate}, {eta} left, {msg}"
        } else {
            "{prefix:>14} {spinner} {human_pos} items, {rate}, {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(with_rate(style));
        }
        bar.set_prefix(self.name);
        bar
    }

    fn close(&mut self) {
        if self.name.is_empty() {
            return;
        }
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let mut total = Progress::default();
        for progress in self.segments.values() {
            total += *progress;
        }
        let line = format!("{:>14}: {}", self.name, counts(self.name, total));
        if line == self.last {
            note(format!("{:>14}: done already", self.name));
        } else {
            note(&line);
        }
        self.last = line;
        self.name = "";
    }
}

/// What a walk of this name counted; what it never does is left out.
fn counts(name: &str, total: Progress) -> String {
    let mut parts = vec![format!("{} items scanned", total.scanned)];
    match name {
        "survey" => parts.push(format!("{} cannot move", total.rejected)),
        "backfill" | "repair" => {
            parts.extend([
                format!("{} written", total.copied),
                format!("{} equal", total.already_live),
                format!("{} rejected", total.rejected),
                format!("{} diverged", total.diverged),
            ]);
            let others = total.copied + total.already_live + total.rejected + total.diverged;
            let gone = total.scanned.saturating_sub(others);
            if name == "backfill" && gone > 0 {
                parts.push(format!("{gone} deleted meanwhile"));
            }
        }
        // What it digests is equal only once both digests are; differences end the run with their names.
        "verify" => {}
        _ => parts.push(format!("{} equal", total.already_live)),
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_could_say_is_said_here() {
        let unknown = Error::new(ErrorKind::OutcomeUnknown, "lost").next("read the key");
        assert!(next_of(&unknown).unwrap().starts_with("run the same command again"));
        assert!(next_of(&Error::new(ErrorKind::Corruption, "bytes")).unwrap().contains("by hand"));
        let own = Error::new(ErrorKind::InvalidInput, "no").next("name another");
        assert_eq!(next_of(&own), Some("name another"));
    }

    #[test]
    fn nothing_that_is_shown_moves_the_cursor_or_turns_the_line() {
        assert_eq!(
            plain("a\u{1b}[31mb\r\u{9b}2J\nc\u{202e}d\u{7f}ä"),
            "a\\u{1b}[31mb\\u{d}\\u{9b}2J\nc\\u{202e}d\\u{7f}ä"
        );
        assert_eq!(plain("as it is"), "as it is");
    }

    #[test]
    fn an_object_keeps_a_cutovers_secret_and_spells_its_commands_wherever_they_are() {
        let mut value = json!({
            "plan": { "cutover": { "epoch": "e", "digestKey": "secret" } },
            "blockers": [{ "next": "metashift layout run" }], "steps": ["metashift layout abort"],
        });
        let again = Again::default().with_flags(" --table t");
        Output::new(true, again).spell(&mut value);
        assert_eq!(
            value,
            json!({
                "plan": { "cutover": { "epoch": "e" } },
                "blockers": [{ "next": "metashift layout run --table t" }], "steps": ["metashift layout abort --table t"],
            })
        );
    }

    #[test]
    fn a_line_counts_what_its_walk_does_and_nothing_else() {
        let total = Progress { scanned: 9, copied: 4, already_live: 3, rejected: 2, ..Progress::default() };
        assert_eq!(counts("survey", total), "9 items scanned, 2 cannot move");
        assert_eq!(counts("backfill", total), "9 items scanned, 4 written, 3 equal, 2 rejected, 0 diverged");
        let gone = counts("backfill", Progress { scanned: 10, ..total });
        assert!(gone.ends_with("0 diverged, 1 deleted meanwhile"), "{gone}");
        assert_eq!(counts("rehearse", total), "9 items scanned, 3 equal");
        assert_eq!(counts("verify", total), "9 items scanned");
    }

    #[test]
    fn a_long_key_is_cut_at_a_character_and_says_how_long_it_is() {
        assert_eq!(key("tbl/a"), "\"tbl/a\"");
        let long = key(&"ä".repeat(600));
        assert!(long.chars().count() < 160 && long.contains("1200 bytes"), "{long}");
    }

    #[test]
    fn what_runs_under_nohup_outlives_its_session() {
        assert!(hangup_ends("Name:\tm\nSigIgn:\t0000000000001000\n"));
        assert!(!hangup_ends("Name:\tm\nSigIgn:\t0000000000001001\n"));
        assert!(!hangup_ends(""));
    }

    #[test]
    fn a_time_names_its_zone_and_no_fractions() {
        assert_eq!(time("2026-11-30T03:21:04.724520228Z".parse().unwrap()), "2026-11-30 03:21:04 UTC");
    }
}
