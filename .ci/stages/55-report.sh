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
# A catalog stopped inside a unit beside the table; then one in a commit log, alone.
"$metashift" catalog create "file://$folder/half" --sample 8 >"$folder/run.txt"
"$metashift" catalog run "file://$folder/half" --local --checkpoint --max-steps 2 >"$folder/run.txt"
"$metashift" catalog create "file://$folder/log" --commit-log >"$folder/run.txt"
"$metashift" report --buckets --catalog "file://$folder/half" --html "$folder/report.html"
env -u LAKE_DYNAMODB_TABLE "$metashift" report --catalog "file://$folder/log" --html "$folder/catalog.html"
cp tests/report/check.mjs "$METASHIFT_TOOLS/report/check.mjs"
look() {
  node "$METASHIFT_TOOLS/report/check.mjs" "$(command -v chromium)" "$folder/$1.html" "$folder" "$2"
}
look report summary,timeline,throughput,segments,cost,verification,rejects,families,buckets,catalog
look catalog catalog
