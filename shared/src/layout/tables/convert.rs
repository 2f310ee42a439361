//! Between the SDK's types and ours.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};

use super::failure::Failure;
use super::{Position, Side, Tables};
use crate::layout::transaction::{Action, Condition, Write};
use crate::{Error, ErrorKind, Result};

/// What an item holds beside its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// `val`, binary, and nothing else.
    Value(Vec<u8>),
    /// Something that is no metadata record; what, for a person.
    Unsupported(String),
}

/// An item of either table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// `pk`.
    pub key: String,
    /// `bucket`, in v2.
    pub bucket: Option<String>,
    /// The rest.
    pub content: Content,
}

impl Item {
    /// Reads an item's attributes; `TableMismatch` where it has no string key.
    pub(super) fn parse(mut attributes: HashMap<String, AttributeValue>, side: Side) -> Result<Self> {
        let position = position(&attributes, side)?;
        attributes.remove("pk");
        if side == Side::V2 {
            attributes.remove("bucket");
        }
        let content = match attributes.remove("val") {
            Some(AttributeValue::B(value)) if attributes.is_empty() => Content::Value(value.into_inner()),
            Some(AttributeValue::B(_)) => {
                let mut names: Vec<_> = attributes.into_keys().collect();
                names.sort_unstable();
                names.truncate(5);
                Content::Unsupported(format!("attributes beside pk and val: {}", names.join(", ")))
            }
            Some(_) => Content::Unsupported("val is not binary".to_owned()),
            None => Content::Unsupported("val is missing".to_owned()),
        };
        Ok(Self { key: position.pk, bucket: position.bucket, content })
    }

    /// `val`, where the item is a metadata record.
    pub fn value(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Value(value) => Some(value),
            Content::Unsupported(_) => None,
        }
    }
}

/// The primary key among an item's attributes.
pub(super) fn position(attributes: &HashMap<String, AttributeValue>, side: Side) -> Result<Position> {
    let text = |name: &str| {
        attributes.get(name).and_then(|value| value.as_s().ok()).cloned().ok_or_else(|| {
            Error::new(ErrorKind::TableMismatch, format!("an item of {} has no string {name}", side.name()))
        })
    };
    Ok(Position {
        bucket: match side {
            Side::V1 => None,
            Side::V2 => Some(text("bucket")?),
        },
        pk: text("pk")?,
    })
}

impl Tables {
    /// The primary key of a logical key.
    pub(super) fn primary_key(&self, side: Side, key: &str) -> HashMap<String, AttributeValue> {
        let bucket = (side == Side::V2).then(|| self.layout.bucket(key));
        self.start_key(side, &Position { bucket, pk: key.to_owned() })
    }

    /// The primary key of an item that was seen.
    pub(super) fn start_key(&self, side: Side, position: &Position) -> HashMap<String, AttributeValue> {
        let mut key = HashMap::from([("pk".to_owned(), AttributeValue::S(position.pk.clone()))]);
        if side == Side::V2 {
            let bucket = position.bucket.clone().unwrap_or_else(|| self.layout.bucket(&position.pk));
            key.insert("bucket".to_owned(), AttributeValue::S(bucket));
        }
        key
    }

    /// One action in the SDK's form. A failed condition brings the item back.
    pub(super) fn write_item(&self, action: &Action) -> Result<TransactWriteItem, Failure> {
        let position = Position { bucket: action.bucket.clone(), pk: action.key.clone() };
        let mut key = self.start_key(action.side, &position);
        let (expression, value) = match &action.condition {
            Condition::None => (None, None),
            Condition::Absent => (Some("attribute_not_exists(#pk)"), None),
            Condition::Equals(value) => (Some("#val = :expected"), Some(value)),
            Condition::AbsentOrEquals(value) => {
                (Some("attribute_not_exists(#pk) OR #val = :expected"), Some(value))
            }
        };
        let mut names = HashMap::new();
        for placeholder in ["#pk", "#val"] {
            if expression.is_some_and(|text| text.contains(placeholder)) {
                names.insert(placeholder.to_owned(), placeholder.trim_start_matches('#').to_owned());
            }
        }
        let names = Some(names).filter(|names| !names.is_empty());
        let values = value.map(|value| {
            HashMap::from([(":expected".to_owned(), AttributeValue::B(Blob::new(value.clone())))])
        });
        let expression = expression.map(str::to_owned);
        let returned = ReturnValuesOnConditionCheckFailure::AllOld;
        let table = self.name(action.side);
        let item = TransactWriteItem::builder();
        Ok(match &action.write {
            Write::Put(value) => {
                key.insert("val".to_owned(), AttributeValue::B(Blob::new(value.clone())));
                let put = Put::builder()
                    .table_name(table)
                    .set_item(Some(key))
                    .set_condition_expression(expression)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(returned);
                item.put(put.build().map_err(Failure::build)?).build()
            }
            Write::Delete => {
                let delete = Delete::builder()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_condition_expression(expression)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(returned);
                item.delete(delete.build().map_err(Failure::build)?).build()
            }
            Write::Check => {
                let check = ConditionCheck::builder()
                    .table_name(table)
                    .set_key(Some(key))
                    .set_condition_expression(expression)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .return_values_on_condition_check_failure(returned);
                item.condition_check(check.build().map_err(Failure::build)?).build()
            }
        })
    }
}
