//! The Lambda `catalog-migrate-step`: one bounded step of a catalog's migration, or a look at it.

use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use metashift::catalog::step;
use metashift::environment::Environment;
use serde_json::Value;

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .without_time()
        .init();
    lambda_runtime::run(service_fn(handle)).await
}

async fn handle(event: LambdaEvent<Value>) -> Result<Value, Diagnostic> {
    let environment = Environment::system();
    let (answer, metrics) = step::lambda(event.payload, &environment, event.context.deadline).await;
    println!("{metrics}");
    answer.map_err(|error| {
        tracing::error!(kind = error.kind().name(), %error, "the step failed");
        Diagnostic { error_type: error.kind().name().to_owned(), error_message: error.to_string() }
    })
}
