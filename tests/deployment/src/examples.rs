//! The examples of every step and machine: parsed, quoted in `docs/steps.md`, and equal to what the machines send.

use std::collections::{BTreeMap, BTreeSet};

use metashift::step::StepOutput;
use serde_json::Value;

use crate::{Findings, calls, expression, machine, project};

/// Files in `tests/deployment/examples`: name without `.json`, and text.
pub fn all() -> Result<BTreeMap<String, String>, String> {
    let folder = project::root().join("tests/deployment/examples");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        files.insert(path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), text);
    }
    Ok(files)
}

/// Every step has a pair of examples, inputs are of version 1, outputs of the shape of every step.
pub fn malformed(examples: &BTreeMap<String, String>) -> Findings {
    let mut found = Findings::new();
    for (step, _) in calls::ALL {
        for kind in ["input", "output"] {
            if !examples.contains_key(&format!("{step}.{kind}")) {
                found.push(format!("{step} has no example of its {kind}"));
            }
        }
    }
    for (name, text) in examples {
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => {
                found.push(format!("{name}: {error}"));
                continue;
            }
        };
        if name.ends_with(".output") {
            let parsed = serde_json::from_value::<StepOutput>(value.clone()).and_then(serde_json::to_value);
            if parsed.ok().as_ref() != Some(&value) {
                found.push(format!("{name} is no output of a step"));
            }
        } else if !name.ends_with(".event.input") && value.get("version") != Some(&Value::from(1)) {
            found.push(format!("{name} is not of version 1"));
        }
    }
    found
}

/// Every example is in the page, to the letter.
pub fn unquoted(examples: &BTreeMap<String, String>, page: &str) -> Findings {
    let missing = examples.iter().filter(|(_, text)| !page.contains(&format!("```json\n{text}```")));
    missing.map(|(name, _)| format!("docs/steps.md does not show {name}")).collect()
}

/// Every step's section lists its errors by names of the vocabulary.
pub fn unknown_errors(page: &str) -> Findings {
    let known: BTreeSet<&str> = metashift::ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
    let mut found = Findings::new();
    for (step, _) in calls::ALL {
        let section = page.split_once(&format!("\n## {step}\n")).map_or("", |(_, rest)| rest);
        let section = section.split("\n## ").next().unwrap_or_default();
        let listed = section
            .lines()
            .find_map(|line| line.strip_prefix("Errors, besides `Internal`: "))
            .unwrap_or_default();
        if listed.is_empty() {
            found.push(format!("{step} lists no errors"));
        }
        let names = listed.split('`').skip(1).step_by(2);
        found.extend(
            names
                .filter(|name| !known.contains(name))
                .map(|name| format!("{step} lists {name}, which is no error")),
        );
    }
    found
}

fn keys(text: &str) -> BTreeSet<String> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    value.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
}

/// Keys of the objects that an expression builds, by their quotes and colon; `$common` stands for its own.
fn built(text: &str, common: &BTreeSet<String>) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let parts: Vec<&str> = text.split('\'').collect();
    for place in parts.windows(3).step_by(2) {
        if let [before, name, after] = place
            && before.trim_end().ends_with(['{', ','])
            && after.trim_start().starts_with(':')
        {
            keys.insert((*name).to_owned());
        }
    }
    if text.contains("$common") {
        keys.extend(common.iter().cloned());
    }
    keys
}

/// Fields of every step of the layout; one example of each is enough.
const COMMON: &[&str] = &["version", "table", "companion", "migration", "layout"];

/// A step's examples together hold exactly the fields that the machines send it.
pub fn other_fields(examples: &BTreeMap<String, String>, machines: &[Value]) -> Findings {
    let mut sent: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for definition in machines {
        let common =
            definition.pointer("/States/Start/Assign/common").and_then(Value::as_str).unwrap_or_default();
        let common = built(common, &BTreeSet::new());
        for state in machine::states(definition) {
            let argument =
                |field: &str| state.body.pointer(&format!("/Arguments/{field}")).and_then(Value::as_str);
            let Some(function) = argument("FunctionName").and_then(|name| name.strip_prefix("${")) else {
                continue;
            };
            let payload = argument("Payload").and_then(expression::body).unwrap_or_default();
            let step = calls::ALL
                .iter()
                .map(|(step, _)| *step)
                .find(|step| step.replace('-', "") + "arn}" == function.to_lowercase());
            sent.entry(step.unwrap_or(function).to_owned()).or_default().extend(built(payload, &common));
        }
    }
    let mut found = Findings::new();
    for (step, _) in calls::ALL {
        let shown: BTreeSet<String> = examples
            .iter()
            .filter(|(name, _)| {
                let parts: Vec<&str> = name.split('.').collect();
                parts.first() == Some(step) && parts.last() == Some(&"input") && !parts.contains(&"event")
            })
            .flat_map(|(_, text)| keys(text))
            .collect();
        let sent = sent.remove(*step).unwrap_or_default();
        let hidden = sent.difference(&shown).filter(|field| !COMMON.contains(&field.as_str()));
        found.extend(hidden.map(|field| format!("{step}: the machines send {field}, no example shows it")));
        found.extend(
            shown
                .difference(&sent)
                .map(|field| format!("{step}: an example shows {field}, no machine sends it")),
        );
    }
    found.extend(sent.into_keys().map(|function| format!("{function} is no step")));
    found
}

