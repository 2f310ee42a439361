//! Bodies as the services write them.

use jiff::civil::DateTime;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// How far a signature may be from the server's time.
const MOST_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// A DynamoDB error: status and body.
pub(crate) fn dynamodb_error(name: &str) -> (u16, String) {
    let status = if name == "InternalServerError" { 500 } else { 400 };
    let body = json!({
        "__type": format!("com.amazonaws.dynamodb.v20120810#{name}"),
        "message": format!("{name}, by a rule of the fault proxy"),
    });
    (status, body.to_string())
}

/// `Date` of a server whose clock is so many seconds ahead, and whether it takes what was signed at `X-Amz-Date`.
pub(crate) fn clock(ahead: i64, signed: &str) -> (String, bool) {
    #[allow(clippy::disallowed_methods, reason = "a server has a clock")]
    let now = Timestamp::now();
    let now = now.checked_add(SignedDuration::from_secs(ahead)).unwrap_or(now);
    let signed = DateTime::strptime("%Y%m%dT%H%M%SZ", signed).ok();
    let signed = signed.and_then(|signed| TimeZone::UTC.to_timestamp(signed).ok());
    let good = signed.is_some_and(|signed| now.duration_since(signed).abs() <= MOST_SKEW);
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
    (date, good)
}

/// The request under another token of the same length.
pub(crate) fn forgotten(body: &str, times: u32) -> Option<String> {
    let mut request: Value = serde_json::from_str(body).ok()?;
    let token = request.get("ClientRequestToken")?.as_str()?;
    let first = token.chars().next()?;
    let turned: String = token.chars().skip(1).chain([first]).collect();
    let stamp = format!("{times:08x}");
    let other: String = stamp.chars().chain(turned.chars().skip(stamp.len())).collect();
    *request.get_mut("ClientRequestToken")? = Value::String(other);
    Some(request.to_string())
}

/// A cancelled transaction of `actions` actions.
pub(crate) fn cancelled(reasons: &[String], actions: usize) -> (u16, String) {
    let mut codes = reasons.to_vec();
    if !codes.is_empty() {
        codes.resize(codes.len().max(actions), "None".to_owned());
    }
    let list: Vec<_> = codes
        .iter()
        .map(|code| match code.as_str() {
            "None" => json!({ "Code": "None" }),
            code => json!({ "Code": code, "Message": format!("{code}, by a rule of the fault proxy") }),
        })
        .collect();
    let body = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": format!("Transaction cancelled, please refer cancellation reasons for specific reasons [{}]", codes.join(", ")),
        "CancellationReasons": list,
    });
    (400, body.to_string())
}

/// An S3 error document.
pub(crate) fn s3_error(code: &str, path: &str) -> String {
    let resource = path.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{code}, by a rule of the fault \
         proxy</Message><Resource>{resource}</Resource><RequestId>0</RequestId></Error>"
    )
}

/// How many actions a TransactWriteItems or TransactGetItems request has.
pub(crate) fn actions(body: &str) -> usize {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    parsed.and_then(|body| body.get("TransactItems")?.as_array().map(Vec::len)).unwrap_or_default()
}

/// Splits a BatchGetItem request: the request for the first half of each table's keys, and the others.
pub(crate) fn halve(body: &str) -> Option<(String, Value)> {
    let mut request: Value = serde_json::from_str(body).ok()?;
    let tables = request.get_mut("RequestItems")?.as_object_mut()?;
    let mut left = serde_json::Map::new();
    for (name, asked) in tables.iter_mut() {
        let keys = asked.get_mut("Keys")?.as_array_mut()?;
        let rest = keys.split_off(keys.len().div_ceil(2));
        if !rest.is_empty() {
            let mut other = asked.clone();
            other.as_object_mut()?.insert("Keys".to_owned(), Value::Array(rest));
            left.insert(name.clone(), other);
        }
    }
    Some((request.to_string(), Value::Object(left)))
}

/// A BatchGetItem answer with these keys unprocessed.
pub(crate) fn with_unprocessed(answer: &[u8], left: Value) -> Option<String> {
    let mut answer: Value = serde_json::from_slice(answer).ok()?;
    answer.as_object_mut()?.insert("UnprocessedKeys".to_owned(), left);
    Some(answer.to_string())
}

/// A TransactWriteItems request whose matching actions have a condition that always holds; with `idle` they do not
/// write either. The order of the actions, and so of the reasons, stays.
pub(crate) fn blinded(body: &str, action: &str, table: &str, key: &str, idle: bool) -> Option<String> {
    let mut request: Value = serde_json::from_str(body).ok()?;
    for item in request.get_mut("TransactItems")?.as_array_mut()? {
        let Some(found) = item.get_mut(action).and_then(Value::as_object_mut) else { continue };
        let primary = found.get("Key").or_else(|| found.get("Item")).cloned().unwrap_or_default();
        let pk = primary.pointer("/pk/S").and_then(Value::as_str).unwrap_or_default();
        let named = match key.strip_prefix('!') {
            Some(other) => !pk.contains(other),
            None => pk.contains(key),
        };
        if !named || found.get("TableName").and_then(Value::as_str) != Some(table) {
            continue;
        }
        found.insert(
            "ConditionExpression".to_owned(),
            json!("attribute_exists(#pk) OR attribute_not_exists(#pk)"),
        );
        found.insert("ExpressionAttributeNames".to_owned(), json!({ "#pk": "pk" }));
        found.remove("ExpressionAttributeValues");
        if idle {
            let mut primary = primary;
            primary.as_object_mut()?.remove("val");
            found.remove("Item");
            found.insert("Key".to_owned(), primary);
            let check = found.clone();
            *item = json!({ "ConditionCheck": check });
        }
    }
    Some(request.to_string())
}

