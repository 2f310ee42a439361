//! Where the clients of AWS services take credentials, region, endpoint and route from: one chain for all of them.
//!
//! It is the SDK's: environment, profile (keys, assumed roles, SSO, `credential_process`), web identity, container, instance
//! metadata. Where `AWS_PROFILE` names a profile, that one answers or nothing does: the SDK would go on to the role of the
//! machine, and a misspelt name would write with another's rights.

use std::error::Error as StdError;

use aws_config::environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider};
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::error::{CredentialsError, TokenError};
use aws_credential_types::provider::token::ProvideToken;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_http_client::{Builder, ConnectorBuilder};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::shared::IntoShared;
use aws_types::service_config::ServiceConfigKey;

/// What to do where the chain has no credentials.
pub const NEEDS_CREDENTIALS: &str = "set AWS credentials and a region, for example AWS_PROFILE and AWS_REGION; sign in again where they have expired";

/// The configuration of this process; `region` is one that a person named.
#[allow(clippy::disallowed_methods, reason = "the one place that makes a chain")]
pub async fn config(region: Option<&str>) -> SdkConfig {
    let client = Routed { proxied: client(ProxyConfig::from_env), direct: direct() }.into_shared();
    let loader = aws_config::defaults(BehaviorVersion::latest());
    let loader = loader.token_provider(NoToken).http_client(SharedHttpClient::clone(&client));
    let named = region.map(|region| Region::new(region.to_owned()));
    let Some(name) = variable("AWS_PROFILE") else {
        return match named {
            Some(region) => loader.region(region).load().await,
            None => loader.load().await,
        };
    };
    // Without the instance's metadata: asking it would take seconds elsewhere, and its answer is not what was named.
    let region = RegionProviderChain::first_try(named)
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new())
        .region()
        .await;
    let surroundings = ProviderConfig::default().with_region(region.clone()).with_http_client(client);
    let chain = NamedProfile { name, keys: EnvironmentVariableCredentialsProvider::new(), surroundings };
    loader.region(RegionProviderChain::first_try(region)).credentials_provider(chain).load().await
}

/// The environment's keys, else those of a profile, else none.
#[derive(Debug)]
struct NamedProfile {
    name: String,
    keys: EnvironmentVariableCredentialsProvider,
    surroundings: ProviderConfig,
}

/// No service here takes a bearer token, and the SDK's own chain for one asks the instance for a region.
#[derive(Debug)]
struct NoToken;

impl ProvideToken for NoToken {
    fn provide_token<'a>(&'a self) -> future::ProvideToken<'a>
    where
        Self: 'a,
    {
        future::ProvideToken::ready(Err(TokenError::not_loaded("no service is asked with a token")))
    }
}

impl ProvideCredentials for NamedProfile {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            if let Ok(keys) = self.keys.provide_credentials().await {
                return Ok(keys);
            }
            // Made each time: it tells the reason of a failure only once.
            let profile = ProfileFileCredentialsProvider::builder().configure(&self.surroundings).build();
            profile.provide_credentials().await.map_err(|error| match error.source() {
                Some(_) => error,
                None => CredentialsError::not_loaded(format!("profile `{}` has no credentials", self.name)),
            })
        })
    }
}

/// The server of a service (`DynamoDB`, `S3`, …) as environment or profile names it; `None`: AWS.
///
/// `AWS_ENDPOINT_URL_<SERVICE>`, `AWS_ENDPOINT_URL`, then the same of the profile; none of them where
/// `AWS_IGNORE_CONFIGURED_ENDPOINT_URLS` or the profile says so.
pub fn endpoint(config: &SdkConfig, service: &str) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id(service)
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    let own = config.service_config().and_then(|settings| settings.load_config(key));
    own.or_else(|| config.endpoint_url().map(str::to_owned)).filter(|found| !found.is_empty())
}

/// An address without the user and the secret that it may hold.
pub fn without_secret(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        None => address.to_owned(),
        Some((_, host)) if scheme.is_empty() => format!("…@{host}{path}"),
        Some((_, host)) => format!("{scheme}://…@{host}{path}"),
    }
}

/// True for a server on this machine.
pub fn is_loopback(endpoint: &str) -> bool {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
        rest.strip_prefix(host).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    })
}

/// True where the environment names credentials of its own; a server on this machine takes any.
pub fn names_credentials() -> bool {
    ["AWS_ACCESS_KEY_ID", "AWS_PROFILE"].into_iter().any(|name| variable(name).is_some())
}

/// A client that connects by itself, whatever proxy the environment names: for a server on this machine.
pub fn direct() -> SharedHttpClient {
    client(ProxyConfig::disabled)
}

fn client(proxy: fn() -> ProxyConfig) -> SharedHttpClient {
    Builder::new().build_with_connector_fn(move |settings, components| {
        let mut builder = ConnectorBuilder::default().tls_provider(Provider::Rustls(CryptoMode::AwsLc));
        builder.set_connector_settings(settings.cloned()).set_proxy_config(Some(proxy()));
        builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        builder.build()
    })
}

/// The proxy of the environment, but never for what is on this machine or is the machine's own: a proxy's instance metadata is
/// another machine's role.
#[derive(Debug)]
struct Routed {
    proxied: SharedHttpClient,
    direct: SharedHttpClient,
}

impl HttpClient for Routed {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(RoutedConnector {
            proxied: self.proxied.http_connector(settings, components),
            direct: self.direct.http_connector(settings, components),
        })
    }
}

#[derive(Debug)]
struct RoutedConnector {
    proxied: SharedHttpConnector,
    direct: SharedHttpConnector,
}

impl HttpConnector for RoutedConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        if is_loopback(request.uri()) || is_metadata(request.uri()) {
            self.direct.call(request)
        } else {
            self.proxied.call(request)
        }
    }
}

/// True for what a machine or a container knows of itself.
fn is_metadata(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    ["169.254.", "[fd00:ec2::"].iter().any(|start| rest.starts_with(start))
}

/// An error with everything that caused it, in one line.
pub fn reason(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

/// A variable of the environment; empty is not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_this_machine() {
        for here in ["http://127.0.0.1:8000", "http://localhost", "https://[::1]:1/x"] {
            assert!(is_loopback(here), "{here}");
        }
        for there in
            ["http://localhost.example.com", "https://dynamodb.eu-west-1.amazonaws.com", "http://127.0.0.10"]
        {
            assert!(!is_loopback(there), "{there}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_secret() {
        assert_eq!(without_secret("s3://user:se@cret@bucket/a@b"), "s3://…@bucket/a@b");
        assert_eq!(without_secret("user:secret@host"), "…@host");
        assert_eq!(without_secret("s3://bucket/a@b"), "s3://bucket/a@b");
    }

    #[test]
    fn a_reason_says_each_cause_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Outer(&'static str, #[source] std::io::Error);
        let cause = || std::io::Error::other("no token");
        assert_eq!(reason(&Outer("loading failed", cause())), "loading failed: no token");
        assert_eq!(reason(&Outer("loading failed: no token", cause())), "loading failed: no token");
    }
}
