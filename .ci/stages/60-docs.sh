set -euo pipefail
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features
