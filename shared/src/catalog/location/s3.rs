//! A bucket as an object store: credentials, region and endpoint of the one chain, what else the environment says by
//! `object_store`'s own names.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use futures::lock::Mutex;
use jiff::Timestamp;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, Checksum};
use object_store::client::{
    ClientConfigKey, CredentialProvider, HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector,
};
use object_store::{ClientOptions, Error as ObjectError, Result as ObjectResult};

use crate::aws;
use crate::environment::{Environment, elapsed};

/// A proxy that is named and used for nothing on this machine: without one the environment's would be used.
const NO_PROXY: (&str, &str) = ("http://127.0.0.1:9", "localhost,127.0.0.0/8,::1");

/// How long a bucket may take to say where it is.
const ANSWER: Duration = Duration::from_secs(10);

/// Credentials that end within this are asked for again.
const BEFORE_THEY_END: Duration = Duration::from_secs(300);

/// The bucket.
pub(super) async fn bucket(name: &str) -> ObjectResult<AmazonS3> {
    let config = aws::config(None).await;
    let mut builder = environment().with_bucket_name(name);
    // A bucket with object lock takes no object without one.
    if std::env::var_os("AWS_CHECKSUM_ALGORITHM").is_none_or(|algorithm| algorithm.is_empty()) {
        builder = builder.with_checksum_algorithm(Checksum::SHA256);
    }
    if let Some(region) = config.region() {
        builder = builder.with_region(region.as_ref());
    }
    let endpoint = aws::endpoint(&config, "S3");
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint);
        if endpoint.starts_with("http://") {
            builder = builder.with_allow_http(true);
        }
    }
    if endpoint.as_deref().is_some_and(aws::is_loopback) {
        let option = |key| AmazonS3ConfigKey::Client(key);
        builder = builder.with_config(option(ClientConfigKey::ProxyUrl), NO_PROXY.0);
        builder = builder.with_config(option(ClientConfigKey::ProxyExcludes), NO_PROXY.1);
    }
    let local = endpoint.as_deref().is_some_and(aws::is_loopback) && !aws::names_credentials();
    let provider = match config.credentials_provider() {
        Some(provider) if !local => provider,
        // A server on this machine takes any.
        _ => SharedCredentialsProvider::new(Credentials::new("local", "local", None, None, "metashift")),
    };
    builder.with_credentials(Arc::new(Chain::new(provider, Environment::system()))).build()
}

/// The region that a bucket is in: S3 says it with every answer about a bucket, a refusal too.
pub(super) async fn region_of(bucket: &str) -> Option<String> {
    let config = aws::config(None).await;
    let endpoint = aws::endpoint(&config, "S3").unwrap_or_else(|| "https://s3.amazonaws.com".to_owned());
    let mut options = ClientOptions::new().with_allow_http(true).with_timeout(ANSWER);
    if aws::is_loopback(&endpoint) {
        options = options.with_proxy_url(NO_PROXY.0).with_proxy_excludes(NO_PROXY.1);
    }
    let client = ReqwestConnector::default().connect(&options).ok()?;
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = "HEAD".parse().ok()?;
    *request.uri_mut() = format!("{}/{bucket}", endpoint.trim_end_matches('/')).parse().ok()?;
    let answer = client.execute(request).await.ok()?;
    answer.headers().get("x-amz-bucket-region")?.to_str().ok().map(str::to_owned)
}

/// What `object_store` reads from the environment and the chain does not: encryption, checksums, requester pays, time-outs.
fn environment() -> AmazonS3Builder {
    std::env::vars()
        .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
        .filter(|(key, _)| !is_of_the_chain(*key))
        .fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value))
}

fn is_of_the_chain(key: AmazonS3ConfigKey) -> bool {
    use AmazonS3ConfigKey as Key;
    matches!(
        key,
        Key::AccessKeyId
            | Key::SecretAccessKey
            | Key::Token
            | Key::Region
            | Key::DefaultRegion
            | Key::Bucket
            | Key::Endpoint
            | Key::S3Endpoint
            | Key::StsEndpoint
            | Key::ImdsV1Fallback
            | Key::MetadataEndpoint
            | Key::ContainerCredentialsRelativeUri
            | Key::ContainerCredentialsFullUri
            | Key::ContainerAuthorizationTokenFile
            | Key::WebIdentityTokenFile
            | Key::RoleArn
            | Key::RoleSessionName
    )
}

