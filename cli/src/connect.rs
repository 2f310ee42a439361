//! From flags and environment to the two tables.

use std::path::PathBuf;

use aws_config::SdkConfig;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use metashift::aws;
use metashift::environment::Environment;
use metashift::layout::{Layout, Tables, tables};
use metashift::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use crate::again::quoted;

/// Which tables, and where.
#[derive(Debug, Clone, Args)]
pub(crate) struct TableArgs {
    /// The v1 table.
    #[arg(long, env = "LAKE_DYNAMODB_TABLE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) table: String,
    /// The companion table; the name of the v1 table and `_prefix_v2` unless named.
    #[arg(long)]
    companion: Option<String>,
    /// Address of a DynamoDB-compatible server; else as AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL or the profile say, else AWS.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    endpoint: Option<String>,
    /// AWS region; else as the environment or the profile says.
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    region: Option<String>,
    /// Another shard table than the field's: {"version":1,"default":8,"families":{"name":shards}}.
    #[arg(long, value_name = "FILE")]
    layout: Option<PathBuf>,
}

impl TableArgs {
    /// Both tables, by these flags.
    pub(crate) async fn tables(&self) -> Result<Tables> {
        let layout = match &self.layout {
            None => Layout::default(),
            Some(path) => {
                let text = std::fs::read(path).map_err(|error| {
                    Error::new(ErrorKind::InvalidInput, format!("{}: {error}", path.display()))
                        .next("name a readable file with --layout")
                })?;
                Layout::from_json(&text)?
            }
        };
        let client = tables::connect(&aws::config(self.region()).await, self.endpoint.as_deref())?;
        Ok(Tables::new(client, &self.table, self.companion.clone(), layout, Environment::system()))
    }

    /// The configuration, where no other server than AWS is named.
    pub(crate) async fn aws(&self) -> Option<SdkConfig> {
        let config = aws::config(self.region()).await;
        let other = self.endpoint.is_some() || aws::endpoint(&config, tables::SERVICE).is_some();
        (!other).then_some(config)
    }

    /// The flags by which the aws CLI goes to the same tables, each after a space.
    pub(crate) async fn aws_flags(&self) -> String {
        let config = aws::config(self.region()).await;
        let endpoint = self.endpoint.clone().or_else(|| aws::endpoint(&config, tables::SERVICE));
        // A server elsewhere than on AWS has no region, but a signature needs one.
        let usual = endpoint.as_ref().map(|_| "us-east-1".to_owned());
        let region = config.region().map(|region| region.as_ref().to_owned()).or(usual);
        let profile = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
        [("--profile", profile), ("--region", region), ("--endpoint-url", endpoint)]
            .into_iter()
            .filter_map(|(flag, value)| Some(format!(" {flag} {}", quoted(&value?))))
            .collect()
    }

    /// The region that the flags name.
    pub(crate) fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }

    /// The fields of a state machine's input that name the tables; what the stack knows by itself is left out.
    pub(crate) fn machine_input(&self, layout: &Layout) -> Map<String, Value> {
        let mut input =
            Map::from_iter([("version".to_owned(), json!(1)), ("table".to_owned(), json!(self.table))]);
        if let Some(companion) = &self.companion {
            input.insert("companion".to_owned(), json!(companion));
        } else {
            input
                .insert("companion".to_owned(), json!(format!("{}{}", self.table, tables::COMPANION_SUFFIX)));
        }
        if self.layout.is_some() {
            input.insert("layout".to_owned(), json!(layout));
        }
        input
    }
}

/// True where the environment names a server for DynamoDB alone, and so no state machine works on its tables.
pub(crate) fn environment_names_a_server() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let ignored =
        set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_some_and(|on| on.eq_ignore_ascii_case("true"));
    !ignored && set("AWS_ENDPOINT_URL_DYNAMODB").is_some()
}
