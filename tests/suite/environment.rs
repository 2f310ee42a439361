//! The command in somebody's environment: whose credentials it takes, where it goes, and through which proxy.

use std::path::PathBuf;
use std::time::Duration;

use metashift_sandbox::{Server, seed};
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

/// Every variable that programs take a proxy from.
fn proxies(proxy: &str) -> Vec<(&'static str, &str)> {
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    names.into_iter().map(|name| (name, proxy)).collect()
}

#[tokio::test]
async fn an_empty_variable_is_not_set_whoever_reads_it() {
    let home = Home::new(&[("config", CONFIG)]);
    let empty = [
        "AWS_REGION",
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL_DYNAMODB",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_SFN",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "METASHIFT_STATE_MACHINE",
        "AWS_CHECKSUM_ALGORITHM",
    ];
    for (arguments, service_name) in EACH {
        let service = service().await;
        let (config, endpoint) = (home.path("config").replace("/config", "/default"), service.endpoint());
        std::fs::write(&config, CONFIG.replace("[profile keys]", "[default]")).unwrap();
        let mut environment: Vec<_> = empty.iter().map(|name| (*name, "")).collect();
        environment.extend([("AWS_ENDPOINT_URL", &*endpoint), ("AWS_CONFIG_FILE", &config)]);
        environment.push(("AWS_EC2_METADATA_DISABLED", "true"));
        let (code, said) = run(arguments, &environment).await;
        assert_eq!(
            (code, said["error"]["name"].as_str()),
            (Some(2), Some("AccessDenied")),
            "{arguments:?}: {said}"
        );
        let signer = service.seen().first().map(Seen::signer);
        // A server on this machine takes any credentials where none are named.
        let key = if service_name == "states" { "PROFILEKEY" } else { "local" };
        let expected = (key.to_owned(), "ap-east-1".to_owned(), service_name.to_owned());
        assert_eq!(signer, Some(expected), "{arguments:?}: {said}");
    }
    let missing = ["report", "--catalog", "file:///nowhere/to/be/found"];
    let (code, said) = run(&missing, &[("LAKE_DYNAMODB_TABLE", "")]).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("nowhere"), "{said}");
}

#[tokio::test]
async fn endpoints_that_are_to_be_ignored_are() {
    let (service, proxy) = (service().await, service().await);
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command.env_clear().args(["--json", "layout", "status", "--table", "lake", "--region", "us-east-1"]);
    command.env("AWS_ENDPOINT_URL_DYNAMODB", service.endpoint()).env("AWS_ENDPOINT_URL", service.endpoint());
    command.env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true").env("HTTPS_PROXY", proxy.endpoint());
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    let mut child = command.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let asked = async {
        while proxy.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it goes to AWS, by way of the proxy");
    child.kill().await.unwrap();
    assert!(
        proxy.seen()[0].line.starts_with("CONNECT dynamodb.us-east-1.amazonaws.com"),
        "{:?}",
        proxy.seen()[0]
    );
    assert!(service.seen().is_empty());
}

#[tokio::test]
async fn a_server_on_this_machine_is_never_reached_through_a_proxy() {
    let (proxy, s3) = (service().await, service().await);
    let server = Server::start(0).await.unwrap();
    seed::create_tables(&server.client(), "lake", true).await.unwrap();
    let (proxy_url, s3_url) = (proxy.endpoint(), s3.endpoint());
    let mut environment = proxies(&proxy_url);
    environment.push(("AWS_ENDPOINT_URL", &s3_url));
    let (code, said) = run(&["demo", "--items", "200", "--writers", "1"], &environment).await;
    assert_eq!(code, Some(0), "{said}");
    let endpoint = server.endpoint();
    let (code, said) =
        run(&["layout", "run", "--local", "--table", "lake", "--endpoint", &endpoint], &environment).await;
    assert_eq!(code, Some(0), "{said}");
    for (arguments, _) in [EACH[0], EACH[2]] {
        let with_region =
            [&environment[..], &[("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "k")]].concat();
        let (code, said) =
            run(arguments, &[&with_region[..], &[("AWS_SECRET_ACCESS_KEY", "s")]].concat()).await;
        assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("AccessDenied")), "{said}");
    }
    assert!(proxy.seen().is_empty(), "{:?}", proxy.seen());
    assert_eq!(s3.seen().len(), 2, "{:?}", s3.seen());
    // The sandbox, until it has said where it is.
    let mut sandbox = Command::new(env!("CARGO_BIN_EXE_metashift"));
    sandbox.env_clear().envs(environment).args(["--json", "sandbox", "--items", "20", "--writers", "1"]);
    let mut sandbox = sandbox.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines =
        tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(sandbox.stdout.take().unwrap()));
    let line =
        tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.contains("\"endpoint\":\"http://127.0.0.1:"), "{line}");
    sandbox.kill().await.unwrap();
    assert!(proxy.seen().is_empty(), "{:?}", proxy.seen());
    // And what the machine knows of itself is not asked of another one.
    let service = service().await;
    let elsewhere = service.endpoint().replace("127.0.0.1", "0.0.0.0");
    let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
    command
        .env_clear()
        .envs(proxies(&proxy_url))
        .env("AWS_ENDPOINT_URL", &elsewhere)
        .env("AWS_REGION", "us-east-1");
    command.args(["layout", "status", "--table", "lake"]).kill_on_drop(true);
    let _ended =
        tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    assert!(proxy.seen().iter().all(|seen| !seen.line.contains("169.254.")), "{:?}", proxy.seen());
}