/// The chain as `object_store` asks it: before each request, so that an answer is kept until it is about to end.
#[derive(Debug)]
struct Chain {
    provider: SharedCredentialsProvider,
    environment: Environment,
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug, Clone)]
struct Kept {
    credential: Arc<AwsCredential>,
    ends: Option<Timestamp>,
}

impl Chain {
    fn new(provider: SharedCredentialsProvider, environment: Environment) -> Self {
        Self { provider, environment, kept: Mutex::new(None) }
    }
}

#[async_trait]
impl CredentialProvider for Chain {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> ObjectResult<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        let now = self.environment.now();
        let left = |one: &Kept| one.ends.map_or(Duration::MAX, |ends| elapsed(now, ends));
        if let Some(one) = kept.as_ref().filter(|one| left(one) > BEFORE_THEY_END) {
            return Ok(Arc::clone(&one.credential));
        }
        match self.provider.provide_credentials().await {
            Ok(found) => {
                let credential = Arc::new(AwsCredential {
                    key_id: found.access_key_id().to_owned(),
                    secret_key: found.secret_access_key().to_owned(),
                    token: found.session_token().map(str::to_owned),
                });
                let ends = found.expiry().and_then(|ends| Timestamp::try_from(ends).ok());
                *kept = Some(Kept { credential: Arc::clone(&credential), ends });
                Ok(credential)
            }
            // Whoever gives them out may be back before those that are there end.
            Err(error) => match kept.as_ref().filter(|one| !left(one).is_zero()) {
                Some(one) => Ok(Arc::clone(&one.credential)),
                None => Err(ObjectError::Unauthenticated {
                    path: "credentials".to_owned(),
                    source: format!("no usable AWS credentials were found: {}", aws::reason(&error)).into(),
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use aws_credential_types::provider::error::CredentialsError;
    use aws_credential_types::provider::future;

    use super::*;
    use crate::environment::{Clock, SystemEntropy};

    /// Seconds since 1970, as the test says.
    #[derive(Debug, Default)]
    struct SetClock(AtomicU32);

    impl Clock for SetClock {
        fn now(&self) -> Timestamp {
            Timestamp::from_second(self.0.load(Ordering::SeqCst).into()).unwrap()
        }
    }

    /// Numbers its answers; each is good for so many seconds, the last ones are refusals.
    #[derive(Debug)]
    struct Counted {
        clock: Arc<SetClock>,
        asked: AtomicU32,
        answers: u32,
        good_for: Option<u64>,
    }

    impl ProvideCredentials for Counted {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            if number > self.answers {
                return future::ProvideCredentials::ready(Err(CredentialsError::provider_error(
                    "signed out",
                )));
            }
            let ends = self.good_for.map(|seconds| {
                let now = Duration::from_secs(self.clock.0.load(Ordering::SeqCst).into());
                std::time::SystemTime::UNIX_EPOCH + now + Duration::from_secs(seconds)
            });
            let key = format!("key{number}");
            future::ProvideCredentials::ready(Ok(Credentials::new(key, "secret", None, ends, "test")))
        }
    }

    fn chain(answers: u32, good_for: Option<u64>) -> (Arc<SetClock>, Chain) {
        let clock = Arc::new(SetClock::default());
        let provider = Counted { clock: Arc::clone(&clock), asked: AtomicU32::new(0), answers, good_for };
        let environment = Environment { clock: Arc::clone(&clock) as _, entropy: Arc::new(SystemEntropy) };
        (clock, Chain::new(SharedCredentialsProvider::new(provider), environment))
    }

    #[tokio::test]
    async fn credentials_are_kept_until_they_are_about_to_end_and_used_to_their_end_where_no_others_come() {
        let (clock, chain) = chain(2, Some(3600));
        let mut seen = Vec::new();
        for at in [0, 3000, 3299, 3301, 6900] {
            clock.0.store(at, Ordering::SeqCst);
            seen.push(chain.get_credential().await.unwrap().key_id.clone());
        }
        assert_eq!(seen, ["key1", "key1", "key1", "key2", "key2"]);
        clock.0.store(6901, Ordering::SeqCst);
        let refused = chain.get_credential().await.unwrap_err();
        assert!(
            matches!(refused, ObjectError::Unauthenticated { .. })
                && refused.to_string().contains("signed out")
        );
    }

    #[tokio::test]
    async fn credentials_without_an_end_are_asked_for_once() {
        let (clock, chain) = chain(1, None);
        for at in [0, 4_000_000] {
            clock.0.store(at, Ordering::SeqCst);
            assert_eq!(chain.get_credential().await.unwrap().key_id, "key1");
        }
    }
}
