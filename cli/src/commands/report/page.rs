//! How a report looks: one page of HTML with its style and its charts in it, and no script.

use std::time::Duration;

use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use metashift::catalog::inspect::Inspection;
use metashift::environment::elapsed;
use metashift::layout::records::segment::State as SegmentState;

use super::shape::{Buckets, Catalog, Charged, Layout, Pace, Phase, Shape, UnitState, reason_name};

/// Most rejects that the page lists; the command lists all.
const MOST_REJECTS: usize = 200;

/// Most letters of a key that the page shows.
const MOST_KEY_LETTERS: usize = 160;

/// Width of every chart, in its own units; it is stretched to the page, so no chart has text in it.
const WIDTH: f64 = 1000.0;

/// Height of a chart with a vertical axis, in its own units.
const HEIGHT: f64 = 120.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #5b6470; --line: #d5dae1; --bar: #2f6fb5; --faint: #c3d7ee; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #14171b; --soft: #a3abb5; --line: #363d46; --bar: #7fb2ea; --faint: #2c425b; --bad: #f2857c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 64rem; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
tbody th { font-weight: normal; color: var(--soft); width: 12rem; } td.text { min-width: 12rem; }
td.number, th.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
td.word, th.word { white-space: nowrap; overflow-wrap: normal; }
figure { margin: .5rem 0; } figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; color: var(--soft); font-size: .875rem; }
svg { width: 100%; display: block; } svg.tall { height: 7.5rem; } svg.flat { height: .9rem; }
svg .bar { fill: var(--bar); } svg .faint { fill: var(--faint); } svg .line { stroke: var(--line); vector-effect: non-scaling-stroke; }
ol.way { list-style: none; display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; padding: 0; }
ol.way li { flex: 1 1 9rem; border: 1px solid var(--line); border-left: .4rem solid var(--line); border-radius: .2rem; padding: .35rem .6rem; }
ol.way li.done, ol.way li.underWay { border-left-color: var(--bar); } ol.way li.underWay { border-left-style: dashed; } ol.way li.done { background: var(--faint); }
@media (max-width: 40rem) { body { padding: .75rem; } tbody th { width: 7.5rem; } th, td { padding: .25rem .35rem; } }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
";

/// The whole page.
pub(super) fn render(shape: &Shape) -> Markup {
    let layout = shape.layout.as_ref().map(|layout| &*layout.table);
    let about = layout.or(shape.catalog.as_ref().map(|catalog| &*catalog.store)).unwrap_or_default();
    let title = format!("metashift report: {about}");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p.soft { "made " (moment(shape.made_at)) }
                }
                main {
                    @if let Some(layout) = &shape.layout {
                        (summary(layout))
                        (timeline(&layout.phases()))
                        (throughput(&layout.paces()))
                        (segments(layout))
                        (cost(layout))
                        (verification(layout))
                        (rejects(layout))
                        (families(layout))
                        @if let Some(buckets) = &layout.buckets { (skew(buckets)) }
                    }
                    @if let Some(catalog) = &shape.catalog { (self::catalog(catalog)) }
                }
            }
        }
    }
}

fn section(id: &str, title: &str, content: &Markup) -> Markup {
    html! { section aria-labelledby=(id) { h2 id=(id) { (title) } (content) } }
}

/// How the cells of a column stand.
#[derive(Debug, Clone, Copy)]
enum Cells {
    /// Text that may be broken anywhere.
    Text,
    /// Words that stay together.
    Word,
    /// Numbers.
    Number,
}

impl Cells {
    fn class(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Word => "word",
            Self::Number => "number",
        }
    }
}

/// A table that scrolls by itself on a narrow screen, by keyboard too.
fn table(label: &str, header: &[(&str, Cells)], rows: &[Vec<String>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for (name, cells) in header { th scope="col" class=(cells.class()) { (name) } } } }
                tbody {
                    @for row in rows {
                        tr { @for (cell, (_, cells)) in row.iter().zip(header) { td class=(cells.class()) { (cell) } } }
                    }
                }
            }
        }
    }
}

