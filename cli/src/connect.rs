//! From flags and environment to the two tables.

use std::path::PathBuf;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{Builder, Credentials};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use metashift::environment::Environment;
use metashift::layout::{Layout, Tables, tables};
use metashift::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

/// Which tables, and where.
#[derive(Debug, Clone, Args)]
pub(crate) struct TableArgs {
    /// The v1 table.
    #[arg(long, env = "LAKE_DYNAMODB_TABLE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) table: String,
    /// The companion table; the name of the v1 table and `_prefix_v2` unless named.
    #[arg(long)]
    companion: Option<String>,
    /// Address of a DynamoDB-compatible server; AWS unless named.
    #[arg(long, env = "AWS_ENDPOINT_URL_DYNAMODB", value_parser = address)]
    endpoint: Option<String>,
    /// AWS region; else as the environment says.
    #[arg(long)]
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
        let client = tables::client(self.config().await);
        Ok(Tables::new(client, &self.table, self.companion.clone(), layout, Environment::system()))
    }

    /// True where no other server is named.
    pub(crate) fn is_aws(&self) -> bool {
        self.endpoint.is_none()
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

    async fn config(&self) -> Builder {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &self.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &self.endpoint
            && is_on_this_machine(endpoint)
            && !names_credentials()
        {
            // A server on this machine takes any; looking for real ones would only be slow.
            loader = loader.credentials_provider(Credentials::new("local", "local", None, None, "metashift"));
        }
        let shared = loader.load().await;
        let mut config = Builder::from(&shared);
        if let Some(endpoint) = &self.endpoint {
            config = config.endpoint_url(endpoint);
            if shared.region().is_none() {
                config = config.region(aws_sdk_dynamodb::config::Region::from_static("us-east-1"));
            }
        }
        config
    }
}

/// The environment's AWS configuration.
pub(crate) async fn sdk_config(region: Option<&str>) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(region) = region {
        loader = loader.region(Region::new(region.to_owned()));
    }
    loader.load().await
}

fn address(text: &str) -> std::result::Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        return Ok(text.to_owned());
    }
    Err("the address of a server begins with http:// or https://".to_owned())
}

fn is_on_this_machine(endpoint: &str) -> bool {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
        rest.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    })
}

fn names_credentials() -> bool {
    ["AWS_ACCESS_KEY_ID", "AWS_PROFILE"].iter().any(|name| std::env::var_os(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_how_it_is_spoken_to() {
        assert!(address("http://h:1").is_ok() && address("https://h").is_ok());
        assert!(address("127.0.0.1:8000").is_err() && address("").is_err());
    }

    #[test]
    fn only_this_machine_is_this_machine() {
        assert!(is_on_this_machine("http://127.0.0.1:8000"));
        assert!(is_on_this_machine("http://localhost"));
        assert!(!is_on_this_machine("http://localhost.example.com"));
        assert!(!is_on_this_machine("https://dynamodb.eu-west-1.amazonaws.com"));
    }
}
