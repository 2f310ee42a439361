//! A CloudFormation template as JSON: short intrinsics become the long ones.

use serde_json::{Map, Value, json};
use yaml_rust2::parser::{Event, EventReceiver, Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

enum Open {
    Sequence(Vec<Value>, Option<String>),
    Mapping(Map<String, Value>, Option<String>, Option<String>),
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Value>,
    problem: Option<String>,
}

impl Builder {
    fn add(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.root = Some(value),
            Some(Open::Sequence(items, _)) => items.push(value),
            Some(Open::Mapping(fields, key, _)) => match key.take() {
                Some(key) => {
                    if fields.insert(key.clone(), value).is_some() {
                        self.problem = Some(format!("{key} is there twice"));
                    }
                }
                None => match value {
                    Value::String(name) => *key = Some(name),
                    other => self.problem = Some(format!("{other} is no key")),
                },
            },
        }
    }
}

fn intrinsic(tag: Option<Tag>) -> Option<String> {
    let tag = tag?;
    match (tag.handle.as_str(), tag.suffix.as_str()) {
        ("!", "Ref" | "Condition") => Some(tag.suffix),
        ("!", name) => Some(format!("Fn::{name}")),
        _ => None,
    }
}

fn wrap(value: Value, name: Option<String>) -> Value {
    match (name, value) {
        (None, value) => value,
        (Some(name), Value::String(text)) if name == "Fn::GetAtt" => {
            let (resource, attribute) = text.split_once('.').unwrap_or((&text, ""));
            json!({ name: [resource, attribute] })
        }
        (Some(name), value) => json!({ name: value }),
    }
}

fn scalar(text: String, style: TScalarStyle) -> Value {
    if style != TScalarStyle::Plain {
        return Value::String(text);
    }
    match text.as_str() {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "" | "~" | "null" => Value::Null,
        _ => text.parse::<i64>().map_or(Value::String(text), Value::from),
    }
}

impl EventReceiver for Builder {
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Scalar(text, style, _, tag) => {
                let key = matches!(self.open.last(), Some(Open::Mapping(_, None, _)));
                let value = if key { Value::String(text) } else { wrap(scalar(text, style), intrinsic(tag)) };
                self.add(value);
            }
            Event::SequenceStart(_, tag) => self.open.push(Open::Sequence(Vec::new(), intrinsic(tag))),
            Event::MappingStart(_, tag) => self.open.push(Open::Mapping(Map::new(), None, intrinsic(tag))),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::Sequence(items, tag)) => self.add(wrap(Value::Array(items), tag)),
                Some(Open::Mapping(fields, _, tag)) => self.add(wrap(Value::Object(fields), tag)),
                None => self.problem = Some("unbalanced".to_owned()),
            },
            Event::Alias(_) => self.problem = Some("CloudFormation knows no aliases".to_owned()),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart
            | Event::DocumentEnd => {}
        }
    }
}

/// Parses one document.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut builder = Builder::default();
    Parser::new(text.chars()).load(&mut builder, false).map_err(|error| error.to_string())?;
    match (builder.problem, builder.root) {
        (Some(problem), _) => Err(problem),
        (None, Some(root)) => Ok(root),
        (None, None) => Err("empty".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_intrinsics_become_long_ones() {
        let value =
            parse("a: !Ref B\nc: !GetAtt D.Arn\ne: !If [F, !Sub 'x${y}', 1]\ng: { h: \"true\", i: true }")
                .unwrap();
        assert_eq!(
            value,
            json!({ "a": { "Ref": "B" }, "c": { "Fn::GetAtt": ["D", "Arn"] },
                    "e": { "Fn::If": ["F", { "Fn::Sub": "x${y}" }, 1] }, "g": { "h": "true", "i": true } })
        );
    }

    #[test]
    fn a_key_that_is_there_twice_and_an_alias_are_refused() {
        assert!(parse("a: 1\na: 2").is_err());
        assert!(parse("a: &x 1\nb: *x").is_err());
    }
}
