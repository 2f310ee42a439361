set -euo pipefail
"$METASHIFT_TOOLS/stack/bin/python" tests/machines/paths.py
