# No crash point is in a binary that is deployed. The name of the variable that chooses a step shows that names of
# environment variables can be found in these files at all.
set -euo pipefail
cargo build --profile stack --package metashift-functions --bins
for binary in metashift-layout metashift-catalog; do
  file=$CARGO_TARGET_DIR/stack/$binary
  if grep --quiet --text METASHIFT_CRASH_AT "$file"; then
    echo "$binary has crash points compiled in" >&2
    exit 1
  fi
done
grep --quiet --text METASHIFT_STEP "$CARGO_TARGET_DIR/stack/metashift-layout" || {
  echo "metashift-layout does not hold the name METASHIFT_STEP: this search cannot find anything" >&2
  exit 1
}
