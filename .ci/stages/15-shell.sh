set -euo pipefail
shopt -s nullglob
scripts=(.ci/run .ci/stages/*.sh)
for script in scripts/*; do
  case $(head -n 1 "$script") in *bash*) scripts+=("$script") ;; esac
done
"$METASHIFT_TOOLS/python/bin/shellcheck" --shell=bash "${scripts[@]}"
echo "${#scripts[@]} scripts"
