# The template deployed on the local stack, with the real Lambdas, against an embedded server with live writers.
set -euo pipefail
cargo build --profile stack --package metashift-functions --bins
# The command as the tests have built it; nothing is left to do after the stage before.
cargo test --workspace --all-features --no-run --quiet
"$METASHIFT_TOOLS/stack/bin/python" tests/stack/run.py "$CARGO_TARGET_DIR/debug/metashift" "$CARGO_TARGET_DIR/stack"