/// A machine's examples together hold every field that it accepts, but the one that no person writes.
pub fn other_inputs(examples: &BTreeMap<String, String>, name: &str, definition: &Value) -> Findings {
    let rules = definition.pointer("/States/CheckInput/Choices").and_then(Value::as_array).map(Vec::as_slice);
    let list = rules.unwrap_or_default().iter().find_map(|rule| {
        let condition = rule.get("Condition")?.as_str()?;
        Some(condition.split_once("$keys($request)[$not($ in [")?.1.split_once(']')?.0)
    });
    let Some(list) = list else { return vec![format!("{name} does not refuse unknown fields")] };
    let accepted: BTreeSet<String> =
        list.split(", ").map(|field| field.trim_matches('\'').to_owned()).collect();
    let shown: BTreeSet<String> = examples
        .iter()
        .filter(|(file, _)| {
            file.strip_prefix("machine.").is_some_and(|rest| rest.split('.').next() == Some(name))
        })
        .flat_map(|(_, text)| keys(text))
        .chain(["resume".to_owned()])
        .filter(|field| field != "resume" || accepted.contains(field))
        .collect();
    let hidden =
        accepted.difference(&shown).map(|field| format!("{name} accepts {field}, no example shows it"));
    let refused =
        shown.difference(&accepted).map(|field| format!("{name} refuses {field}, an example shows it"));
    hidden.chain(refused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines() -> Vec<Value> {
        project::MACHINES.iter().map(|name| project::machine(name).unwrap()).collect()
    }

    /// The examples with `from` replaced by `to` in one of them.
    fn changed(name: &str, from: &str, to: &str) -> BTreeMap<String, String> {
        let mut examples = all().unwrap();
        let text = examples.get_mut(name).unwrap();
        assert!(text.contains(from));
        *text = text.replace(from, to);
        examples
    }

    #[test]
    fn every_step_has_well_formed_examples() {
        assert_eq!(malformed(&all().unwrap()), Findings::new());
        assert_eq!(malformed(&changed("verify.input", "1,", "2,")), ["verify.input is not of version 1"]);
        assert_eq!(
            malformed(&changed("verify.output", "\"done\"", "\"ready\"")),
            ["verify.output is no output of a step"]
        );
        assert_eq!(malformed(&changed("verify.output", "{", "")).len(), 1);
        let mut fewer = all().unwrap();
        fewer.remove("verify.input");
        assert_eq!(malformed(&fewer), ["verify has no example of its input"]);
    }

    #[test]
    fn the_page_shows_every_example_to_the_letter() {
        let page = project::text("docs/steps.md").unwrap();
        assert_eq!(unquoted(&all().unwrap(), &page), Findings::new());
        let other = changed("verify.input", "cutover-7", "cutover-8");
        assert_eq!(unquoted(&other, &page), ["docs/steps.md does not show verify.input"]);
    }

    #[test]
    fn the_page_names_errors_of_the_vocabulary() {
        let page = project::text("docs/steps.md").unwrap();
        assert_eq!(unknown_errors(&page), Findings::new());
        let other =
            page.replace("`RolloutNotReady`", "`NotReady`").replace("\n## verify\n", "\n## compare\n");
        assert_eq!(
            unknown_errors(&other),
            ["verify lists no errors", "check-rollout lists NotReady, which is no error"]
        );
    }

    #[test]
    fn the_machines_send_the_fields_that_the_examples_show() {
        assert_eq!(other_fields(&all().unwrap(), &machines()), Findings::new());
        let renamed = changed("finish-repair.input", "\"run\"", "\"repairRun\"");
        assert_eq!(
            other_fields(&renamed, &machines()),
            [
                "finish-repair: the machines send run, no example shows it",
                "finish-repair: an example shows repairRun, no machine sends it"
            ]
        );
    }

    #[test]
    fn the_machines_accept_the_fields_that_the_page_shows() {
        for (name, definition) in project::MACHINES.iter().zip(machines()) {
            assert_eq!(other_inputs(&all().unwrap(), name, &definition), Findings::new());
        }
        let renamed = changed("machine.dynamodb-layout", "onFailure", "onfailure");
        let found = other_inputs(&renamed, "dynamodb-layout", &machines()[0]);
        assert_eq!(found.len(), 2, "{found:?}");
        let open = serde_json::json!({ "States": {} });
        assert_eq!(other_inputs(&all().unwrap(), "x", &open), ["x does not refuse unknown fields"]);
    }
}
