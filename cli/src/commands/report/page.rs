//! How a report looks: one page of HTML with its style and its charts in it, and no script.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use metashift::layout::records::segment::State as SegmentState;
use serde_json::Value;

use super::shape::{Buckets, Phase, Shape};

/// Most rejects that the page lists; the command lists all.
const MOST_REJECTS: usize = 200;

/// Width of every chart, in its own units; it scales with the page.
const WIDTH: f64 = 1000.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #5b6470; --line: #d5dae1; --bar: #2f6fb5; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --paper: #14171b; --soft: #a3abb5; --line: #363d46; --bar: #7fb2ea; --bad: #f2857c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 64rem; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--bar); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 14px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .line { stroke: var(--line); }
@media (max-width: 40rem) { body { padding: .75rem; } th, td { padding: .25rem .35rem; } svg text { font-size: 24px; } }
";

/// The whole page.
pub(super) fn render(shape: &Shape) -> Markup {
    let title = format!("metashift report: {}", shape.table);
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
                    p.soft { "made " (shape.made_at.strftime("%F %T UTC").to_string()) }
                }
                main {
                    (summary(shape))
                    (timeline(&shape.phases()))
                    (segments(shape))
                    (cost(shape))
                    (verification(shape))
                    (rejects(shape))
                    (families(shape))
                    @if let Some(buckets) = &shape.buckets { (skew(buckets)) }
                    @if !shape.catalog.is_null() { (catalog(&shape.catalog)) }
                }
            }
        }
    }
}

fn section(id: &str, title: &str, content: &Markup) -> Markup {
    html! { section aria-labelledby=(id) { h2 id=(id) { (title) } (content) } }
}

/// A table that scrolls by itself on a narrow screen, by keyboard too.
fn table(label: &str, header: &[&str], rows: &[Vec<String>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(label) {
            table {
                thead { tr { @for (n, name) in header.iter().enumerate() { th scope="col" class=[number(n)] { (name) } } } }
                tbody { @for row in rows { tr { @for (n, cell) in row.iter().enumerate() { td class=[number(n)] { (cell) } } } } }
            }
        }
    }
}

fn number(column: usize) -> Option<&'static str> {
    (column > 0).then_some("number")
}

fn summary(shape: &Shape) -> Markup {
    let progress = shape.overview.progress();
    let authority = if shape.overview.leftovers.marker { "v2, for good" } else { "v1" };
    let rows = [
        ("phase", shape.overview.phase().to_owned()),
        ("authority", authority.to_owned()),
        ("items scanned", count(progress.scanned)),
        ("items copied", count(progress.copied)),
        ("found equal", count(progress.already_live)),
        ("cannot move", count(progress.rejected)),
        ("differ", count(progress.diverged)),
    ];
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    section("summary", "Where it is", &table("summary", &["", ""], &rows))
}

fn timeline(phases: &[Phase]) -> Markup {
    let (Some(first), Some(last)) =
        (phases.iter().map(|phase| phase.from).min(), phases.iter().map(|phase| phase.to).max())
    else {
        return section("timeline", "Timeline", &html! { p { "Nothing has run yet." } });
    };
    let whole = metashift::environment::elapsed(first, last).as_secs_f64().max(0.001);
    let place = |at: jiff::Timestamp| {
        metashift::environment::elapsed(first, at).as_secs_f64() / whole * (WIDTH - 220.0)
    };
    let height = 40 * phases.len();
    let chart = html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="phases on a timeline" {
            @for (n, phase) in phases.iter().enumerate() {
                text x="0" y=(40 * n + 24) { (phase.name) }
                rect.bar x=(format!("{:.1}", 200.0 + place(phase.from))) y=(40 * n + 8)
                    width=(format!("{:.1}", (place(phase.to) - place(phase.from)).max(3.0))) height="22" rx="2" {}
            }
        }
    };
    let rows: Vec<_> = phases
        .iter()
        .map(|phase| {
            vec![
                phase.name.to_owned(),
                phase.from.strftime("%F %T").to_string(),
                format!("{:.1} s", phase.seconds()),
                count(phase.items),
                format!("{:.0}", phase.rate()),
            ]
        })
        .collect();
    let header = ["phase", "from (UTC)", "took", "items", "items a second"];
    section("timeline", "Timeline", &html! { (chart) (table("timeline", &header, &rows)) })
}

fn segments(shape: &Shape) -> Markup {
    let segments = &shape.overview.segments;
    if segments.is_empty() {
        return html! {};
    }
    let most = segments.iter().map(|segment| segment.scanned).max().unwrap_or(1).max(1);
    let values: Vec<_> = segments.iter().map(|segment| (segment.scanned, most)).collect();
    let done = segments.iter().filter(|segment| segment.state == SegmentState::Done).count();
    section(
        "segments",
        "Segments",
        &html! {
            p { (done) " of " (segments.len()) " are done. Items scanned by each:" }
            (columns("items scanned by segment", &values))
        },
    )
}

