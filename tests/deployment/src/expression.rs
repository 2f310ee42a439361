//! What a JSONata expression uses, as far as the lints need to know: variables, functions, parts of `$states`.

use std::collections::BTreeSet;

/// Functions of JSONata 2.0.6 and those that Step Functions adds; `$eval` is not available there.
const FUNCTIONS: &[&str] = &[
    "abs",
    "append",
    "assert",
    "average",
    "base64decode",
    "base64encode",
    "boolean",
    "ceil",
    "contains",
    "count",
    "decodeUrl",
    "decodeUrlComponent",
    "distinct",
    "each",
    "encodeUrl",
    "encodeUrlComponent",
    "error",
    "exists",
    "filter",
    "floor",
    "formatBase",
    "formatInteger",
    "formatNumber",
    "fromMillis",
    "hash",
    "join",
    "keys",
    "length",
    "lookup",
    "lowercase",
    "map",
    "match",
    "max",
    "merge",
    "millis",
    "min",
    "not",
    "now",
    "number",
    "pad",
    "parse",
    "parseInteger",
    "partition",
    "power",
    "random",
    "range",
    "reduce",
    "replace",
    "reverse",
    "round",
    "shuffle",
    "sift",
    "single",
    "sort",
    "split",
    "spread",
    "sqrt",
    "string",
    "substring",
    "substringAfter",
    "substringBefore",
    "sum",
    "toMillis",
    "trim",
    "type",
    "uppercase",
    "uuid",
    "zip",
];

/// What one expression uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// `$name`, without `$states` and without functions.
    pub variables: BTreeSet<String>,
    /// First part after `$states.`.
    pub states: BTreeSet<String>,
    /// What is wrong with the text itself.
    pub problems: Vec<String>,
}

/// The text between `{%` and `%}`; `None` when `text` is no expression.
pub fn body(text: &str) -> Option<&str> {
    Some(text.strip_prefix("{%")?.strip_suffix("%}")?.trim())
}

fn name_at(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// Reads an expression's text.
pub fn read(text: &str) -> Uses {
    let mut uses = Uses::default();
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after = rest.get(first.len_utf8()..).unwrap_or_default();
        match first {
            '\'' | '"' | '`' => {
                let Some(end) = after.find(first) else {
                    uses.problems.push(format!("a {first} is not closed"));
                    break;
                };
                rest = after.get(end + 1..).unwrap_or_default();
            }
            '(' | '[' | '{' => {
                open.push(first);
                rest = after;
            }
            ')' | ']' | '}' => {
                let wanted = match first {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(wanted) {
                    uses.problems.push(format!("a {first} closes nothing"));
                }
                rest = after;
            }
            '$' => {
                let name = name_at(after);
                rest = after.get(name.len()..).unwrap_or_default();
                if name.is_empty() {
                    continue;
                }
                if name == "states" {
                    uses.states.insert(name_at(rest.strip_prefix('.').unwrap_or_default()).to_owned());
                } else if rest.trim_start().starts_with('(') {
                    if !FUNCTIONS.contains(&name) {
                        uses.problems.push(format!("${name} is no function"));
                    }
                } else {
                    uses.variables.insert(name.to_owned());
                }
            }
            _ => rest = after,
        }
    }
    if let Some(bracket) = open.pop() {
        uses.problems.push(format!("a {bracket} is not closed"));
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_functions_and_states_are_told_apart() {
        let uses = read(
            "$merge([$common, {'$no': $states.input.x, 'y': $count($keys($request)[$not($ in ['a'])])}])",
        );
        assert_eq!(uses.variables, BTreeSet::from(["common".to_owned(), "request".to_owned()]));
        assert_eq!(uses.states, BTreeSet::from(["input".to_owned()]));
        assert!(uses.problems.is_empty(), "{:?}", uses.problems);
    }

    #[test]
    fn what_step_functions_does_not_know_is_found() {
        for text in ["$eval('1')", "$min([1, 2)", "'open", "$min(1", "1)"] {
            assert!(!read(text).problems.is_empty(), "{text}");
        }
    }
}
