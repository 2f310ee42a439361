//! `metashift-faults --upstream http://127.0.0.1:8000 --port 9000`: the proxy as a process of its own.

use clap::Parser;
use metashift_faults::{Proxy, Rule};

/// Stands in front of a DynamoDB or S3 endpoint and makes requests fail by rule.
///
/// Rules come in as JSON: POST them to /__faults/rules on the proxy's port, or give a file.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The endpoint behind it.
    #[arg(long)]
    upstream: String,
    /// The loopback port to listen on; 0: a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// A JSON file with an array of rules to begin with.
    #[arg(long)]
    rules: Option<std::path::PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let rules: Vec<Rule> = match &arguments.rules {
        Some(path) => serde_json::from_slice(&std::fs::read(path)?)?,
        None => Vec::new(),
    };
    let mut proxy = Proxy::start(&arguments.upstream, arguments.port).await?;
    for rule in rules {
        proxy.add(rule);
    }
    println!("{}", proxy.endpoint());
    tokio::select! {
        () = proxy.run() => {}
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    Ok(())
}
