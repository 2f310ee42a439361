//! Which requests fail, and how.

use serde::{Deserialize, Serialize};

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Fault {
    /// It is forwarded and done; the connection is closed instead of the answer.
    DropAnswer,
    /// The connection is closed; nothing is forwarded.
    DropBefore,
    /// It is forwarded and done; the connection is closed in the middle of the answer's body.
    Cut,
    /// It is forwarded so many milliseconds late.
    Delay {
        /// Milliseconds.
        millis: u64,
    },
    /// It is forwarded once the rule is released; the client may be gone by then.
    Hold,
    /// The connection is closed at once, and it is forwarded so many milliseconds late.
    Stray {
        /// Milliseconds.
        millis: u64,
    },
    /// An answer with this status and no body that a client knows; `forwarded`: after the request was done.
    Status {
        /// HTTP status.
        status: u16,
        /// True: the request is done all the same.
        #[serde(default)]
        forwarded: bool,
    },
    /// A DynamoDB error (HTTP 400; 500 for `InternalServerError`), nothing is forwarded.
    Error {
        /// Its name, without the namespace.
        name: String,
    },
    /// `TransactionCanceledException` with these reasons' codes, `None` for the actions after them.
    Cancel {
        /// One code an action, in order.
        reasons: Vec<String>,
    },
    /// An S3 error document with this status.
    S3Error {
        /// HTTP status, for example 409 or 412.
        status: u16,
        /// Its code, for example `PreconditionFailed`.
        code: String,
    },
    /// This body with status 200, nothing is forwarded; `{n}` becomes the number of the hit, six digits.
    Answer {
        /// The body.
        body: String,
    },
    /// The server's clock is so many seconds ahead, or behind: what was not signed within five minutes of it is refused
    /// as DynamoDB refuses it, and every answer carries its time.
    Clock {
        /// Seconds.
        ahead: i64,
        /// False: nothing is refused.
        refuses: bool,
    },
    /// It is forwarded and done; its answer's `Date` is so many seconds later, as of a server whose clock is ahead.
    Date {
        /// Seconds; below 0 for a clock that is behind, `None` for an answer without the header.
        seconds: Option<i64>,
    },
    /// It is forwarded under another token, always the same one for the same token and number: the server has forgotten the
    /// tokens from before.
    Forgotten {
        /// How often it has.
        times: u32,
    },
    /// Half of each table's keys of a BatchGetItem are forwarded, the other half comes back unprocessed.
    Unprocessed,
    /// A planted bug: a TransactWriteItems is forwarded with actions that lack their condition, or do nothing.
    Blind {
        /// `ConditionCheck`, `Put` or `Delete`.
        action: String,
        /// The table of the actions.
        table: String,
        /// Their keys contain this; with a `!` before it: do not contain the rest.
        key: String,
        /// True: they do not write either.
        #[serde(default)]
        idle: bool,
    },
}

/// Which requests a fault happens to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Its name, for counts and for its removal.
    pub name: String,
    /// DynamoDB operation (from `X-Amz-Target`) or, without one, HTTP method; `None`: any.
    #[serde(default)]
    pub operation: Option<String>,
    /// The request names this table.
    #[serde(default)]
    pub table: Option<String>,
    /// The path with its query contains this.
    #[serde(default)]
    pub path: Option<String>,
    /// The body contains all of these.
    #[serde(default)]
    pub mentions: Vec<String>,
    /// So many matching requests pass first.
    #[serde(default)]
    pub skip: u64,
    /// So many requests are hit; `None`: all.
    #[serde(default)]
    pub times: Option<u64>,
    /// Share of the matching requests that are hit, 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
    /// Decides which ones.
    #[serde(default)]
    pub seed: u64,
    /// Keeps what it hits, for whoever owns the proxy.
    #[serde(default)]
    pub keep: bool,
    /// What happens.
    pub fault: Fault,
}

fn always() -> f64 {
    1.0
}

/// What a rule sees of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) operation: &'a str,
    pub(crate) path: &'a str,
    pub(crate) body: &'a str,
}

impl Rule {
    /// Every request.
    pub fn new(name: &str, fault: Fault) -> Self {
        Self {
            name: name.to_owned(),
            operation: None,
            table: None,
            path: None,
            mentions: Vec::new(),
            skip: 0,
            times: None,
            probability: 1.0,
            seed: 0,
            keep: false,
            fault,
        }
    }

