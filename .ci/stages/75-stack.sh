# The template deployed on the local stack, with the packaged Lambdas, against an embedded server with live writers.
set -euo pipefail
export PATH=$METASHIFT_TOOLS/build/bin:$METASHIFT_TOOLS/python/bin:$PATH AWS_DEFAULT_REGION=us-east-1
# The packages and the commands of the stages before; nothing is left to do unless this stage runs alone.
sam build --parameter-overrides Architecture=x86_64 >/dev/null
cargo test --workspace --all-features --no-run --quiet
"$METASHIFT_TOOLS/stack/bin/python" tests/stack/run.py "$CARGO_TARGET_DIR/debug" .aws-sam/build
