//! The command in somebody's environment: whose credentials it takes, where it goes, and through which proxy.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use super::http::{Recorder, Seen};

/// A home of its own, with these files; it goes with the test.
struct Home(PathBuf);

impl Home {
    fn new(files: &[(&str, &str)]) -> Self {
        let id = metashift::environment::Environment::system().id();
        let path = std::env::temp_dir().join(format!("metashift-home-{id}"));
        for (name, text) in files {
            let file = path.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // A directory that cannot be removed stays behind in the temporary one; the test's answer is what counts.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The metadata of an instance with a role and a region.
async fn instance() -> Recorder {
    Recorder::start(|seen| {
        let token = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n".to_owned();
        let role = json!({
            "Code": "Success", "LastUpdated": "2026-01-01T00:00:00Z", "Type": "AWS-HMAC", "AccessKeyId": "INSTANCEKEY",
            "SecretAccessKey": "secret", "Token": "token", "Expiration": "2096-01-01T00:00:00Z", "AccountId": "1",
        });
        match seen.line.as_str() {
            "PUT /latest/api/token" => (200, token, "metadata-token".to_owned()),
            "GET /latest/meta-data/placement/region" => (200, String::new(), "eu-south-1".to_owned()),
            line if line.ends_with("security-credentials/") || line.ends_with("security-credentials-extended/") => {
                (200, String::new(), "role".to_owned())
            }
            line if line.ends_with("/role") => (200, String::new(), role.to_string()),
            _ => (404, String::new(), String::new()),
        }
    })
    .await
}

/// A server that denies everything, as S3, DynamoDB and Step Functions do.
async fn service() -> Recorder {
    Recorder::start(|seen| {
        if seen.header("x-amz-target").is_empty() {
            let text = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>";
            return (403, String::new(), text.to_owned());
        }
        let body = json!({ "__type": "x#AccessDeniedException", "message": "not you" });
        (400, "Content-Type: application/x-amz-json-1.0\r\n".to_owned(), body.to_string())
    })
    .await
}

/// Exit code and last line of the command in this environment.
async fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().arg("--json").args(arguments).kill_on_drop(true);
    command.envs(environment.iter().copied().filter(|(name, _)| !name.is_empty()));
    let output = tokio::time::timeout(Duration::from_secs(120), command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{arguments:?} does not end")).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    (output.status.code(), last.unwrap_or_default())
}

/// One command for each service that the command talks to, and the service's name in a signature.
const EACH: [(&[&str], &str); 3] = [
    (&["catalog", "status", "s3://lake/x"], "s3"),
    (&["layout", "status", "--table", "lake"], "dynamodb"),
    (&["catalog", "run", "s3://lake/x"], "states"),
];

const CONFIG: &str = "[profile keys]
region = ap-east-1
aws_access_key_id = PROFILEKEY
aws_secret_access_key = secret

[profile process]
region = ap-east-1
credential_process = /bin/echo '{\"Version\":1,\"AccessKeyId\":\"PROCESSKEY\",\"SecretAccessKey\":\"secret\"}'

[profile placeless]
aws_access_key_id = PLACELESSKEY
aws_secret_access_key = secret

[profile empty]
region = ap-east-1

[profile signed-out]
region = ap-east-1
sso_session = corp
sso_account_id = 000000000000
sso_role_name = reader

[sso-session corp]
sso_region = ap-east-1
sso_start_url = https://corp.invalid/start
";

#[tokio::test]
async fn every_service_is_asked_as_the_profile_that_is_named_and_the_instance_never_is() {
    let home = Home::new(&[("config", CONFIG)]);
    let config = home.path("config");
    for (profile, key, region) in [
        ("keys", "PROFILEKEY", "ap-east-1"),
        ("process", "PROCESSKEY", "ap-east-1"),
        ("placeless", "PLACELESSKEY", "us-east-1"),
    ] {
        for (arguments, service_name) in EACH {
            if profile == "placeless" && service_name == "states" {
                // A state machine is looked for in a region, and nothing names one.
                continue;
            }
            let (instance, service) = (instance().await, service().await);
            let (code, said) = run(
                arguments,
                &[
                    ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &instance.endpoint()),
                    ("AWS_ENDPOINT_URL", &service.endpoint()),
                    ("AWS_CONFIG_FILE", &config),
                    ("AWS_PROFILE", profile),
                ],
            )
            .await;
            let signers: Vec<_> = service.seen().iter().map(Seen::signer).collect();
            assert!(!signers.is_empty(), "{arguments:?}: {said}");
            for signer in signers {
                assert_eq!(signer, (key.to_owned(), region.to_owned(), service_name.to_owned()), "{profile}");
            }
            assert!(instance.seen().is_empty(), "{profile}, {arguments:?}: {:?}", instance.seen());
            assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("AccessDenied")), "{said}");
        }
    }
}

#[tokio::test]
async fn without_a_profile_every_service_is_asked_as_the_role_of_the_instance() {
    for (arguments, service_name) in EACH {
        let (instance, service) = (instance().await, service().await);
        // By a name that is not known for this machine, whose servers take any credentials.
        let endpoint = service.endpoint().replace("127.0.0.1", "0.0.0.0");
        let (_, said) = run(
            arguments,
            &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &instance.endpoint()), ("AWS_ENDPOINT_URL", &endpoint)],
        )
        .await;
        let signers: Vec<_> = service.seen().iter().map(Seen::signer).collect();
        let role = ("INSTANCEKEY".to_owned(), "eu-south-1".to_owned(), service_name.to_owned());
        assert!(!signers.is_empty() && signers.iter().all(|signer| *signer == role), "{signers:?}: {said}");
        assert!(!instance.seen().is_empty());
    }
}

#[tokio::test]
async fn a_profile_that_gives_nothing_is_refused_with_the_reason_and_no_other_credentials_are_used() {
    let home = Home::new(&[("config", CONFIG)]);
    let config = home.path("config");
    for (profile, reason) in [
        ("signed-out", "failed to load the cached SSO token"),
        ("empty", "profile `empty` has no credentials"),
        ("misspelt", "was not defined"),
    ] {
        for (arguments, _) in EACH {
            let (instance, service) = (instance().await, service().await);
            let (code, said) = run(
                arguments,
                &[
                    ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &instance.endpoint()),
                    ("AWS_ENDPOINT_URL", &service.endpoint()),
                    ("AWS_REGION", "ap-east-1"),
                    ("AWS_CONFIG_FILE", &config),
                    ("AWS_PROFILE", profile),
                    ("HOME", &home.path("")),
                ],
            )
            .await;
            let error = &said["error"];
            assert_eq!((code, error["name"].as_str()), (Some(2), Some("AccessDenied")), "{profile}: {said}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(reason), "{profile}, {arguments:?}: {message}");
            assert!(error["next"].as_str().unwrap().contains("AWS_PROFILE"), "{error}");
            assert!(service.seen().is_empty() && instance.seen().is_empty(), "{profile}, {arguments:?}");
        }
    }
}
