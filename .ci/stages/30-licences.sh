set -euo pipefail
cargo metadata --format-version 1 --locked --all-features | python3 .ci/licences.py
