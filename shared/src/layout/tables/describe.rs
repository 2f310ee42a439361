//! What the control plane says about the two tables.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, PointInTimeRecoveryStatus,
    ScalarAttributeType, SseSpecification, SseType, TableStatus, TimeToLiveStatus,
};

use aws_smithy_runtime_api::http::Response;

use super::failure::Failure;
use super::{Side, Tables};
use crate::{Error, ErrorKind, Result};

/// One attribute of a table's primary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAttribute {
    /// Attribute name.
    pub name: String,
    /// `HASH` or `RANGE`.
    pub kind: String,
    /// `S`, `N` or `B`.
    pub scalar: String,
}

/// What a probe found: on or off, `None` where the server does not know the operation and so has no such feature, an error where
/// it could not be found out.
pub type Probe = Result<Option<bool>>;

/// What is known of a table.
#[derive(Debug, Clone)]
pub struct TableFacts {
    /// The primary key.
    pub key: Vec<KeyAttribute>,
    /// Items, as DynamoDB counts them about every six hours.
    pub items: u64,
    /// Bytes, as DynamoDB counts them about every six hours.
    pub bytes: u64,
    /// True where the table is on-demand.
    pub on_demand: bool,
    /// True where the table can be used.
    pub active: bool,
    /// True where a delete needs the protection taken off first.
    pub deletion_protection: bool,
    /// Regions of global-table replicas.
    pub replicas: Vec<String>,
    /// ARN of the KMS key that it is encrypted with; `None` for DynamoDB's own key.
    pub kms_key: Option<String>,
    /// Whether items expire.
    pub ttl: Probe,
    /// Whether point-in-time recovery is on.
    pub point_in_time_recovery: Probe,
}

impl Tables {
    /// What is known of a table; `None` where it does not exist.
    pub async fn describe(&self, side: Side) -> Result<Option<TableFacts>> {
        let name = self.name(side);
        let described = self
            .attempt(&format!("describing table {name}"), || async {
                self.client
                    .describe_table()
                    .table_name(name)
                    .send()
                    .await
                    .map_err(|error| Failure::of(&error))
            })
            .await;
        let table = match described {
            Ok(answer) => answer.table.ok_or_else(|| {
                Error::new(ErrorKind::TableMismatch, format!("table {name} was described as nothing"))
            })?,
            Err(error) if error.kind() == ErrorKind::TableMismatch => return Ok(None),
            Err(error) => return Err(error),
        };
        let scalar = |name: &str| {
            let found = table.attribute_definitions().iter().find(|one| one.attribute_name() == name);
            found.map(|one| one.attribute_type().as_str().to_owned()).unwrap_or_default()
        };
        let key = table.key_schema().iter().map(|element| KeyAttribute {
            name: element.attribute_name().to_owned(),
            kind: element.key_type().as_str().to_owned(),
            scalar: scalar(element.attribute_name()),
        });
        let billing = table.billing_mode_summary().and_then(|summary| summary.billing_mode());
        Ok(Some(TableFacts {
            key: key.collect(),
            items: u64::try_from(table.item_count().unwrap_or_default()).unwrap_or_default(),
            bytes: u64::try_from(table.table_size_bytes().unwrap_or_default()).unwrap_or_default(),
            on_demand: billing == Some(&BillingMode::PayPerRequest),
            active: matches!(table.table_status(), Some(TableStatus::Active | TableStatus::Updating)),
            deletion_protection: table.deletion_protection_enabled().unwrap_or_default(),
            replicas: table
                .replicas()
                .iter()
                .filter_map(|one| one.region_name().map(str::to_owned))
                .collect(),
            kms_key: table.sse_description().and_then(|sse| sse.kms_master_key_arn().map(str::to_owned)),
            ttl: self.ttl(name).await,
            point_in_time_recovery: self.point_in_time_recovery(name).await,
        }))
    }

    async fn ttl(&self, name: &str) -> Probe {
        let answer = self
            .attempt(&format!("reading the time to live of {name}"), || async {
                let answer = self.client.describe_time_to_live().table_name(name).send().await;
                unless_not_offered(answer)
            })
            .await?;
        Ok(answer.map(|answer| {
            let status = answer.time_to_live_description().and_then(|ttl| ttl.time_to_live_status());
            matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling))
        }))
    }

    async fn point_in_time_recovery(&self, name: &str) -> Probe {
        let answer = self
            .attempt(&format!("reading the backups of {name}"), || async {
                let answer = self.client.describe_continuous_backups().table_name(name).send().await;
                unless_not_offered(answer)
            })
            .await?;
        Ok(answer.map(|answer| {
            answer
                .continuous_backups_description()
                .and_then(|backups| backups.point_in_time_recovery_description())
                .and_then(|recovery| recovery.point_in_time_recovery_status())
                == Some(&PointInTimeRecoveryStatus::Enabled)
        }))
    }

    /// Creates the companion table: on-demand, keyed by bucket and pk, with deletion protection, encrypted as v1 is.
    ///
    /// `TableMismatch` where the account or the KMS key does not allow it.
    pub async fn create_companion(&self) -> Result<()> {
        let name = self.name(Side::V2);
        let encrypted = self.describe(Side::V1).await?.and_then(|v1| v1.kms_key).map(|key| {
            let sse = SseSpecification::builder().enabled(true).sse_type(SseType::Kms);
            sse.kms_master_key_id(key).build()
        });
        let element = |name: &str, kind: KeyType| {
            KeySchemaElement::builder().attribute_name(name).key_type(kind).build().map_err(Failure::build)
        };
        let attribute = |name: &str| {
            AttributeDefinition::builder()
                .attribute_name(name)
                .attribute_type(ScalarAttributeType::S)
                .build()
                .map_err(Failure::build)
        };
        let what = format!("creating table {name}");
        let created = self.attempt(&what, || async {
            self.client
                .create_table()
                .table_name(name)
                .key_schema(element("bucket", KeyType::Hash)?)
                .key_schema(element("pk", KeyType::Range)?)
                .attribute_definitions(attribute("bucket")?)
                .attribute_definitions(attribute("pk")?)
                .billing_mode(BillingMode::PayPerRequest)
                .deletion_protection_enabled(true)
                .set_sse_specification(encrypted.clone())
                .send()
                .await
                .map_err(|error| Failure::of(&error))
        });
        if let Err(error) = created.await {
            // An answer that was lost, or somebody else: the table is there all the same.
            if self.describe(Side::V2).await?.is_none() {
                return Err(error);
            }
        }
        loop {
            if self.describe(Side::V2).await?.is_some_and(|facts| facts.active) {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}

/// A server that does not know the operation does not have the feature; any other failure tells nothing.
fn unless_not_offered<T, E>(answer: Result<T, SdkError<E, Response>>) -> Result<Option<T>, Failure>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.code() == Some("UnknownOperationException") => Ok(None),
        Err(error) => Err(Failure::of(&error)),
    }
}
