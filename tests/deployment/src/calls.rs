//! What each step calls, as (what it works on, action). The template's policies allow exactly this.
//!
//! An action inside a transaction needs the permission of its own kind (`PutItem`, `DeleteItem`,
//! `ConditionCheckItem`); `TransactGetItems` needs `GetItem`.

/// What a call works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Any key of the v1 table.
    V1,
    /// Keys of the v1 table under `__lake_internal/dynamo-prefix-v2`, the only ones that are ever written there.
    V1Internal,
    /// The v2 table.
    V2,
    /// CloudWatch, which knows no resources.
    Metrics,
    /// The catalog's bucket.
    Bucket,
    /// Objects below the catalog's prefix.
    Objects,
}

use Target::{Bucket, Metrics, Objects, V1, V1Internal, V2};

/// One step and its calls.
pub type Calls = (&'static str, &'static [(Target, &'static [&'static str])]);

/// Every step.
pub const ALL: &[Calls] = &[
    (
        "preflight",
        &[
            (V1, &["DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups"]),
            (V1, &["GetItem", "BatchGetItem", "ConditionCheckItem"]),
            (V1Internal, &["PutItem", "DeleteItem"]),
            (V2, &["DescribeTable", "DescribeTimeToLive", "DescribeContinuousBackups"]),
            (Metrics, &["GetMetricData"]),
        ],
    ),
    (
        "backfill-page",
        &[
            (V1, &["Scan", "GetItem", "BatchGetItem", "ConditionCheckItem"]),
            (V1Internal, &["PutItem", "DeleteItem"]),
            (V2, &["GetItem", "BatchGetItem", "PutItem"]),
        ],
    ),
    (
        "verify",
        &[
            (V1, &["Scan", "GetItem", "BatchGetItem", "ConditionCheckItem"]),
            (V1Internal, &["PutItem"]),
            (V2, &["Scan", "GetItem", "BatchGetItem"]),
        ],
    ),
    (
        "repair-page",
        &[
            (V1, &["Scan", "GetItem", "BatchGetItem", "ConditionCheckItem"]),
            (V1Internal, &["PutItem"]),
            (V2, &["Scan", "GetItem", "BatchGetItem", "PutItem", "DeleteItem"]),
        ],
    ),
    ("finish-repair", &[(V1, &["GetItem", "BatchGetItem"]), (V1Internal, &["PutItem"])]),
    ("check-rollout", &[(Metrics, &["GetMetricData"])]),
    (
        "install-barrier",
        &[(V1, &["GetItem", "BatchGetItem", "ConditionCheckItem"]), (V1Internal, &["PutItem"])],
    ),
    (
        "publish-marker",
        &[(V1, &["GetItem", "BatchGetItem", "ConditionCheckItem"]), (V1Internal, &["PutItem"])],
    ),
    (
        "release-barrier",
        &[(V1, &["GetItem", "BatchGetItem", "ConditionCheckItem"]), (V1Internal, &["PutItem", "DeleteItem"])],
    ),
    ("verify-prefix-reads", &[(V1, &["GetItem", "BatchGetItem"]), (V2, &["Query"])]),
    (
        "catalog-migrate-step",
        &[
            (Bucket, &["ListBucket"]),
            (Objects, &["GetObject", "PutObject", "AbortMultipartUpload", "DeleteObject"]),
        ],
    ),
];

/// Dimensions migration and phase of `WriterMode`, which metadata nodes emit. A step's are the label and its name.
pub const WRITER: [&str; 2] = ["layout", "serve"];

/// Dimension migration of the catalog's own metrics.
pub const CATALOG: &str = "catalog";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_repair_deletes_in_v2_and_nothing_writes_user_keys_of_v1() {
        for (step, calls) in ALL {
            for (target, actions) in *calls {
                let writes = ["PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"];
                assert!(*target != V1 || !actions.iter().any(|action| writes.contains(action)), "{step}");
                assert!(
                    *target != V2 || *step == "repair-page" || !actions.contains(&"DeleteItem"),
                    "{step}"
                );
            }
        }
    }
}
