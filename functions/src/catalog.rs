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

#[cfg(test)]
mod tests {
    use metashift::ErrorKind;
    use metashift::catalog::step::Input;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn is_an_input_or_invalid(raw: Value) {
        if let Err(error) = Input::parse(raw) {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_input_with_an_arbitrary_field_is_an_input_or_invalid(
            name in proptest::sample::select(
                &["version", "store", "mode", "toFormat", "checkpoint", "maxSteps", "finalCheckpointDays", "other"][..]
            ),
            number: i64,
            text in "\\PC{0,12}",
            chosen in 0..4_usize,
        ) {
            let mut raw = json!({ "version": 1, "store": "s3://bucket/path" });
            raw[name] = [json!(number), json!(text), json!([text]), json!({ text: number })][chosen].clone();
            is_an_input_or_invalid(raw.clone());
            is_an_input_or_invalid(json!([raw]));
        }
    }
}
