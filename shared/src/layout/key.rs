//! Which keys and items each table can hold.

use super::family::Layout;
use crate::{Error, ErrorKind, Result};

/// The migrator's own records, and those of other migrators to this layout, begin with this; no user key does.
///
/// What lake keeps elsewhere under [`RESERVED_PREFIX`] is a user item like any other.
pub const INTERNAL_PREFIX: &str = "__lake_internal/dynamo-prefix-v2";

/// Keys of lake itself begin with this, the migrator's among them; nothing under it is ever retired.
pub const RESERVED_PREFIX: &str = "__lake_internal/";

/// The key that lake puts with every register and drop of a table: a signal, see
/// [`super::store::MetaStore::signaled_mutate`].
pub const LAKE_SIGNAL_KEY: &str = "__lake_internal/catalog-directory-generation";

/// Most bytes of a HASH key (DynamoDB's limit for partition keys).
pub const MOST_V1_KEY_BYTES: usize = 2048;

/// Most bytes of a RANGE key (DynamoDB's limit for sort keys).
pub const MOST_V2_KEY_BYTES: usize = 1024;

/// Most bytes of an item, names and values together (DynamoDB's limit, 400 KB).
pub const MOST_ITEM_BYTES: usize = 409_600;

/// Bytes of the attribute names `pk` and `val`.
const V1_NAME_BYTES: usize = 5;

/// Bytes of the attribute names `bucket`, `pk` and `val`.
const V2_NAME_BYTES: usize = 11;

/// True for the migrator's own records.
pub fn is_internal(key: &str) -> bool {
    key.starts_with(INTERNAL_PREFIX)
}

/// Refuses keys that no table holds or that belong to the migrator: `InvalidKey`.
pub fn check_v1_key(key: &str) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::InvalidKey, message));
    if key.is_empty() {
        return invalid("a key has at least one byte".to_owned());
    }
    if is_internal(key) {
        return invalid(format!("{key:?}: keys under {INTERNAL_PREFIX} belong to the migrator"));
    }
    if key.len() > MOST_V1_KEY_BYTES {
        return invalid(format!("a key of {} bytes; at most {MOST_V1_KEY_BYTES} are possible", key.len()));
    }
    Ok(())
}

/// Refuses what v1 could hold and v2 cannot: `KeyTooLong`, `ItemTooLarge`; and all that [`check_v1_key`] refuses.
///
/// `value_bytes` is the length of `val`.
pub fn check_v2_item(layout: &Layout, key: &str, value_bytes: usize) -> Result<()> {
    check_v1_key(key)?;
    if key.len() > MOST_V2_KEY_BYTES {
        return Err(Error::new(
            ErrorKind::KeyTooLong,
            format!(
                "{key:?} has {} bytes; the prefix layout holds keys of up to {MOST_V2_KEY_BYTES}",
                key.len()
            ),
        )
        .next("shorten the key or delete the record"));
    }
    let bytes = v2_item_bytes(layout, key, value_bytes);
    if bytes > MOST_ITEM_BYTES {
        return Err(Error::new(
            ErrorKind::ItemTooLarge,
            format!(
                "{key:?} takes {bytes} bytes in the prefix layout; an item has at most {MOST_ITEM_BYTES}"
            ),
        )
        .next("shrink the value or delete the record"));
    }
    Ok(())
}

/// Bytes of an item in v1.
pub fn v1_item_bytes(key: &str, value_bytes: usize) -> usize {
    V1_NAME_BYTES + key.len() + value_bytes
}

/// Bytes of an item in v2.
pub fn v2_item_bytes(layout: &Layout, key: &str, value_bytes: usize) -> usize {
    V2_NAME_BYTES + layout.bucket(key).len() + key.len() + value_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(key: &str, value: usize) -> Option<ErrorKind> {
        check_v2_item(&Layout::default(), key, value).err().map(|error| error.kind())
    }

    #[test]
    fn the_key_limits_are_bytes_not_letters() {
        let two_bytes = "é";
        assert_eq!(kind(&two_bytes.repeat(512), 1), None);
        assert_eq!(kind(&format!("{}x", two_bytes.repeat(512)), 1), Some(ErrorKind::KeyTooLong));
        assert_eq!(kind(&"k".repeat(2048), 1), Some(ErrorKind::KeyTooLong));
        assert_eq!(kind(&"k".repeat(2049), 1), Some(ErrorKind::InvalidKey));
        assert_eq!(kind("", 1), Some(ErrorKind::InvalidKey));
        for internal in ["", "-authority", "/plan", "x"] {
            assert_eq!(kind(&format!("{INTERNAL_PREFIX}{internal}"), 1), Some(ErrorKind::InvalidKey));
        }
    }

    #[test]
    fn what_lake_keeps_elsewhere_under_its_prefix_is_a_user_key() {
        for key in ["catalog-directory-generation", "catalog-directory-authoritative", "dynamo-prefix-v", ""]
        {
            assert_eq!(kind(&format!("{RESERVED_PREFIX}{key}"), 1), None, "{key}");
        }
        assert_eq!(kind("__lake_internal", 1), None);
    }

    #[test]
    fn the_bucket_takes_the_last_bytes_of_an_item() {
        let most = MOST_ITEM_BYTES - "bucketpkval".len() - "tbl#02".len() - "tbl/ns/video".len();
        assert_eq!(kind("tbl/ns/video", most), None);
        assert_eq!(kind("tbl/ns/video", most + 1), Some(ErrorKind::ItemTooLarge));
        assert_eq!(
            v1_item_bytes("tbl/ns/video", most + 1),
            MOST_ITEM_BYTES - "bucket".len() - "tbl#02".len() + 1
        );
    }
}
