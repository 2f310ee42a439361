//! Which bucket a key lives in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Error, ErrorKind, Result};

/// Family of keys without a `/`, or with nothing before it.
pub const ROOT: &str = "root";

/// Most shards of a family: a shard is two hex digits of one byte.
pub const MOST_SHARDS: u16 = 256;

/// How many shards each family has. The default is the layout of the binaries in the field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Version of this document's form: 1.
    version: u32,
    /// Shards of every family that is not named, `root` included: 1 to 256.
    default: u16,
    /// Shards by family: 1 to 256.
    families: BTreeMap<String, u16>,
}

impl Default for Layout {
    fn default() -> Self {
        let families = [
            ("append-operation", 64),
            ("append-active", 64),
            ("lance-manifest", 32),
            ("lance-manifest-latest", 32),
            ("lance-manifest-cleanup", 32),
        ];
        Self {
            version: 1,
            default: 8,
            families: families.into_iter().map(|(name, shards)| (name.to_owned(), shards)).collect(),
        }
    }
}

impl Layout {
    /// Reads `{"version":1,"default":8,"families":{"name":shards}}`.
    ///
    /// Fails with `InvalidInput` on another form, a family with `/`, or shards outside 1 to 256.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let layout: Self = serde_json::from_slice(text).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("layout: {error}"))
                .next(r#"write it as {"version":1,"default":8,"families":{"name":shards}}"#)
        })?;
        let invalid =
            |message: String| Err(Error::new(ErrorKind::InvalidInput, format!("layout: {message}")));
        if layout.version != 1 {
            return invalid(format!("version {} is not known; this binary reads 1", layout.version));
        }
        for (family, shards) in layout
            .families
            .iter()
            .map(|(name, shards)| (name.as_str(), shards))
            .chain([("default", &layout.default)])
        {
            if family.is_empty() || family.contains('/') {
                return invalid(format!("{family:?} is no family: a family is the text before the first /"));
            }
            if !(1..=MOST_SHARDS).contains(shards) {
                return invalid(format!("{family} has {shards} shards; 1 to {MOST_SHARDS} are possible"));
            }
        }
        Ok(layout)
    }

    /// SHA-256 of the canonical form (compact JSON, families in byte order), 64 lower-case hex digits.
    pub fn fingerprint(&self) -> String {
        #[derive(Serialize)]
        struct Canonical<'a> {
            default: u16,
            families: &'a BTreeMap<String, u16>,
            version: u32,
        }
        let canonical = Canonical { default: self.default, families: &self.families, version: self.version };
        let text = serde_json::to_string(&canonical).unwrap_or_default();
        hex::encode(Sha256::digest(text))
    }

    /// Shards of a family: 1 to 256.
    pub fn shards(&self, family: &str) -> u16 {
        self.families.get(family).copied().unwrap_or(self.default)
    }

    /// The shard of a key within its family.
    pub fn shard(&self, key: &str) -> u16 {
        let first_byte = Sha256::digest(key).first().copied().unwrap_or_default();
        u16::from(first_byte) % self.shards(family(key))
    }

    /// The bucket of a key: `<family>#<shard as two lower-case hex digits>`.
    pub fn bucket(&self, key: &str) -> String {
        bucket_of_shard(family(key), self.shard(key))
    }

    /// Every bucket of a family, in shard order.
    pub fn buckets<'a>(&self, family: &'a str) -> impl Iterator<Item = String> + use<'a> {
        (0..self.shards(family)).map(move |shard| bucket_of_shard(family, shard))
    }
}

/// The text before the first `/`; [`ROOT`] where there is no `/` or nothing before it.
pub fn family(key: &str) -> &str {
    match key.split_once('/') {
        Some((family, _)) if !family.is_empty() => family,
        _ => ROOT,
    }
}

