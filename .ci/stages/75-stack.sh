# The template deployed on the local stack, with the real Lambdas, against an embedded server with live writers.
set -euo pipefail
cargo build --profile stack --package metashift-functions --bins
cargo build --package metashift-cli --bin metashift
"$METASHIFT_TOOLS/stack/bin/python" tests/stack/run.py "$CARGO_TARGET_DIR/debug/metashift" "$CARGO_TARGET_DIR/stack"
