# What `sam build` packages for AWS, here for x86_64: the right CPU and libc, no crash point compiled in, and every
# function starts and answers. `.ci/run build` leaves the packages in .aws-sam/build.
set -euo pipefail
export PATH=$METASHIFT_TOOLS/build/bin:$METASHIFT_TOOLS/python/bin:$PATH AWS_DEFAULT_REGION=us-east-1
sam build --parameter-overrides Architecture=x86_64
scripts/check-bootstraps x86_64
for bootstrap in .aws-sam/build/*/bootstrap; do
  if grep --quiet --text METASHIFT_CRASH_AT "$bootstrap"; then
    echo "$bootstrap has crash points compiled in" >&2
    exit 1
  fi
done
# The name of the variable that chooses a step shows that names of environment variables can be found in these files.
grep --quiet --text METASHIFT_STEP .aws-sam/build/PreflightFunction/bootstrap || {
  echo "the preflight function does not hold the name METASHIFT_STEP: this search cannot find anything" >&2
  exit 1
}
scripts/cold-start --runs 5
