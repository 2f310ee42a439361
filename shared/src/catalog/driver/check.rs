//! The read-only pass over a unit's source range, before its marker stands.
//!
//! A marker cannot be taken back by an older binary, so everything that would stop a step is found first: records
//! that do not decode, names and keys that the store cannot hold, names that two live records claim.

use std::collections::HashMap;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::catalog::key::{LONGEST_KEY, shown};
use crate::catalog::read::{Fetch, Range, Read};
use crate::catalog::units::{Claim, Directory, Kind, Unit};
use crate::step::Budget;
use crate::{Error, ErrorKind, Result};

/// Rows between two looks at the clock.
const LOOK: u64 = 4096;
/// Names that one error lists; the others are counted.
const LISTED: usize = 10;

/// What the pass counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Findings {
    /// Source records.
    pub records: u64,
    /// Bytes of the keys and values that the unit will write and delete.
    pub bytes: u64,
}

/// Reads the source range of `unit` after `cursor`. `NameTooLong` lists the names that its format cannot hold; any other
/// finding is `Corruption` naming the keys, but for a record that is to expire by itself, which is `Migration`; `Timeout` where
/// the budget ends before it.
pub async fn check(state: &dyn Read, unit: &dyn Unit, cursor: &[u8], budget: &Budget) -> Result<Findings> {
    let mut pass = Pass::after(cursor);
    pass.over(state, unit, budget).await?;
    pass.end(unit)
}

/// A pass that may be interrupted by what happens to the store below, and goes on from the record behind the last one.
#[derive(Debug, Default)]
pub struct Pass {
    last: Bytes,
    findings: Findings,
    claims: Claims,
    names: Vec<String>,
    more_names: u64,
}

impl Pass {
    /// A pass over what lies behind a cursor.
    pub fn after(cursor: &[u8]) -> Self {
        Self { last: Bytes::copy_from_slice(cursor), ..Self::default() }
    }

    /// How many records it has passed.
    pub fn records(&self) -> u64 {
        self.findings.records
    }

    /// Goes to the end of the range, on a state with the same records as those before; errors as those of [`check`], but for
    /// `NameTooLong`.
    pub async fn over(&mut self, state: &dyn Read, unit: &dyn Unit, budget: &Budget) -> Result<()> {
        let mut rows = state.scan(unit.source().after(&self.last), Fetch::Ahead).await?;
        while let Some((key, value)) = rows.next().await? {
            if let Some(expiring) = rows.expiring() {
                return Err(Error::new(
                    ErrorKind::Migration,
                    format!("record {} is to expire by itself (a time to live), which {} would not keep", shown(expiring), unit.name()),
                )
                .next("no release of the catalog's software writes such records: look who did, and put it again without an end, or delete it"));
            }
            self.take(unit, &key, &value)?;
            self.last = key;
            let records = self.findings.records;
            if records.is_multiple_of(LOOK) && budget.time_left().is_some_and(|left| left.is_zero()) {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!(
                        "checking {} did not fit into one invocation ({records} records read)",
                        unit.name()
                    ),
                )
                .next("give the step more time"));
            }
        }
        Ok(())
    }

    fn take(&mut self, unit: &dyn Unit, key: &Bytes, value: &Bytes) -> Result<()> {
        let translation = match unit.translate(key, value) {
            Err(error) if error.kind() == ErrorKind::NameTooLong => {
                if self.names.len() < LISTED {
                    self.names.push(format!("{} ({})", error.message(), shown(key)));
                } else {
                    self.more_names += 1;
                }
                self.findings.records += 1;
                return Ok(());
            }
            other => other?,
        };
        if let Some((long, _)) = translation.batch.puts.iter().find(|(key, _)| key.len() > LONGEST_KEY) {
            return Err(too_long(key, long));
        }
        if let (Some(claim), Some(directory)) = (&translation.claim, unit.directory())
            && let Some(other) = self.claims.take(claim)
        {
            return Err(twice(unit, key, &directory.record(&claim.key, other)?));
        }
        self.findings.records += 1;
        self.findings.bytes += translation.batch.bytes();
        Ok(())
    }

    /// What it counted; `NameTooLong` for names that the format of the unit cannot hold.
    pub fn end(self, unit: &dyn Unit) -> Result<Findings> {
        if self.names.is_empty() {
            return Ok(self.findings);
        }
        let more =
            if self.more_names > 0 { format!("; and {} more", self.more_names) } else { String::new() };
        let message = format!("format {} cannot hold: {}{more}", unit.to_format(), self.names.join("; "));
        Err(Error::new(ErrorKind::NameTooLong, message)
            .next("rename them with the catalog's own software, then run the same command again"))
    }
}

fn too_long(source: &[u8], key: &[u8]) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("record {} needs a key of {} bytes; the store holds {LONGEST_KEY}", shown(source), key.len()),
    )
}

/// Two live records with one directory key.
fn twice(unit: &dyn Unit, one: &[u8], other: &[u8]) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("{}: records {} and {} have the same name", unit.name(), shown(other), shown(one)),
    )
}

/// Directory keys and the ids that hold them, as 128 bits of SHA-256 and 64 of id a key: a million names in 48 MB.
#[derive(Debug, Default)]
pub struct Claims {
    holders: HashMap<[u8; 16], u64>,
}

impl Claims {
    /// The entries that a directory already holds.
    ///
    /// `Corruption` for an entry that is none of the unit.
    pub async fn of(state: &dyn Read, unit: &dyn Unit) -> Result<Self> {
        let mut claims = Self::default();
        if let (Kind::Directory { entries }, Some(directory)) = (unit.kind(), unit.directory()) {
            let mut rows = state.scan(Range::prefix(&entries), Fetch::Ahead).await?;
            while let Some((key, value)) = rows.next().await? {
                let id = directory.id(&key, &value)?;
                claims.take(&Claim { key, id });
            }
        }
        Ok(claims)
    }

    /// Notes a claim; the other id that held the key before.
    pub fn take(&mut self, claim: &Claim) -> Option<u64> {
        let mut short = [0; 16];
        short.iter_mut().zip(Sha256::digest(&claim.key)).for_each(|(to, from)| *to = from);
        self.holders.insert(short, claim.id).filter(|holder| *holder != claim.id)
    }

    /// Takes a claim in a step. Another holder is `Corruption` if its record is live under the same name, else a
    /// leftover that is overwritten.
    pub async fn settle(
        &mut self,
        state: &dyn Read,
        unit: &dyn Unit,
        directory: &dyn Directory,
        source: &Bytes,
        claim: &Claim,
    ) -> Result<()> {
        let Some(other) = self.take(claim) else { return Ok(()) };
        let record = directory.record(&claim.key, other)?;
        let Some(value) = state.get(&record).await? else { return Ok(()) };
        let rival = unit.translate(&record, &value)?.claim;
        match rival {
            Some(rival) if rival.key == claim.key => Err(twice(unit, source, &record)),
            _ => Ok(()),
        }
    }
}
