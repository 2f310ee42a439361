set -euo pipefail
cargo clippy --workspace --all-targets --all-features -- -D warnings