/// A column for each value, as a share of the largest.
fn columns(label: &str, values: &[(u64, u64)]) -> Markup {
    let width = WIDTH / values.len().max(1) as f64;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} 122")) role="img" aria-label=(label) {
            line.line x1="0" x2=(WIDTH) y1="121" y2="121" {}
            @for (n, (value, most)) in values.iter().enumerate() {
                @let height = *value as f64 / *most as f64 * 116.0;
                rect.bar x=(format!("{:.1}", n as f64 * width)) y=(format!("{:.1}", 120.0 - height))
                    width=(format!("{:.1}", (width - 2.0).max(1.0))) height=(format!("{height:.1}")) {
                    title { (value) }
                }
            }
        }
    }
}

fn cost(shape: &Shape) -> Markup {
    let (read, write) = shape.units();
    let copied = shape.overview.progress().copied.max(1) as f64;
    let rows = [
        ("read units", format!("{read:.0}")),
        ("write units", format!("{write:.0}")),
        ("write units an item copied", format!("{:.2}", write / copied)),
        ("dollars (on-demand, us-east-1)", format!("{:.4}", shape.dollars())),
        ("throttled or lost to others", count(shape.overview.segments.iter().map(|one| one.conflicts).sum())),
    ];
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    section("cost", "What the backfill was charged", &table("cost", &["", ""], &rows))
}

fn verification(shape: &Shape) -> Markup {
    let Some(found) = &shape.overview.verification else {
        return section("verification", "Verification", &html! { p { "No cutover has verified yet." } });
    };
    let list: Vec<_> = found
        .mismatches
        .iter()
        .map(|one| vec![format!("{:?}", one.key), crate::commands::layout::kind_name(one.kind)])
        .collect();
    section(
        "verification",
        "Verification",
        &html! {
            p { (found.done) " of " (found.segments) " segments; " (count(found.v1_items)) " items in v1, "
                (count(found.v2_items)) " in v2." }
            @if found.mismatched == 0 { p { "No difference." } }
            @else {
                p.bad { (count(found.mismatched)) " differences." }
                (table("differences", &["key", "difference"], &list))
            }
        },
    )
}

fn rejects(shape: &Shape) -> Markup {
    if shape.rejects.is_empty() {
        return section("rejects", "Keys that cannot move", &html! { p { "None." } });
    }
    let rows: Vec<_> = shape
        .rejects
        .iter()
        .take(MOST_REJECTS)
        .map(|one| vec![format!("{:?}", one.key), format!("{:?}", one.reason), one.detail.clone()])
        .collect();
    section(
        "rejects",
        "Keys that cannot move",
        &html! {
            p.bad { (shape.rejects.len()) " in all"
                @if shape.rejects.len() > MOST_REJECTS { "; the first " (MOST_REJECTS) ", metashift layout rejects lists all" }
                "." }
            (table("rejects", &["key", "reason", "detail"], &rows))
        },
    )
}

fn families(shape: &Shape) -> Markup {
    let families = shape.families();
    if families.is_empty() {
        return html! {};
    }
    let rows: Vec<_> = families
        .iter()
        .map(|(name, items)| {
            vec![if name.is_empty() { "all others".to_owned() } else { name.clone() }, count(*items)]
        })
        .collect();
    section("families", "Items by family", &table("families", &["family", "items"], &rows))
}

fn skew(buckets: &Buckets) -> Markup {
    section(
        "buckets",
        "How evenly the buckets are filled",
        &html! {
            @for (name, counts) in &buckets.families {
                @let most = counts.values().copied().max().unwrap_or(1).max(1);
                @let total: u64 = counts.values().sum();
                @let mean = total as f64 / counts.len().max(1) as f64;
                p { (name) ": " (counts.len()) " buckets, " (count(total)) " items, the fullest "
                    (format!("{:.2}", most as f64 / mean.max(0.001))) " times the mean" }
                @let values: Vec<_> = counts.values().map(|value| (*value, most)).collect();
                (columns(&format!("items by bucket of {name}"), &values))
            }
        },
    )
}

fn catalog(found: &Value) -> Markup {
    let rows: Vec<_> = found
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            vec![name.clone(), text]
        })
        .collect();
    section("catalog", "Catalog", &table("catalog", &["", ""], &rows))
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
    fn what_is_shown_is_escaped() {
        let shown = table("x", &["key"], &[vec!["<script>alert(1)</script>".to_owned()]]).into_string();
        assert!(!shown.contains("<script>"), "{shown}");
    }
}
