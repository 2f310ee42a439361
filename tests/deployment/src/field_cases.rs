//! The page that maps field cases to tests names tests that exist.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{Findings, project};

/// Text between backticks, in order.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A whole test's name, or the beginning of one (`…` at its end).
fn is_test_name(name: &str) -> bool {
    let name = name.trim_end_matches('…');
    name.contains('_')
        && name.len() > 18
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Every function whose attribute says that it is a test, in the sources below a folder.
fn tests_below(folder: &Path, found: &mut BTreeSet<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            tests_below(&path, found)?;
        } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "py") {
            let text = std::fs::read_to_string(&path).map_err(failed)?;
            let mut attributed = false;
            for line in text.lines().map(str::trim_start) {
                if ["#[test]", "#[tokio::test", "@case"].iter().any(|mark| line.starts_with(mark)) {
                    attributed = true;
                } else if attributed
                    && let Some((_, rest)) = line.split_once("fn ").or_else(|| line.split_once("def "))
                {
                    found.extend(rest.split_once('(').map(|(name, _)| name.to_owned()));
                    attributed = false;
                }
            }
        }
    }
    Ok(())
}

/// Names on `docs/field-cases.md` that no test has, and cases that name none.
pub fn check(page: &str, tests: &BTreeSet<String>) -> Findings {
    let mut findings = Findings::new();
    for name in quoted(page).filter(|name| is_test_name(name)) {
        let exists = match name.strip_suffix('…') {
            Some(begin) => tests.iter().any(|test| test.starts_with(begin)),
            None => tests.contains(name),
        };
        if !exists {
            findings.push(format!("no test is named {name}"));
        }
    }
    for row in page
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes().get(2).is_some_and(u8::is_ascii_digit))
    {
        let held_by = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let otherwise = ["(unit)", "(all)", "the same", "by hand"];
        if !otherwise.iter().any(|how| held_by.contains(how)) && !quoted(held_by).any(is_test_name) {
            findings.push(format!("no test holds: {row}"));
        }
    }
    findings
}

/// The tests of the workspace.
pub fn tests() -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    for folder in
        ["tests/deployment", "tests/faults", "tests/machines", "tests/model", "tests/suite", "shared/src"]
    {
        tests_below(&project::root().join(folder), &mut found)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_held_by_a_test_that_exists() {
        let page = project::text("docs/field-cases.md").unwrap();
        assert_eq!(check(&page, &super::tests().unwrap()), Findings::new());
        assert!(quoted(&page).filter(|name| is_test_name(name)).count() > 30);
    }

    #[test]
    fn a_test_that_was_renamed_and_a_case_without_one_are_found() {
        let tests = BTreeSet::from(["a_name_that_states_a_property".to_owned()]);
        let row = |held_by: &str| format!("| 1 | wrong | right | {held_by} |\n");
        assert_eq!(check(&row("`file`: `a_name_that_states_a_property`"), &tests), Findings::new());
        assert_eq!(check(&row("`a_name_that_states_…`"), &tests), Findings::new());
        assert_eq!(check(&row("`a_name_that_stated_a_property`"), &tests).len(), 1);
        assert_eq!(check(&row("somebody looked"), &tests).len(), 1);
    }
}
