//! The live view: one look drawn in place at a terminal.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::IsTerminal;

use metashift::layout::records::segment::State as SegmentState;

use super::look::{Look, MOST_SHOWN_SEGMENTS, moment};

/// Width of a bar, in letters.
const BAR: usize = 30;

/// Segments in a row where there are too many for a row each.
const IN_A_ROW: usize = 64;

/// A line is cut here, so that it is one line on a terminal of 80 columns.
const MOST_LETTERS: usize = 79;

/// A terminal that can be drawn on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Screen {
    colours: bool,
}

#[derive(Debug, Clone, Copy)]
enum Colour {
    Good,
    Bad,
    Soft,
    Plain,
}

impl Screen {
    /// Standard output, if it is one.
    pub(super) fn of_this_process() -> Option<Self> {
        let (term, no_color) = (std::env::var_os("TERM"), std::env::var_os("NO_COLOR"));
        Self::new(std::io::stdout().is_terminal(), term.as_deref(), no_color.as_deref())
    }

    fn new(is_terminal: bool, term: Option<&OsStr>, no_color: Option<&OsStr>) -> Option<Self> {
        let can_move = term.is_some_and(|term| term != "dumb" && !term.is_empty());
        (is_terminal && can_move).then(|| Self { colours: no_color.is_none_or(OsStr::is_empty) })
    }

    /// From the top left corner of the terminal on, over what was there.
    pub(super) fn draw(self, table: &str, look: &Look, every: u64) -> String {
        let mut text = "\u{1b}[H\u{1b}[2J".to_owned();
        for (colour, line) in lines(table, look, every) {
            let line: String = line.chars().take(MOST_LETTERS).collect();
            let code = match colour {
                Colour::Good => "32",
                Colour::Bad => "31",
                Colour::Soft => "2",
                Colour::Plain => "",
            };
            let _infallible = if self.colours && !code.is_empty() {
                writeln!(text, "\u{1b}[{code}m{line}\u{1b}[0m")
            } else {
                writeln!(text, "{line}")
            };
        }
        text
    }
}