/// A `Date` so many seconds later.
pub(crate) fn later(date: &str, seconds: i64) -> Option<String> {
    let at = DateTimeParser::new().parse_timestamp(date).ok()?;
    let at = at.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    Some(at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

/// Request units that an answer says were charged.
pub(crate) fn units(answer: &[u8]) -> f64 {
    let parsed: Option<Value> = serde_json::from_slice(answer).ok();
    let one = |capacity: &Value| capacity.get("CapacityUnits").and_then(Value::as_f64).unwrap_or_default();
    match parsed.as_ref().and_then(|answer| answer.get("ConsumedCapacity")) {
        Some(Value::Array(tables)) => tables.iter().map(one).sum(),
        Some(table) => one(table),
        None => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reasons_of_a_cancelled_transaction_are_one_an_action() {
        let (status, body) = cancelled(&["TransactionConflict".to_owned()], 3);
        let body: Value = serde_json::from_str(&body).unwrap();
        let codes: Vec<_> = body["CancellationReasons"]
            .as_array()
            .unwrap()
            .iter()
            .map(|reason| reason["Code"].clone())
            .collect();
        assert_eq!((status, codes), (400, vec![json!("TransactionConflict"), json!("None"), json!("None")]));
        let (_, none) = cancelled(&[], 3);
        assert!(none.contains(r#""CancellationReasons":[]"#));
    }

    #[test]
    fn the_halves_of_a_batch_are_the_whole() {
        let body = r#"{"RequestItems":{"t":{"Keys":[{"pk":{"S":"a"}},{"pk":{"S":"b"}},{"pk":{"S":"c"}}]}}}"#;
        let (first, left) = halve(body).unwrap();
        assert!(first.contains("\"a\"") && first.contains("\"b\"") && !first.contains("\"c\""));
        assert_eq!(left["t"]["Keys"], json!([{ "pk": { "S": "c" } }]));
        let answer = with_unprocessed(b"{\"Responses\":{}}", left).unwrap();
        assert!(answer.contains("UnprocessedKeys"));
    }

    #[test]
    fn a_blinded_action_has_a_condition_that_always_holds_and_the_others_keep_theirs() {
        let body = r##"{"TransactItems":[
            {"ConditionCheck":{"TableName":"t","Key":{"pk":{"S":"a"}},"ConditionExpression":"#val = :v",
             "ExpressionAttributeNames":{"#val":"val"},"ExpressionAttributeValues":{":v":{"B":"AA=="}}}},
            {"Put":{"TableName":"t","Item":{"pk":{"S":"a"},"val":{"B":"AA=="}},"ConditionExpression":"x"}}]}"##;
        let text = blinded(body, "ConditionCheck", "t", "!b", false).unwrap();
        let blind: Value = serde_json::from_str(&text).unwrap();
        let condition = &blind["TransactItems"][0]["ConditionCheck"]["ConditionExpression"];
        assert_eq!(condition, "attribute_exists(#pk) OR attribute_not_exists(#pk)");
        assert_eq!(blind["TransactItems"][1]["Put"]["ConditionExpression"], "x");
        let other = blinded(body, "ConditionCheck", "t", "b", false).unwrap();
        assert!(other.contains("#val = :v"));
        let idle: Value = serde_json::from_str(&blinded(body, "Put", "t", "a", true).unwrap()).unwrap();
        assert_eq!(idle["TransactItems"][1]["ConditionCheck"]["Key"], json!({ "pk": { "S": "a" } }));
    }

    #[test]
    fn a_later_date_is_of_the_same_form() {
        let date = "Tue, 01 Dec 2026 23:59:30 GMT";
        assert_eq!(later(date, 40).as_deref(), Some("Wed, 02 Dec 2026 00:00:10 GMT"));
        assert_eq!(later("yesterday", 40), None);
    }

    #[test]
    fn units_are_summed_over_tables() {
        assert!((units(br#"{"ConsumedCapacity":{"CapacityUnits":1.5}}"#) - 1.5).abs() < 1e-9);
        let two = br#"{"ConsumedCapacity":[{"CapacityUnits":2.0},{"CapacityUnits":4.0}]}"#;
        assert!((units(two) - 6.0).abs() < 1e-9);
        assert!(units(b"{}").abs() < 1e-9);
    }
}