/// Names and what they are, without a header.
fn facts(label: &str, rows: &[(&str, String)]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table { tbody { @for (name, text) in rows { tr { th scope="row" { (name) } td { (text) } } } } }
        }
    }
}

/// A chart with its name, and what its edges mean.
fn figure(label: &str, shape: &str, height: f64, drawn: &Markup, caption: &[String]) -> Markup {
    html! {
        figure {
            svg class=(shape) viewBox=(format!("0 0 {WIDTH} {height}")) preserveAspectRatio="none" role="img" aria-label=(label) { (drawn) }
            @if !caption.is_empty() { figcaption { @for text in caption { span { (text) } } } }
        }
    }
}

/// A rectangle with what it stands for.
fn bar(class: &str, (x, width): (f64, f64), (y, height): (f64, f64), says: &str) -> Markup {
    html! {
        rect class=(class) x=(format!("{x:.1}")) width=(format!("{width:.1}"))
            y=(format!("{y:.1}")) height=(format!("{height:.1}")) { title { (says) } }
    }
}

fn summary(layout: &Layout) -> Markup {
    let progress = layout.overview.progress();
    let authority = if layout.overview.leftovers.marker { "v2, for good" } else { "v1" };
    let rows = [
        ("phase", layout.overview.phase().to_owned()),
        ("authority", authority.to_owned()),
        ("items scanned", count(progress.scanned)),
        ("items copied", count(progress.copied)),
        ("found equal", count(progress.already_live)),
        ("cannot move", count(progress.rejected)),
        ("differ", count(progress.diverged)),
    ];
    section("summary", "Where it is", &facts("summary", &rows))
}

fn timeline(phases: &[Phase]) -> Markup {
    let (Some(first), Some(last)) =
        (phases.iter().map(|phase| phase.from).min(), phases.iter().map(|phase| phase.to).max())
    else {
        return section("timeline", "Timeline", &html! { p { "Nothing has run yet." } });
    };
    let whole = elapsed(first, last).as_secs_f64().max(0.001);
    let place = |at: Timestamp| elapsed(first, at).as_secs_f64() / whole * WIDTH;
    let chart = |phase: &Phase| {
        let width = (place(phase.to) - place(phase.from)).max(4.0);
        let x = place(phase.from).min(WIDTH - width);
        let says = format!("{} to {}", moment(phase.from), moment(phase.to));
        let drawn = html! { (bar("faint", (0.0, WIDTH), (4.0, 2.0), "")) (bar("bar", (x, width), (0.0, 10.0), &says)) };
        figure(&format!("when {} ran", phase.name), "flat", 10.0, &drawn, &[])
    };
    let rows: Vec<_> = phases
        .iter()
        .map(|phase| {
            vec![
                phase.name.to_owned(),
                moment(phase.from),
                duration(phase.took()),
                count(phase.items),
                format!("{:.0}", phase.rate()),
            ]
        })
        .collect();
    let header = [
        ("phase", Cells::Word),
        ("from", Cells::Word),
        ("took", Cells::Number),
        ("items", Cells::Number),
        ("items a second", Cells::Number),
    ];
    section(
        "timeline",
        "Timeline",
        &html! {
            @for phase in phases { p { (phase.name) ", " (duration(phase.took())) } (chart(phase)) }
            p.soft { (moment(first)) " to " (moment(last)) }
            (table("timeline", &header, &rows))
        },
    )
}

fn throughput(paces: &[Pace]) -> Markup {
    let (Some(first), Some(last)) = (paces.first(), paces.last()) else { return html! {} };
    let whole = elapsed(first.from, last.to).as_secs_f64().max(0.001);
    let most = paces.iter().map(|pace| pace.items_per_second).fold(0.001, f64::max);
    let place = |at: Timestamp| elapsed(first.from, at).as_secs_f64() / whole * WIDTH;
    let drawn = html! {
        line.line x1="0" x2=(WIDTH) y1="0.5" y2="0.5" {}
        line.line x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
        @for pace in paces {
            @let height = pace.items_per_second / most * (HEIGHT - 1.0);
            @let says = format!("{:.0} items a second until {}", pace.items_per_second, moment(pace.to));
            (bar("bar", (place(pace.from), place(pace.to) - place(pace.from)), (HEIGHT - height, height), &says))
        }
    };
    let caption = [moment(first.from), format!("top: {most:.0} items a second"), moment(last.to)];
    section(
        "throughput",
        "Throughput of the backfill",
        &html! {
            p { "Items a second: the average of each segment over its own time, added up. Time in which it stood still counts." }
            (figure("items a second while the backfill ran", "tall", HEIGHT, &drawn, &caption))
        },
    )
}

