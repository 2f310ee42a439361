# What the lint crate does not look at: the resource schemas, SAM's own transform, the language's JSON schema.
set -euo pipefail
export AWS_DEFAULT_REGION=us-east-1
export PATH=$METASHIFT_TOOLS/python/bin:$PATH
cfn-lint template.yaml
sam validate --lint --template-file template.yaml
for machine in statemachine/*.asl.json; do
  "$METASHIFT_TOOLS/npm/node_modules/.bin/asl-validator" --json-path "$machine"
done
