//! The native authority: a batch is a SlateDB write, under the one writer's epoch.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use slatedb::config::{CheckpointOptions, CheckpointScope};
use slatedb::{Db, DbTransaction, ErrorKind as StoreErrorKind, IsolationLevel};

use super::{Commit, CommitAuthority};
use crate::Result;
use crate::catalog::batch::{Anchor, Batch};
use crate::catalog::checkpoints::{self, Listed};
use crate::catalog::deadline::Deadline;
use crate::catalog::key::{Key, System};
use crate::catalog::location::Location;
use crate::catalog::read::{Read, StoreReader};
use crate::catalog::store::{Ending, close_writer, failed, open_writer};
use crate::catalog::value::{Head, Migration, unframe};
use crate::environment::Environment;

/// A catalog whose writer this process holds.
pub struct Native {
    db: Db,
    location: Location,
    deadline: Deadline,
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").finish_non_exhaustive()
    }
}

impl Native {
    /// Takes the writer's epoch after `epoch`, fencing whoever holds it; `Fenced` if it is not the latest any more.
    pub async fn open(location: &Location, epoch: u64, deadline: Deadline) -> Result<Self> {
        let (db, deadline) = open_writer(location, epoch, &deadline).await?;
        Ok(Self { db, location: location.clone(), deadline })
    }

    /// The deadline of this session's waits.
    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// The writer itself, for what is not a batch.
    pub fn db(&self) -> &Db {
        &self.db
    }
}

async fn stands(transaction: &DbTransaction, anchor: &Anchor, deadline: &Deadline) -> Result<bool> {
    let key = Key::System(System::Head).encode();
    let head = deadline.wait("reading head", transaction.get(&key)).await?;
    if head.map(|value| unframe::<Head>(&key, &value)).transpose()? != Some(anchor.head) {
        return Ok(false);
    }
    let key = Key::System(System::Migration).encode();
    let marker = deadline.wait("reading the marker", transaction.get(&key)).await?;
    Ok(marker.map(|value| unframe::<Migration>(&key, &value)).transpose()? == anchor.marker)
}

#[async_trait]
impl CommitAuthority for Native {
    async fn pin(&self) -> Result<Arc<dyn Read>> {
        let snapshot = self.db.snapshot().map_err(failed("pinning the catalog"))?;
        Ok(Arc::new(StoreReader::pinned(snapshot, self.deadline.clone())))
    }

    async fn commit(&self, anchor: &Anchor, batch: Batch) -> Result<Commit> {
        // Every batch puts head, so that a batch which moved it meanwhile is a conflict of two writes.
        let transaction = self.db.begin(IsolationLevel::Snapshot).map_err(failed("beginning a batch"))?;
        if !stands(&transaction, anchor, &self.deadline).await? {
            return Ok(Commit::Lost);
        }
        for (key, value) in &batch.puts {
            transaction.put(key, value).map_err(failed("staging a batch"))?;
        }
        for key in &batch.deletes {
            transaction.delete(key).map_err(failed("staging a batch"))?;
        }
        let commit = async {
            match transaction.commit().await {
                Ok(_) => Ok(Commit::Committed),
                Err(error) if error.kind() == StoreErrorKind::Transaction => Ok(Commit::Lost),
                Err(error) => Err(error),
            }
        };
        self.deadline.wait("committing a batch", commit).await
    }

    async fn settle(&self) -> Result<()> {
        self.deadline.wait("making the batches durable", self.db.flush()).await
    }

    async fn checkpoint(&self, name: &str, lifetime: Option<Duration>) -> Result<()> {
        let options =
            CheckpointOptions { lifetime, name: Some(name.to_owned()), ..CheckpointOptions::default() };
        let create = self.db.create_checkpoint(CheckpointScope::All, &options);
        let taken = self.deadline.wait(&format!("taking checkpoint {name}"), create).await?;
        checkpoints::supersede(&self.location, name, &taken.id.to_string(), &self.deadline).await
    }

    async fn open_readers(&self, environment: &Environment) -> Result<Vec<Listed>> {
        checkpoints::open_readers(&self.location, environment, &self.deadline).await
    }

    async fn close(&self, ending: Ending) -> Result<()> {
        close_writer(&self.db, ending, &self.deadline).await
    }
}
