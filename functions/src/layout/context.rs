//! What every invocation of one function shares: the clients, the step's name, time.

use aws_config::SdkConfig;
use jiff::Timestamp;
use metashift::aws;
use metashift::environment::{Environment, elapsed};
use metashift::layout::input::Input;
use metashift::layout::{Tables, steps, tables};
use metashift::step::{Budget, StepOutput};
use metashift::{Error, ErrorKind, Result};

/// Made once a process.
pub(crate) struct Context {
    step: String,
    config: SdkConfig,
    client: aws_sdk_dynamodb::Client,
    environment: Environment,
}

impl Context {
    pub(crate) async fn load() -> Result<Self> {
        let step = std::env::var("METASHIFT_STEP").map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "METASHIFT_STEP is not set")
                .next("deploy the template as it is")
        })?;
        let config = aws::config(None).await;
        let client = tables::connect(&config, None)?;
        Ok(Self { step, config, client, environment: Environment::system() })
    }

    pub(crate) fn step(&self) -> &str {
        &self.step
    }

    pub(crate) fn config(&self) -> &SdkConfig {
        &self.config
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The tables that an input names.
    pub(crate) fn tables(&self, input: &impl Input) -> Result<Tables> {
        let (table, companion, _) = input.tables();
        let companion = companion.map(str::to_owned);
        Ok(Tables::new(self.client.clone(), table, companion, input.layout()?, self.environment.clone()))
    }

    /// Until the runtime's deadline, in milliseconds since the epoch.
    pub(crate) fn budget(&self, deadline_millis: u64) -> Result<Budget> {
        let deadline =
            i64::try_from(deadline_millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
        let deadline =
            deadline.ok_or_else(|| Error::new(ErrorKind::Internal, "the runtime's deadline is no time"))?;
        Ok(Budget::until(self.environment.clone(), deadline))
    }

    pub(crate) fn metrics(
        &self,
        label: Option<&str>,
        ended: &Result<StepOutput>,
        started: Timestamp,
    ) -> String {
        let seconds = elapsed(started, self.environment.now()).as_secs_f64();
        steps::metrics(&self.environment, &self.step, label, ended, seconds)
    }
}
