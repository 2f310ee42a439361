# The report of a real migration, opened in a real browser.
set -euo pipefail

playwright=1.64.1
if ! command -v chromium >/dev/null; then
  apt-get update --quiet >/dev/null
  apt-get install --yes --quiet --no-install-recommends chromium >/dev/null
fi
if [ "$(cat "$METASHIFT_TOOLS/report/installed.txt" 2>/dev/null)" != "$playwright" ]; then
  rm -rf "$METASHIFT_TOOLS/report"
  mkdir -p "$METASHIFT_TOOLS/report"
  npm install --silent --no-audit --no-fund --prefix "$METASHIFT_TOOLS/report" "playwright-core@$playwright"
  echo "$playwright" >"$METASHIFT_TOOLS/report/installed.txt"
fi

folder=$(mktemp -d)
metashift=$CARGO_TARGET_DIR/debug/metashift
"$metashift" sandbox --items 3000 --json >"$folder/sandbox.json" &
sandbox=$!
trap 'kill "$sandbox" 2>/dev/null || true; rm -rf "$folder"' EXIT
until [ -s "$folder/sandbox.json" ]; do
  kill -0 "$sandbox"
  sleep 0.2
done
AWS_ENDPOINT_URL_DYNAMODB=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["endpoint"])' "$folder/sandbox.json")
export AWS_ENDPOINT_URL_DYNAMODB LAKE_DYNAMODB_TABLE=lake
"$metashift" layout run --local --finalize --under-load --rollout-acknowledged >"$folder/run.txt"
"$metashift" report --buckets --html "$folder/report.html"
cp tests/report/check.mjs "$METASHIFT_TOOLS/report/check.mjs"
node "$METASHIFT_TOOLS/report/check.mjs" "$(command -v chromium)" "$folder/report.html" "$folder"