    /// Keeps what it hits ([`crate::Proxy::kept`]).
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Only this operation.
    #[must_use]
    pub fn on(mut self, operation: &str) -> Self {
        self.operation = Some(operation.to_owned());
        self
    }

    /// Only requests that name this table.
    #[must_use]
    pub fn table(mut self, table: &str) -> Self {
        self.table = Some(table.to_owned());
        self
    }

    /// Only requests whose body contains this.
    #[must_use]
    pub fn mentioning(mut self, text: &str) -> Self {
        self.mentions.push(text.to_owned());
        self
    }

    /// Only paths that contain this.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    /// Passes so many first.
    #[must_use]
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Hits so many and no more.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Hits a share of them.
    #[must_use]
    pub fn share(mut self, probability: f64, seed: u64) -> Self {
        self.probability = probability;
        self.seed = seed;
        self
    }

    pub(crate) fn matches(&self, seen: Seen<'_>) -> bool {
        self.operation.as_deref().is_none_or(|operation| operation == seen.operation)
            && self.path.as_deref().is_none_or(|path| seen.path.contains(path))
            && self.table.as_deref().is_none_or(|table| seen.body.contains(&format!("\"{table}\"")))
            && self.mentions.iter().all(|text| seen.body.contains(text.as_str()))
    }

    /// Whether the `matched`-th matching request, after `hits` hits, is hit.
    pub(crate) fn hits(&self, matched: u64, hits: u64) -> bool {
        matched >= self.skip
            && self.times.is_none_or(|times| hits < times)
            && (self.probability >= 1.0 || fraction(self.seed, matched) < self.probability)
    }
}

/// A number from 0 to 1 for the n-th request of a seed: SplitMix64.
fn fraction(seed: u64, n: u64) -> f64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen<'_> = Seen {
        operation: "TransactWriteItems",
        path: "/",
        body: r#"{"TransactItems":[{"Put":{"TableName":"lake_prefix_v2","Item":{"pk":{"S":"tbl/a"}}}}]}"#,
    };

    #[test]
    fn a_rule_matches_by_everything_that_it_names() {
        let rule = Rule::new("r", Fault::DropAnswer);
        assert!(rule.matches(SEEN));
        assert!(
            rule.clone().on("TransactWriteItems").table("lake_prefix_v2").mentioning("tbl/a").matches(SEEN)
        );
        assert!(!rule.clone().on("Scan").matches(SEEN));
        assert!(!rule.clone().table("lake").matches(SEEN));
        assert!(!rule.clone().mentioning("tbl/b").matches(SEEN));
        assert!(!rule.path("bucket").matches(SEEN));
    }

    #[test]
    fn a_rule_skips_then_hits_so_many() {
        let rule = Rule::new("r", Fault::DropAnswer).skip(2).times(2);
        let mut hits = 0;
        let hit: Vec<_> = (0..6)
            .filter(|n| {
                let hit = rule.hits(*n, hits);
                hits += u64::from(hit);
                hit
            })
            .collect();
        assert_eq!(hit, [2, 3]);
    }

    #[test]
    fn a_share_is_about_that_share_and_the_same_for_a_seed() {
        let rule = |seed: u64| Rule::new("r", Fault::DropAnswer).share(0.3, seed);
        let hit = |seed: u64| (0..1000).filter(|n| rule(seed).hits(*n, 0)).collect::<Vec<_>>();
        assert_eq!(hit(7), hit(7));
        assert_ne!(hit(7), hit(8));
        assert!((250..350).contains(&hit(7).len()), "{}", hit(7).len());
    }

    #[test]
    fn the_wire_form_is_pinned_and_unknown_fields_are_refused() {
        let text =
            r#"{"name":"r","operation":"Scan","times":1,"fault":{"kind":"cancel","reasons":["None"]}}"#;
        let rule: Rule = serde_json::from_str(text).unwrap();
        let cancel = Fault::Cancel { reasons: vec!["None".to_owned()] };
        assert_eq!(rule, Rule::new("r", cancel).on("Scan").times(1));
        assert!(serde_json::from_str::<Rule>(&text.replace("times", "time")).is_err());
        assert!(serde_json::from_str::<Rule>(&text.replace("cancel", "cancels")).is_err());
    }
}
