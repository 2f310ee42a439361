//! What every invocation of one function shares: the clients, the step's name, time.

use aws_config::{BehaviorVersion, SdkConfig};
use jiff::Timestamp;
use metashift::environment::{Environment, elapsed};
use metashift::layout::input::Input;
use metashift::layout::{Layout, Tables, steps, tables};
use metashift::step::{Budget, StepOutput};
use metashift::{Error, ErrorKind, Result};

/// Made once a process, and again, with the same connections, for each invocation.
#[derive(Clone)]
pub(crate) struct Context {
    step: String,
    config: SdkConfig,
    environment: Environment,
    /// No tables yet: the connections, and what is known of the server's clock.
    connected: Tables,
}

impl Context {
    pub(crate) async fn load() -> Result<Self> {
        let step = std::env::var("METASHIFT_STEP").map_err(|_| {
            Error::new(ErrorKind::InvalidInput, "METASHIFT_STEP is not set")
                .next("deploy the template as it is")
        })?;
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        let (client, environment) = (tables::client(&config), Environment::system());
        let connected = Tables::new(client, "", None, Layout::default(), environment.clone());
        Ok(Self { step, config, environment, connected })
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
        Ok(self.connected.of(table, companion, input.layout()?))
    }

    /// For one invocation: whatever waits ends before it does.
    pub(crate) fn until(&self, budget: &Budget) -> Self {
        Self { connected: self.connected.until(budget), ..self.clone() }
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
