//! The cursor of a prefix page, as a metadata node hands it to its callers.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::family::{self, Layout};
use super::key::{INTERNAL_PREFIX, is_internal};
use crate::{Error, ErrorKind, Result};

/// Where a prefix read goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCursor {
    /// The shard being read under v2 authority; `None` for a page of a v1 scan.
    pub shard: Option<u16>,
    /// The last key that was evaluated; `None` before the first of a shard.
    pub last_key: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    version: u32,
    prefix_digest: String,
    #[serde(deserialize_with = "Option::deserialize")]
    shard: Option<u16>,
    #[serde(deserialize_with = "Option::deserialize")]
    last_key: Option<String>,
}

impl PageCursor {
    /// `{"version":1,"prefix_digest":…,"shard":…,"last_key":…}`.
    pub fn encode(&self, prefix: &str) -> String {
        let wire = Wire {
            version: 1,
            prefix_digest: digest(prefix),
            shard: self.shard,
            last_key: self.last_key.clone(),
        };
        serde_json::to_string(&wire).unwrap_or_default()
    }

    /// Reads a cursor for `prefix`; anything that this prefix and layout did not give out is `InvalidCursor`.
    pub fn decode(text: &str, prefix: &str, layout: &Layout) -> Result<Self> {
        let invalid = |message: &str| {
            Err(Error::new(ErrorKind::InvalidCursor, format!("cursor: {message}"))
                .next("start the prefix again without a cursor"))
        };
        let Ok(wire) = serde_json::from_str::<Wire>(text) else {
            return invalid("not of the documented form");
        };
        if wire.version != 1 {
            return invalid("of another version");
        }
        if wire.prefix_digest != digest(prefix) {
            return invalid("given out for another prefix");
        }
        if let Some(shard) = wire.shard {
            if shard >= layout.shards(family::family(prefix)) {
                return invalid("the shard does not exist");
            }
            if let Some(key) = &wire.last_key
                && (!key.starts_with(prefix) || layout.shard(key) != shard)
            {
                return invalid("the last key is not of that shard");
            }
        } else if wire.last_key.as_deref().is_none_or(str::is_empty) {
            return invalid("a scan page goes on after a key");
        }
        Ok(Self { shard: wire.shard, last_key: wire.last_key })
    }
}

/// SHA-256 of a prefix, 64 lower-case hex digits.
fn digest(prefix: &str) -> String {
    hex::encode(Sha256::digest(prefix))
}

/// The family that a prefix names; `InvalidPrefix` where it names none or the migrator's own.
pub fn family_of_prefix(prefix: &str) -> Result<&str> {
    let invalid = |message: String| Err(Error::new(ErrorKind::InvalidPrefix, message));
    if is_internal(prefix) {
        return invalid(format!("{prefix:?}: keys under {INTERNAL_PREFIX} belong to the migrator"));
    }
    if !prefix.contains('/') {
        return invalid(format!("{prefix:?} names no complete family: a prefix contains a /"));
    }
    Ok(family::family(prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(text: &str) -> Result<PageCursor> {
        PageCursor::decode(text, "tbl/", &Layout::default())
    }

    #[test]
    fn the_wire_form_is_pinned() {
        let cursor = PageCursor { shard: Some(2), last_key: Some("tbl/ns/video".to_owned()) };
        assert_eq!(
            cursor.encode("tbl/"),
            format!(
                r#"{{"version":1,"prefix_digest":"{}","shard":2,"last_key":"tbl/ns/video"}}"#,
                digest("tbl/")
            )
        );
        assert_eq!(decode(&cursor.encode("tbl/")).unwrap(), cursor);
    }

    #[test]
    fn a_cursor_that_was_not_given_out_is_refused() {
        let good = PageCursor { shard: Some(2), last_key: Some("tbl/ns/video".to_owned()) }.encode("tbl/");
        for text in [
            String::new(),
            "{}".to_owned(),
            good.replace(":1,", ":2,"),
            good.replace("\"shard\":2", "\"shard\":3"),
            good.replace("\"shard\":2", "\"shard\":8"),
            good.replace("tbl/ns/video", "tbl/ns/other"),
            good.replace("\"shard\":2", "\"shard\":null,\"more\":1"),
            PageCursor { shard: Some(2), last_key: None }.encode("tbl/n"),
            PageCursor { shard: None, last_key: None }.encode("tbl/"),
        ] {
            assert_eq!(decode(&text).unwrap_err().kind(), ErrorKind::InvalidCursor, "{text}");
        }
    }

    #[test]
    fn a_prefix_names_a_complete_family_of_the_user() {
        assert_eq!(family_of_prefix("tbl/").unwrap(), "tbl");
        assert_eq!(family_of_prefix("/x").unwrap(), "root");
        assert_eq!(family_of_prefix("__lake_internal/").unwrap(), "__lake_internal");
        assert_eq!(family_of_prefix("__lake_internal/catalog-directory-").unwrap(), "__lake_internal");
        for prefix in ["", "tbl", "__lake_internal/dynamo-prefix-v2", "__lake_internal/dynamo-prefix-v2/plan"]
        {
            assert_eq!(family_of_prefix(prefix).unwrap_err().kind(), ErrorKind::InvalidPrefix, "{prefix}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,80}") {
            let _ = decode(&text);
        }

        #[test]
        fn what_is_given_out_is_taken_back(suffix in "\\PC{1,40}") {
            let layout = Layout::default();
            let key = format!("tbl/{suffix}");
            let cursor = PageCursor { shard: Some(layout.shard(&key)), last_key: Some(key) };
            prop_assert_eq!(decode(&cursor.encode("tbl/")).unwrap(), cursor);
        }
    }
}
