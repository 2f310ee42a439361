//! What a person or a program sees.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use indicatif::{ProgressBar, ProgressStyle};
use metashift::Error;
use metashift::layout::run::{Event, Observer};
use metashift::step::Progress;
use serde_json::{Value, json};

/// A line on standard output. Whoever read it may have gone away (`| head`); the work goes on without them.
fn put(line: impl std::fmt::Display) {
    let _gone = writeln!(std::io::stdout(), "{line}");
}

/// Where everything that is said goes.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    json: bool,
    /// A command that has to tidy up handles Ctrl-C itself.
    handles_stop: Arc<AtomicBool>,
    /// What is kept when it is stopped.
    kept: Arc<Mutex<&'static str>>,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let kept = "everything done so far is kept, the same command goes on from there";
        Self { json, handles_stop: Arc::default(), kept: Arc::new(Mutex::new(kept)) }
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
            put(text.as_ref());
        }
    }

    /// A picture for a terminal, as it is.
    pub(crate) fn draw(&self, text: &str) {
        if !self.json {
            let mut out = std::io::stdout();
            let _gone = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// An object for a program; nothing for a person.
    pub(crate) fn emit(&self, value: &Value) {
        if self.json {
            put(value);
        }
    }

    /// Rows for a person, the object for a program.
    pub(crate) fn rows(&self, rows: &[(&str, String)], value: &Value) {
        if self.json {
            put(value);
            return;
        }
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        for (name, text) in rows {
            table.add_row([(*name).to_owned(), text.clone()]);
        }
        put(&table);
    }

    /// A table with a header, for a person.
    pub(crate) fn table(&self, header: &[&str], rows: Vec<Vec<String>>) {
        if self.json {
            return;
        }
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(header.iter().copied());
        table.add_rows(rows);
        put(&table);
    }

    /// How a command failed.
    pub(crate) fn error(&self, error: &Error) {
        if self.json {
            put(json!({ "error": {
                "name": error.kind().name(),
                "message": error.message(),
                "next": error.next_step(),
                "exitCode": error.kind().exit_code(),
            }}));
        } else {
            eprintln!("error: {}: {}", error.kind(), error.message());
            if let Some(next) = error.next_step() {
                eprintln!(" next: {next}");
            }
        }
    }

    /// Ctrl-C.
    pub(crate) fn stopped(&self) {
        if self.json {
            put(json!({ "stopped": true, "exitCode": 130 }));
        } else {
            eprintln!("\nstopped; {}", self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Shows a run's events: bars for a person at a terminal, lines elsewhere, objects for a program.
    ///
    /// `expected` is the number of items that one direction of a walk passes, where it is known.
    pub(crate) fn observer(&self, expected: Option<u64>) -> Observer {
        if self.json {
            return Arc::new(|event| put(event_json(&event)));
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
                Some(bar) => bar.println(text),
                None => eprintln!("{text}"),
            },
        }
    }

    fn scanned(&self) -> u64 {
        self.segments.values().map(|progress| progress.scanned).sum()
    }

    fn open(&self) -> ProgressBar {
        let directions = if matches!(self.name, "backfill" | "survey" | "verify exactly") { 1 } else { 2 };
        let bar = ProgressBar::new(self.expected.unwrap_or(0) * directions);
        let template = if self.expected.is_some() {
            "{prefix:>14} {wide_bar} {human_pos}/{human_len} items, {per_sec}, {eta} left, {msg}"
        } else {
            "{prefix:>14} {spinner} {human_pos} items, {per_sec}, {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
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
        eprintln!(
            "{:>14}: {} items scanned, {} written, {} equal, {} rejected, {} diverged",
            self.name, total.scanned, total.copied, total.already_live, total.rejected, total.diverged
        );
        self.name = "";
    }
}
