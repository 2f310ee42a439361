# Stores written and read by released catalog crates; a workspace of its own, because it links two versions of them.
set -euo pipefail
if [ -f tests/interop/Cargo.toml ]; then
  cargo test --manifest-path tests/interop/Cargo.toml
else
  echo "tests/interop has no crate"
fi
