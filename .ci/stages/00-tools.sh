# Installs the pinned tools of the other stages, once for each set of versions.
set -euo pipefail

asl_validator=4.0.0

need() {
  command -v "$1" >/dev/null || {
    echo "The gate needs $1: $2" >&2
    exit 1
  }
}
need cargo "install Rust 1.95 or newer"
need python3 "install Python 3.11 or newer with venv"
need npm "install Node.js 20 or newer"

# venv NAME REQUIREMENTS: a virtual environment that holds exactly this file's packages.
venv() {
  local folder=$METASHIFT_TOOLS/$1 requirements=$2
  if cmp -s "$requirements" "$folder/installed.txt"; then
    echo "$1 is there"
    return
  fi
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check --requirement "$requirements"
  cp "$requirements" "$folder/installed.txt"
}

mkdir -p "$METASHIFT_TOOLS"
venv python .ci/requirements.txt
venv build .ci/build-requirements.txt
venv stack .ci/stack-requirements.txt
venv aws .ci/aws-requirements.txt

if [ "$(cat "$METASHIFT_TOOLS/npm/installed.txt" 2>/dev/null)" = "$asl_validator" ]; then
  echo "asl-validator is there"
else
  rm -rf "$METASHIFT_TOOLS/npm"
  mkdir -p "$METASHIFT_TOOLS/npm"
  npm install --silent --no-audit --no-fund --prefix "$METASHIFT_TOOLS/npm" "asl-validator@$asl_validator"
  echo "$asl_validator" >"$METASHIFT_TOOLS/npm/installed.txt"
fi