fn bar(done: u64, of: u64) -> String {
    let share = if of == 0 { 1.0 } else { done as f64 / of as f64 };
    let full = (0..BAR).filter(|n| (*n as f64 + 0.5) / BAR as f64 <= share).count();
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

fn lines(table: &str, look: &Look, every: u64) -> Vec<(Colour, String)> {
    let overview = &look.overview;
    let progress = overview.progress();
    let mut lines = vec![
        (Colour::Soft, format!("{table}  {}  every {every} s, Ctrl-C ends", moment(look.at))),
        (Colour::Plain, format!("{:<14}{}, authority {}", "phase", overview.phase(), look.authority())),
    ];
    let mut plain = |name: &str, text: String| lines.push((Colour::Plain, format!("{name:<14}{text}")));
    if let Some((done, of)) = look.done_of() {
        let share = if of == 0 { 100.0 } else { done as f64 / of as f64 * 100.0 };
        plain("items", format!("{} {share:.0} %, {done} of about {of}", bar(done, of)));
    }
    if overview.plan.is_some() {
        plain("backfill", format!("{} copied, {} already live", progress.copied, progress.already_live));
        let (read, written) = look.units();
        plain("units", format!("{read:.0} read, {written:.0} written"));
    }
    let rate = match (look.rate, look.done_of()) {
        (Some(rate), _) => format!("{rate:.0} items a second"),
        (None, Some(_)) => "not known yet".to_owned(),
        (None, None) => "nothing is being counted".to_owned(),
    };
    let left = look.seconds_left().map_or_else(String::new, |left| format!(", about {left:.0} s left"));
    let idle = look.idle_seconds().map_or_else(String::new, |idle| format!(", last progress {idle} s ago"));
    plain("rate", format!("{rate}{left}{idle}"));
    if let Some(units) = overview.control.write_units {
        plain("write rate", format!("at most {units} units a second"));
    }
    if overview.control.paused {
        lines.push((Colour::Bad, format!("{:<14}yes; metashift layout resume", "paused")));
    }
    lines.push(match look.barrier() {
        Some((held, deadline)) => (
            Colour::Bad,
            format!("{:<14}held for {held} s, until {} at the latest", "barrier", moment(deadline)),
        ),
        None if look.foreign_barrier() => {
            (Colour::Bad, format!("{:<14}stands, and no plan of ours knows it", "barrier"))
        }
        None if overview.leftovers.barrier => {
            (Colour::Plain, format!("{:<14}stays, so that nodes from before look at the marker", "barrier"))
        }
        None => (Colour::Plain, format!("{:<14}none", "barrier")),
    });
    if let Some(found) = &overview.verification {
        let colour = if found.differs() { Colour::Bad } else { Colour::Plain };
        let text = format!("{} of {} segments, {}", found.done, found.segments, found.verdict());
        lines.push((colour, format!("{:<14}{text}", "verification")));
    }
    lines.extend(segments(look));
    let stuck = progress.rejected + progress.diverged;
    if stuck > 0 {
        let text = format!(
            "{} rejected, {} diverged; metashift layout rejects",
            progress.rejected, progress.diverged
        );
        lines.push((Colour::Bad, format!("{:<14}{text}", "cannot move")));
    }
    lines.extend(look.named().into_iter().map(|(what, text)| (Colour::Bad, format!("  {what:<12}{text}"))));
    lines.extend(look.last_error().map(|error| (Colour::Bad, format!("{:<14}{error}", "last error"))));
    lines.into_iter().map(|(colour, text)| (colour, crate::output::plain(&text))).collect()
}

fn segments(look: &Look) -> Vec<(Colour, String)> {
    let segments = &look.overview.segments;
    let head = format!("{:<14}{} of {} done", "segments", look.segments_done(), segments.len());
    let mut lines = vec![(Colour::Plain, head)];
    if segments.len() > MOST_SHOWN_SEGMENTS {
        let letters: Vec<_> = segments
            .iter()
            .map(|one| match one.state {
                SegmentState::Done => '#',
                _ if one.scanned > 0 => '+',
                _ => '.',
            })
            .collect();
        let rows =
            letters.chunks(IN_A_ROW).map(|row| (Colour::Plain, format!("  {}", String::from_iter(row))));
        lines.extend(rows);
        lines.push((Colour::Soft, "  # done, + under way, . not begun".to_owned()));
        return lines;
    }
    let share = look.expected / segments.len().max(1) as u64;
    lines.extend(segments.iter().enumerate().map(|(number, one)| {
        if one.state == SegmentState::Done {
            return (Colour::Good, format!("  {number:>3} {} {} scanned, done", bar(1, 1), one.scanned));
        }
        // Segments are about equal; one that is not done is never shown full.
        let shown = bar(one.scanned.min(share.saturating_sub(share / 20)), share.max(1));
        (Colour::Plain, format!("  {number:>3} {shown} {} scanned", one.scanned))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_that_can_move_its_cursor_is_drawn_on_and_no_color_takes_the_colours() {
        let text = |text: &'static str| Some(OsStr::new(text));
        let drawn = |colours| Some(Screen { colours });
        assert_eq!(Screen::new(true, text("xterm"), None), drawn(true));
        assert_eq!(Screen::new(true, text("xterm"), text("")), drawn(true));
        assert_eq!(Screen::new(true, text("xterm"), text("1")), drawn(false));
        assert_eq!(Screen::new(true, text("dumb"), None), None);
        assert_eq!(Screen::new(true, None, None), None);
        assert_eq!(Screen::new(false, text("xterm"), None), None);
    }

    #[test]
    fn a_bar_is_empty_at_none_and_full_at_all() {
        assert_eq!(bar(0, 10), format!("[{}]", ".".repeat(BAR)));
        assert_eq!(bar(10, 10), format!("[{}]", "#".repeat(BAR)));
        assert_eq!(bar(5, 10).matches('#').count(), BAR / 2);
        assert_eq!(bar(0, 0), bar(1, 1));
    }
}