fn segments(layout: &Layout) -> Markup {
    let segments = &layout.overview.segments;
    if segments.is_empty() {
        return html! {};
    }
    let values: Vec<_> = segments.iter().map(|segment| segment.scanned).collect();
    let done = segments.iter().filter(|segment| segment.state == SegmentState::Done).count();
    section(
        "segments",
        "Segments",
        &html! {
            p { (done) " of " (segments.len()) " are done. Items scanned by each:" }
            (columns("items scanned by segment", "segment", &values))
        },
    )
}

/// A column for each value, as a share of the largest.
fn columns(label: &str, of: &str, values: &[u64]) -> Markup {
    let width = WIDTH / values.len().max(1) as f64;
    let gap = (width / 5.0).min(4.0);
    let most = values.iter().copied().max().unwrap_or(0);
    let drawn = html! {
        line.line x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
        @for (n, value) in values.iter().enumerate() {
            @let height = *value as f64 / most.max(1) as f64 * (HEIGHT - 1.0);
            @let says = format!("{of} {n}: {}", count(*value));
            (bar("bar", (n as f64 * width, width - gap), (HEIGHT - height, height), &says))
        }
    };
    let last = values.len().saturating_sub(1);
    let caption = [format!("{of} 0"), format!("top: {}", count(most)), format!("{of} {last}")];
    figure(label, "tall", HEIGHT, &drawn, &caption)
}

fn cost(layout: &Layout) -> Markup {
    let charged = layout.charged();
    if charged.is_empty() {
        return html! {};
    }
    let mut rows: Vec<_> =
        charged.iter().map(|one| charge(one.phase, one.read_units, one.write_units, one.dollars)).collect();
    let sum = |of: fn(&Charged) -> f64| charged.iter().map(of).sum::<f64>();
    rows.push(charge(
        "together",
        sum(|one| one.read_units),
        sum(|one| one.write_units),
        sum(|one| one.dollars),
    ));
    let header = [
        ("phase", Cells::Word),
        ("read units", Cells::Number),
        ("write units", Cells::Number),
        ("dollars", Cells::Number),
    ];
    let copied = layout.overview.progress().copied;
    let backfill: f64 = layout.overview.segments.iter().map(|one| one.write_units).sum();
    let conflicts: u64 = layout.overview.segments.iter().map(|one| one.conflicts).sum();
    section(
        "cost",
        "Units and dollars",
        &html! {
            (table("cost", &header, &rows))
            @if copied > 0 {
                p { (format!("{:.2}", backfill / copied as f64)) " write units an item copied; "
                    (count(conflicts)) " groups were lost to other writers or throttled, and sent again." }
            }
            p.soft { "Dollars at the on-demand price of us-east-1. Rehearsals, surveys and the writers' own requests are not in it." }
        },
    )
}

fn charge(phase: &str, read: f64, write: f64, dollars: f64) -> Vec<String> {
    vec![phase.to_owned(), format!("{read:.0}"), format!("{write:.0}"), format!("{dollars:.4}")]
}

fn verification(layout: &Layout) -> Markup {
    let Some(found) = &layout.overview.verification else {
        return section("verification", "Verification", &html! { p { "No cutover has verified yet." } });
    };
    let list: Vec<_> = found
        .mismatches
        .iter()
        .map(|one| vec![key(&one.key), crate::commands::layout::kind_name(one.kind)])
        .collect();
    section(
        "verification",
        "Verification",
        &html! {
            p { (found.done) " of " (found.segments) " segments; " (count(found.v1_items)) " items in v1, "
                (count(found.v2_items)) " in v2." }
            @if found.mismatched > 0 {
                p.bad { (count(found.mismatched)) " differences" @if (list.len() as u64) < found.mismatched { "; the first " (list.len()) } "." }
                (table("differences", &[("key", Cells::Text), ("difference", Cells::Word)], &list))
            } @else { p.bad[found.differs()] { (found.verdict()) "." } }
        },
    )
}

