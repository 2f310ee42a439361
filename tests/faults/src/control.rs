//! The control path: `/__faults/…` on the proxy's own port.
//!
//! | request | does |
//! |---|---|
//! | `GET /__faults/rules` | gives the rules, as a JSON array |
//! | `POST /__faults/rules` | adds a rule, or each of an array of rules |
//! | `DELETE /__faults/rules` | removes every rule, and lets go what they hold |
//! | `DELETE /__faults/rules/<name>` | removes one |
//! | `POST /__faults/release/<name>` | lets go what the rule holds now and later |
//! | `GET /__faults/statistics` | calls by operation, hits by rule, units charged |

use bytes::Bytes;
use hyper::Method;

use crate::proxy::Shared;
use crate::rule::Rule;

/// Every path of the control begins with this.
pub const PREFIX: &str = "/__faults/";

/// Status and body of a control request.
pub(crate) fn answer(shared: &Shared, method: &Method, path: &str, body: &Bytes) -> (u16, String) {
    let (what, name) = match path.strip_prefix(PREFIX).unwrap_or_default().split_once('/') {
        Some((what, name)) => (what, Some(name)),
        None => (path.strip_prefix(PREFIX).unwrap_or_default(), None),
    };
    match (method, what, name) {
        (&Method::GET, "rules", None) => json(&shared.rules()),
        (&Method::GET, "statistics", None) => json(&shared.statistics()),
        (&Method::POST, "rules", None) => match parse(body) {
            Ok(rules) => {
                for rule in rules {
                    shared.add(rule);
                }
                (200, "{}".to_owned())
            }
            Err(error) => (400, serde_json::json!({ "error": error }).to_string()),
        },
        (&Method::DELETE, "rules", None) => {
            shared.clear();
            (200, "{}".to_owned())
        }
        (&Method::DELETE, "rules", Some(name)) if shared.remove(name) => (200, "{}".to_owned()),
        (&Method::POST, "release", Some(name)) if shared.release(name) => (200, "{}".to_owned()),
        (_, _, Some(name)) => (404, serde_json::json!({ "error": format!("no rule {name:?}") }).to_string()),
        _ => (
            404,
            serde_json::json!({ "error": "see the crate's documentation of its control path" }).to_string(),
        ),
    }
}

fn parse(body: &[u8]) -> Result<Vec<Rule>, String> {
    if body.trim_ascii_start().starts_with(b"[") {
        return serde_json::from_slice(body).map_err(|error| error.to_string());
    }
    serde_json::from_slice(body).map(|rule| vec![rule]).map_err(|error| error.to_string())
}

fn json<T: serde::Serialize>(value: &T) -> (u16, String) {
    match serde_json::to_string(value) {
        Ok(text) => (200, text),
        Err(error) => (500, error.to_string()),
    }
}
