# The commands of the README and of docs/, run as they are written there.
set -euo pipefail
export PATH=$METASHIFT_TOOLS/build/bin:$METASHIFT_TOOLS/python/bin:$PATH AWS_DEFAULT_REGION=us-east-1
# The packages and the command of the stages before; nothing is left to do unless this stage runs alone.
sam build --parameter-overrides Architecture=x86_64 >/dev/null
cargo test --workspace --all-features --no-run --quiet
python3 tests/documented/run.py "$CARGO_TARGET_DIR/debug/metashift" .aws-sam/build
python3 tests/documented/retire.py "$CARGO_TARGET_DIR/debug/metashift" "$METASHIFT_TOOLS/aws/bin/aws"