fn rejects(layout: &Layout) -> Markup {
    let rejects = &layout.rejects;
    if rejects.is_empty() {
        return section("rejects", "Keys that cannot move", &html! { p { "None." } });
    }
    let reasons: Vec<_> =
        layout.reasons().iter().map(|(reason, number)| format!("{} {reason}", count(*number))).collect();
    let rows: Vec<_> = rejects
        .iter()
        .take(MOST_REJECTS)
        .map(|one| vec![key(&one.key), reason_name(one), one.detail.clone()])
        .collect();
    let header = [("key", Cells::Text), ("reason", Cells::Word), ("detail", Cells::Text)];
    section(
        "rejects",
        "Keys that cannot move",
        &html! {
            p.bad { (rejects.len()) " in all: " (reasons.join(", ")) "."
                @if rejects.len() > MOST_REJECTS { " The first " (MOST_REJECTS) "; metashift layout rejects lists all." } }
            (table("rejects", &header, &rows))
        },
    )
}

fn families(layout: &Layout) -> Markup {
    let families = layout.families();
    if families.is_empty() {
        return html! {};
    }
    let rows: Vec<_> = families
        .iter()
        .map(|(name, items)| {
            vec![if name.is_empty() { "all others".to_owned() } else { name.clone() }, count(*items)]
        })
        .collect();
    let header = [("family", Cells::Text), ("items", Cells::Number)];
    section("families", "Items by family", &table("families", &header, &rows))
}

fn skew(buckets: &Buckets) -> Markup {
    section(
        "buckets",
        "How evenly the buckets are filled",
        &html! {
            @if buckets.families.is_empty() { p { "The new table is empty." } }
            @for (name, counts) in &buckets.families {
                @let most = counts.values().copied().max().unwrap_or(0);
                @let total: u64 = counts.values().sum();
                @let mean = total as f64 / counts.len().max(1) as f64;
                h3 { (name) }
                p { (counts.len()) " buckets, " (count(total)) " items, the fullest "
                    (format!("{:.2}", most as f64 / mean.max(0.001))) " times the mean" }
                @let values: Vec<_> = counts.values().copied().collect();
                (columns(&format!("items by bucket of {name}"), "bucket", &values))
            }
        },
    )
}

fn catalog(catalog: &Catalog) -> Markup {
    let found = &catalog.found;
    let mut rows = vec![
        ("store", catalog.store.clone()),
        ("format", found.format.to_string()),
        ("readers", if found.readable { "open it" } else { "refuse it" }.to_owned()),
        ("written by", found.writer_version.clone()),
        ("latest snapshot", count(found.snapshot_id)),
        ("batches so far", count(found.batch_seq)),
    ];
    match &found.under_way {
        None => rows.push(("marker", "none: nothing is under way".to_owned())),
        Some(unit) => {
            rows.push((
                "marker",
                format!(
                    "format {} to {}, begun at {}",
                    unit.from_format, unit.to_format, found.original_format
                ),
            ));
            let cursor = if unit.cursor.is_empty() { "at the start" } else { &unit.cursor };
            rows.push(("cursor", cursor.to_owned()));
        }
    }
    let units = catalog.units();
    let left =
        units.iter().filter(|unit| [UnitState::Planned, UnitState::UnderWay].contains(&unit.state)).count();
    section(
        "catalog",
        "Catalog",
        &html! {
            (facts("catalog", &rows))
            h3 { "Units" }
            ol.way {
                @for unit in &units {
                    @let from = unit.from.first().map_or_else(String::new, u64::to_string);
                    li.done[unit.state == UnitState::Done].underWay[unit.state == UnitState::UnderWay] {
                        "format " (from) " to " (unit.to) br; (unit.unit) br; strong { (unit.state.words()) }
                    }
                }
            }
            @if left == 0 { p { "Nothing to do: the store is at format " (found.to_format) "." } }
            @else { p { "Left on the way to format " (found.to_format) ": " (left) ". metashift catalog run --dry-run counts the records." } }
            (commit_log(found))
            (checkpoints(found))
        },
    )
}

