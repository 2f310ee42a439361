//! A digest of a set of items: equal sets have equal digests in whatever order and parts they were read.
//!
//! Each item is hashed to 256 bits by SHA-256 over a secret, its key (each after its length, 64 bits, big-endian) and its
//! value; the digest is the sum of the hashes, as four numbers of 64 bits modulo 2^64.
//!
//! **How likely two different tables go unnoticed.** Within a table a key occurs once (an item outside its bucket is a
//! finding of its own). So where two tables differ, the difference of their digests has a hash in it that occurs once, with
//! factor 1 or -1. With SHA-256 taken for a random function that difference is uniform, and zero with probability 2^-256. The
//! secret is 128 random bits, drawn as the barrier is installed, so that what the tables hold cannot depend on it: who wants
//! to make two tables collide has to guess it, with probability 2^-128.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Sum of the hashes of the items added; zero for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest([u64; 4]);

impl Digest {
    /// Adds an item; `secret` is the cutover's `digestKey`.
    pub fn add(&mut self, secret: &str, key: &str, value: &[u8]) {
        let mut hash = Sha256::new();
        for part in [secret.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(value);
        let hash = hash.finalize();
        for (sum, word) in self.0.iter_mut().zip(hash.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_be_bytes(*word));
        }
    }

    /// True where nothing was added.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        for (sum, word) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(word);
        }
    }
}

impl Serialize for Digest {
    /// 64 hex digits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [a, b, c, d] = self.0;
        serializer.collect_str(&format_args!("{a:016x}{b:016x}{c:016x}{d:016x}"))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(serde::de::Error::custom)?;
        let mut words = [0; 4];
        for (word, part) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*part);
        }
        Ok(Self(words))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(items: &[(String, Vec<u8>)]) -> Digest {
        let mut digest = Digest::default();
        for (key, value) in items {
            digest.add("secret", key, value);
        }
        digest
    }

    #[test]
    fn the_bytes_are_pinned() {
        let mut digest = Digest::default();
        // Computed apart, in Python; the sum of the two wraps.
        for (key, value, sum) in [
            (
                "tbl/ns/video",
                &b"value"[..],
                "cea7ff7936cadbbab5ec6ed68b3bca5bdf1dc4f9f77d5741b244c770b3824ce5",
            ),
            ("lease", &b""[..], "47f3f65aeab3a759cd5f00ddd80b98086abaeb192b614d10ec84f833a7c13141"),
        ] {
            digest.add("0123456789abcdef0123456789abcdef", key, value);
            assert_eq!(serde_json::to_value(digest).unwrap(), sum);
        }
        for bad in [r#""""#, r#""00""#, "7", &format!("\"{}\"", "g".repeat(64))] {
            assert!(serde_json::from_str::<Digest>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn where_the_key_ends_counts_and_so_does_the_secret() {
        let one = |secret, key, value: &[u8]| {
            let mut digest = Digest::default();
            digest.add(secret, key, value);
            digest
        };
        assert_ne!(one("s", "ab", b"c"), one("s", "a", b"bc"));
        assert_ne!(one("sa", "b", b"c"), one("s", "ab", b"c"));
        assert_ne!(one("s", "a", b"c"), one("t", "a", b"c"));
    }

    proptest! {
        #[test]
        fn it_is_of_the_set_and_its_parts_add_up(
            items in proptest::collection::vec((".{0,8}", proptest::collection::vec(any::<u8>(), 0..8)), 0..9),
            cut in 0_usize..9,
        ) {
            let whole = of(&items);
            let mut reversed = items.clone();
            reversed.reverse();
            prop_assert_eq!(of(&reversed), whole);
            let (some, others) = items.split_at(cut.min(items.len()));
            let mut sum = of(some);
            sum += of(others);
            prop_assert_eq!(sum, whole);
            let again: Digest = serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
            prop_assert_eq!(again, whole);
        }

        #[test]
        fn one_item_more_less_or_other_shows(
            items in proptest::collection::vec((".{0,8}", proptest::collection::vec(any::<u8>(), 0..8)), 1..9),
            at in any::<proptest::sample::Index>(),
        ) {
            let whole = of(&items);
            let at = at.index(items.len());
            let mut fewer = items.clone();
            fewer.remove(at);
            prop_assert_ne!(of(&fewer), whole);
            let mut other = items;
            other[at].1.push(0);
            prop_assert_ne!(of(&other), whole);
        }
    }
}