#[tokio::test]
async fn what_is_wrong_with_the_arguments_is_json_where_json_is_asked_for() {
    for arguments in
        [&["layout", "status"][..], &["nothing"], &["catalog", "run", "s3://b/x", "--to-format", "10"], &[]]
    {
        let (code, said) = run(arguments, &[]).await;
        let error = &said["error"];
        assert_eq!((code, error["name"].as_str()), (Some(2), Some("InvalidInput")), "{arguments:?}: {said}");
        assert_eq!(error["exitCode"], 2);
        assert!(error["next"].as_str().unwrap().contains("--help"), "{error}");
        assert!(!error["message"].as_str().unwrap().contains("error:"), "{error}");
    }
}

#[tokio::test]
async fn what_cannot_be_written_is_said_and_ends_with_an_error() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").map(std::process::Stdio::from);
    let server = Server::start(0).await.unwrap();
    seed::create_tables(&server.client(), "lake", true).await.unwrap();
    let endpoint = server.endpoint();
    for arguments in [
        &["man"][..],
        &["completions", "bash"],
        &["--help"],
        &["layout", "run", "--help"],
        &["--version"],
        &["layout", "status", "--table", "lake", "--endpoint", &endpoint],
        &["--json", "layout", "status", "--table", "lake", "--endpoint", &endpoint],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command.env_clear().args(arguments).stdout(full().unwrap()).stderr(std::process::Stdio::piped());
        let output = command.kill_on_drop(true).spawn().unwrap().wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("No space left on device"), "{arguments:?}: {said}");
        // A reader that has gone away is no error.
        let mut command = Command::new("sh");
        let line = format!("'{}' {} | true; exit $?", env!("CARGO_BIN_EXE_metashift"), arguments.join(" "));
        assert_eq!(command.args(["-c", &line]).output().await.unwrap().status.code(), Some(0), "{line}");
    }
}

#[tokio::test]
async fn a_bucket_in_another_region_is_named_with_it() {
    for (status, body) in [
        (301, "<Error><Code>PermanentRedirect</Code><Message>use another endpoint</Message></Error>"),
        (400, "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting</Message></Error>"),
    ] {
        let s3 = Recorder::start(move |_| {
            (status, "x-amz-bucket-region: eu-south-2\r\n".to_owned(), body.to_owned())
        })
        .await;
        let (code, said) = run(
            &["catalog", "status", "s3://lake/x"],
            &[("AWS_ENDPOINT_URL_S3", &s3.endpoint()), ("AWS_REGION", "us-east-1")],
        )
        .await;
        assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("InvalidInput")), "{said}");
        assert!(said["error"]["message"].as_str().unwrap().contains("eu-south-2"), "{said}");
        assert!(said["error"]["next"].as_str().unwrap().contains("AWS_REGION=eu-south-2"), "{said}");
    }
}

#[tokio::test]
async fn what_a_server_says_is_cut_and_cannot_move_a_cursor() {
    let long = "\u{1b}[2J\u{9b}31m".to_owned() + &"x".repeat(1 << 20);
    let body = json!({ "__type": "x#ValidationException", "message": long }).to_string();
    let server = Recorder::start(move |_| {
        (400, "Content-Type: application/x-amz-json-1.0\r\n".to_owned(), body.clone())
    })
    .await;
    for json in [true, false] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metashift"));
        command.env_clear().args(json.then_some("--json"));
        command.args(["layout", "status", "--table", "lake", "--endpoint", &server.endpoint()]);
        let output = command.kill_on_drop(true).output().await.unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.len() < 10_000, "{} bytes", said.len());
        assert!(said.contains("[2J") && said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
    }
}

#[tokio::test]
async fn nothing_is_made_for_a_url_that_names_no_store_and_no_secret_is_repeated() {
    let home = Home::new(&[("here", "")]);
    for odd in ["x#1", "x?1", "deeper/x#"] {
        let (code, said) = run(&["catalog", "create", &format!("file://{}", home.path(odd))], &[]).await;
        assert_eq!((code, said["error"]["name"].as_str()), (Some(2), Some("InvalidInput")), "{said}");
        assert_eq!(std::fs::read_dir(&home.0).unwrap().count(), 1, "{odd}: something was made");
    }
    for arguments in [
        &["catalog", "status", "s3://user:hush@lake/x"][..],
        &["catalog", "create", "s3://user:hush@lake/x"],
        &["catalog", "run", "s3://user:hush@lake/x"],
        &["report", "--catalog", "s3://user:hush@lake/x"],
        &["layout", "status", "--table", "lake", "--endpoint", "http://user:hush@127.0.0.1:1"],
    ] {
        let (code, said) = run(arguments, &[]).await;
        assert_eq!(
            (code, said["error"]["name"].as_str()),
            (Some(2), Some("InvalidInput")),
            "{arguments:?}: {said}"
        );
        assert!(!said.to_string().contains("hush"), "{said}");
    }
}