fn commit_log(found: &Inspection) -> Markup {
    let Some(log) = &found.commit_log else { return html! {} };
    let rows = [
        ("began at batch", log.origin.map_or_else(|| "unknown".to_owned(), count)),
        ("last slot", count(log.last_slot)),
        ("not folded yet", count(log.unfolded)),
        ("may be deleted up to", count(log.floor)),
    ];
    let kept = log.last_slot.saturating_sub(log.floor).max(1) as f64;
    let folded = (1.0 - log.unfolded as f64 / kept).clamp(0.0, 1.0) * WIDTH;
    let drawn = html! {
        (bar("faint", (0.0, WIDTH), (0.0, 10.0), "not folded yet"))
        (bar("bar", (0.0, folded), (0.0, 10.0), "folded into the index"))
    };
    let caption = [
        format!("slot {}", count(log.floor)),
        "strong: folded into the index".to_owned(),
        format!("slot {}", count(log.last_slot)),
    ];
    html! {
        h3 { "Commit log" }
        (figure("slots of the commit log, folded and not", "flat", 10.0, &drawn, &caption))
        (facts("commit log", &rows))
    }
}

fn checkpoints(found: &Inspection) -> Markup {
    if found.checkpoints.is_empty() {
        return html! { h3 { "Checkpoints" } p { "None." } };
    }
    let rows: Vec<_> = found
        .checkpoints
        .iter()
        .map(|one| {
            let expires = one.expires.clone().unwrap_or_else(|| "never".to_owned());
            vec![
                one.name.clone().unwrap_or_else(|| one.id.clone()),
                one.created.clone(),
                if one.expired { format!("{expires} (over)") } else { expires },
                one.manifest_id.to_string(),
            ]
        })
        .collect();
    let header =
        [("name", Cells::Word), ("taken", Cells::Word), ("ends", Cells::Word), ("manifest", Cells::Number)];
    html! { h3 { "Checkpoints" } (table("checkpoints", &header, &rows)) }
}

/// A key, quoted; of a long one the beginning.
fn key(key: &str) -> String {
    let cut: String = key.chars().take(MOST_KEY_LETTERS).collect();
    if cut.len() == key.len() {
        format!("{key:?}")
    } else {
        format!("{cut:?}… ({} bytes)", count(key.len() as u64))
    }
}

/// RFC 3339 in UTC, to the second.
fn moment(at: Timestamp) -> String {
    at.strftime("%FT%TZ").to_string()
}

fn duration(took: Duration) -> String {
    let whole = took.as_secs();
    match whole {
        0..60 => format!("{:.1} s", took.as_secs_f64()),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days {} h", whole / 86400, whole % 86400 / 3600),
    }
}

/// A number with its thousands apart.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    #[test]
    fn durations_have_two_parts() {
        let shown =
            [0.25, 59.9, 61.0, 7260.0, 200_000.0].map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(shown, ["0.2 s", "59.9 s", "1 min 1 s", "2 h 1 min", "2 days 7 h"]);
    }

    #[test]
    fn a_long_key_is_cut_between_letters() {
        assert_eq!(key("tbl/\u{e9}"), "\"tbl/\u{e9}\"");
        let shown = key(&"\u{e9}".repeat(1000));
        assert!(shown.ends_with("\"… (2,000 bytes)") && shown.chars().count() < 200, "{shown}");
    }

    #[test]
    fn what_is_shown_is_escaped() {
        let header = [("key", Cells::Text)];
        let shown = table("x", &header, &[vec!["<script>alert(1)</script>".to_owned()]]).into_string();
        assert!(!shown.contains("<script>"), "{shown}");
    }
}