/// The bucket of a family's shard.
pub fn bucket_of_shard(family: &str, shard: u16) -> String {
    format!("{family}#{shard:02x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_are_those_of_the_binaries_in_the_field() {
        let layout = Layout::default();
        for (key, bucket) in [
            ("tbl/ns/video", "tbl#02"),
            ("append-operation/v1/op", "append-operation#11"),
            ("append-active/v1/op", "append-active#3e"),
            ("lance-manifest/ns/table/1", "lance-manifest#13"),
            ("lance-manifest-latest/ns/table", "lance-manifest-latest#16"),
            ("lease", "root#05"),
            ("/leading", "root#06"),
            ("root/x", "root#01"),
            ("a#b/c", "a#b#03"),
            ("tbl/ns/é", "tbl#01"),
        ] {
            assert_eq!(layout.bucket(key), bucket, "{key}");
        }
    }

    /// 480 keys over eight families; the digest was taken with Python's hashlib from the same rule.
    #[test]
    fn a_few_hundred_more_buckets_are_pinned_by_their_digest() {
        let layout = Layout::default();
        let mut all = String::new();
        for family in [
            "tbl",
            "append-operation",
            "append-active",
            "lance-manifest",
            "lance-manifest-cleanup",
            "é",
            "a#0f",
            "",
        ] {
            for n in 0..60 {
                all.push_str(&layout.bucket(&format!("{family}/ключ/{n}/值")));
                all.push('\n');
            }
        }
        assert_eq!(hex::encode(Sha256::digest(&all)), include_str!("family.golden").trim());
    }

    #[test]
    fn families_that_begin_alike_stay_apart() {
        let keys = ["a/x", "a#/x", "a#0f/x", "ab/x", "a", "/a", "a\0/x"];
        let families: Vec<_> = keys.iter().map(|key| family(key)).collect();
        assert_eq!(families, ["a", "a#", "a#0f", "ab", ROOT, ROOT, "a\0"]);
    }

    #[test]
    fn composed_and_decomposed_letters_are_two_keys() {
        assert_ne!(family("\u{e9}/x"), family("e\u{301}/x"));
    }

    #[test]
    fn a_layout_outside_its_limits_is_refused() {
        for text in [
            "{}",
            "[]",
            r#"{"version":2,"default":8,"families":{}}"#,
            r#"{"version":1,"default":0,"families":{}}"#,
            r#"{"version":1,"default":8,"families":{"tbl":257}}"#,
            r#"{"version":1,"default":8,"families":{"a/b":2}}"#,
            r#"{"version":1,"default":8,"families":{},"more":1}"#,
        ] {
            let error = Layout::from_json(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
    }

    #[test]
    fn the_default_layout_survives_its_own_form_and_has_a_pinned_fingerprint() {
        let layout = Layout::default();
        let read = Layout::from_json(&serde_json::to_vec(&layout).unwrap()).unwrap();
        assert_eq!(read, layout);
        assert_eq!(layout.fingerprint(), "d61d94f998a2c75bf97b1126b2446d8c0434f8a75c7d18652493b71cf264c54d");
        let other = Layout::from_json(br#"{"version":1,"default":9,"families":{}}"#).unwrap();
        assert_ne!(other.fingerprint(), layout.fingerprint());
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_a_shard_table_or_invalid_input(text in "(\\PC{0,60}|[{}:,\"0-9a-z]{0,60})") {
            match Layout::from_json(text.as_bytes()) {
                Ok(layout) => prop_assert!(layout.shards("any") >= 1),
                Err(error) => prop_assert_eq!(error.kind(), ErrorKind::InvalidInput),
            }
        }

        #[test]
        fn a_bucket_names_its_family_and_a_shard_that_the_family_has(key in "\\PC{1,40}") {
            let layout = Layout::default();
            let bucket = layout.bucket(&key);
            let (name, shard) = bucket.rsplit_once('#').unwrap();
            prop_assert_eq!(name, family(&key));
            prop_assert!(u16::from_str_radix(shard, 16).unwrap() < layout.shards(name));
            prop_assert!(layout.buckets(name).any(|one| one == bucket));
        }
    }
}
