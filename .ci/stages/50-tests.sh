# The README's command.
set -euo pipefail
cargo test --workspace --all-features
