"""The deployed product on this machine, end to end: sandbox, local stack, the real Lambdas, the real machines.

    python tests/stack/run.py COMMAND BINARIES

COMMAND is the `metashift` command, which brings an embedded DynamoDB-compatible server with a seeded table and live
dual writers; BINARIES the folder of the Lambdas. Everything it starts it stops.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import boto3

ROOT = pathlib.Path(__file__).resolve().parents[2]
ITEMS = 5_000
TABLE = "lake"
BUCKET = "lake-catalog"
STORE = f"s3://{BUCKET}/prod"
INTERNAL = "__lake_internal/"
BARRIER = INTERNAL + "dynamo-prefix-v2-finalize-barrier"
MARKER = INTERNAL + "dynamo-prefix-v2-authority"
MANIFESTS = ["lance-manifest", "lance-manifest-latest", "lance-manifest-cleanup"]
SLOWLY = {"pageSize": 10, "maxPages": 5}
LOCAL = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
CUTOVER = {"mode": "finalize", "cutoverUnderLoad": True, "rollout": {"acknowledged": True}}


class Stack:
    def __init__(self, command, binaries, folder):
        self.environment = {**os.environ, "METASHIFT_STACK_DIR": f"{folder}/stack"}
        self.log = open(f"{folder}/sandbox.log", "w")
        arguments = [command, "sandbox", "--items", str(ITEMS), "--json"]
        self.sandbox = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log, text=True)
        try:
            line = self.sandbox.stdout.readline()
            assert line, f"the sandbox says nothing: {pathlib.Path(self.log.name).read_text()}"
            dynamodb = json.loads(line)["endpoint"]
            self.operate = [command, "layout"], {**os.environ, **LOCAL, "AWS_ENDPOINT_URL_DYNAMODB": dynamodb}
            self.dynamodb = client("dynamodb", dynamodb)
            endpoint = self.script("start", "--dynamodb", dynamodb).strip()
            self.machines = client("stepfunctions", endpoint)
            self.logs = client("logs", endpoint)
            client("s3", endpoint).create_bucket(Bucket=BUCKET)
            self.operate_catalog = [command, "catalog"], {**os.environ, **LOCAL, "AWS_ENDPOINT_URL": endpoint}
            settings = ["CreateCompanionTable=false", f"CatalogBucket={BUCKET}"]
            self.script("deploy", "--table", TABLE, "--binaries", binaries, *settings)
        except BaseException:
            self.stop()
            raise

    def script(self, *arguments):
        return subprocess.run(
            [ROOT / "scripts/local-stack", *arguments], env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def operator(self, verb):
        command, environment = self.operate
        subprocess.run([*command, verb, "--table", TABLE], env=environment, check=True, stdout=subprocess.DEVNULL)

    def catalog(self, verb):
        command, environment = self.operate_catalog
        return subprocess.run(
            [*command, verb, STORE, "--json"], env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def stop(self):
        self.sandbox.terminate()
        self.sandbox.wait(30)
        self.log.close()
        self.script("stop")

    def start(self, given, name, machine="dynamodb-layout"):
        arn = f"arn:aws:states:us-east-1:000000000000:stateMachine:metashift-local-{machine}"
        started = self.machines.start_execution(stateMachineArn=arn, name=name, input=json.dumps({"version": 1, **given}))
        return started["executionArn"]

    def execute(self, given, name, machine="dynamodb-layout"):
        """Runs to the end of the last successor: (status or error, output or cause, executions)."""
        arn = self.start(given, name, machine)
        for number in range(1, 1_000):
            ended = until(lambda: ended_execution(self.machines, arn), 300, arn)
            if ended["status"] != "SUCCEEDED":
                return ended.get("error", ended["status"]), ended.get("cause"), number
            output = json.loads(ended["output"])
            if "successor" not in output:
                return output["status"], output, number
            arn = f"{arn.rsplit(':', 1)[0]}:{output['successor']}"
        raise AssertionError("the run did not end")

    def value(self, key):
        item = self.dynamodb.get_item(TableName=TABLE, Key={"pk": {"S": key}}, ConsistentRead=True).get("Item")
        return item and bytes(item["val"]["B"])

    def items(self, table):
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        rows = (item for page in pages for item in page["Items"])
        return {item["pk"]["S"]: bytes(item["val"]["B"]) for item in rows if not item["pk"]["S"].startswith(INTERNAL)}

    def differing(self):
        """Keys whose copies differ at one moment. Writers go on: what two scans show is looked at again, at once."""
        v1, v2 = self.items(TABLE), self.items(f"{TABLE}_prefix_v2")
        return [key for key in sorted(v1.keys() | v2.keys()) if v1.get(key) != v2.get(key) and not self.equal_now(key)]

    def equal_now(self, key):
        places = [(TABLE, {"pk": {"S": key}}), (f"{TABLE}_prefix_v2", {"bucket": {"S": bucket(key)}, "pk": {"S": key}})]
        gets = [{"Get": {"TableName": table, "Key": place}} for table, place in places]
        first, second = self.dynamodb.transact_get_items(TransactItems=gets)["Responses"]
        return first.get("Item", {}).get("val") == second.get("Item", {}).get("val")


def bucket(key):
    family = key.split("/", 1)[0] if "/" in key and not key.startswith("/") else "root"
    shards = {"append-operation": 64, "append-active": 64}.get(family, 32 if family in MANIFESTS else 8)
    return f"{family}#{hashlib.sha256(key.encode()).digest()[0] % shards:02x}"


def client(service, endpoint):
    credentials = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    return boto3.client(service, endpoint_url=endpoint, **credentials)


def ended_execution(machines, arn):
    found = machines.describe_execution(executionArn=arn)
    return found if found["status"] != "RUNNING" else None


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.05)
    return result


def plan_changes_nothing(stack):
    status, output, _ = stack.execute({"mode": "plan"}, "plan")
    assert status == "done" and "report" in output, output
    assert stack.value(INTERNAL + "dynamo-prefix-v2/plan") is None


def bad_input_is_refused_by_the_step(stack):
    status, cause, _ = stack.execute({"mode": "backfill", "pageSize": 0}, "zero-pages")
    assert status == "InvalidInput", (status, cause)


def backfill_hands_over_and_copies_everything(stack):
    status, output, executions = stack.execute({"mode": "backfill", "pageSize": 100, "maxPages": 2, "turnLimit": 1}, "copy")
    assert status == "done" and executions > 1, (status, output, executions)
    assert stack.differing() == []


def a_paused_migration_ends_the_run_as_paused(stack):
    stack.operator("pause")
    status, output, _ = stack.execute({"mode": "backfill", "newGeneration": True}, "paused")
    assert status == "paused", (status, output)
    stack.operator("resume")
    assert stack.execute({"mode": "backfill"}, "resumed")[0] == "done"


def an_unacknowledged_rollout_stops_before_the_barrier(stack):
    status, cause, _ = stack.execute({"mode": "finalize", "cutoverUnderLoad": True}, "not-ready")
    assert status == "RolloutNotReady" and stack.value(BARRIER) is None, (status, cause)


def a_cutover_that_is_stopped_is_released(stack):
    arn = stack.start({**CUTOVER, **SLOWLY}, "stopped")
    until(lambda: stack.value(BARRIER), 120, "the barrier")
    stack.machines.stop_execution(executionArn=arn)
    until(lambda: stack.value(BARRIER) is None, 60, "the release by the event of the stopped execution")
    assert stack.value(MARKER) is None


def an_expired_cutover_is_released(stack):
    status, cause, _ = stack.execute({**CUTOVER, **SLOWLY, "deadlineSeconds": 1}, "expired")
    assert status == "CutoverExpired" and stack.value(BARRIER) is None, (status, cause)


def a_held_cutover_stays_until_it_is_aborted(stack):
    status, cause, _ = stack.execute({**CUTOVER, **SLOWLY, "deadlineSeconds": 1, "onFailure": "hold"}, "held")
    assert status == "CutoverExpired" and stack.value(BARRIER) == b"locked-v1", (status, cause)
    status, output, _ = stack.execute({"mode": "abort", "epoch": "held"}, "abort")
    assert status == "done" and output["outcome"] == "released" and stack.value(BARRIER) is None, output


def a_repair_looks_mends_and_compares(stack):
    status, output, _ = stack.execute({"mode": "repair", "dryRun": True}, "dry-repair")
    assert (status, output.get("wouldChange")) == ("done", 0), (status, output)
    status, output, _ = stack.execute({"mode": "repair", "repairRun": "mend"}, "repair")
    assert status == "done", (status, output)


def the_cutover_under_load_publishes_the_marker(stack):
    status, output, _ = stack.execute(CUTOVER, "cutover")
    assert status == "done", (status, output)
    assert (stack.value(MARKER), stack.value(BARRIER)) == (b"complete-v1", b"locked-v1")


def a_finalized_table_is_not_finalized_again(stack):
    status, cause, _ = stack.execute(CUTOVER, "again")
    assert status in ("done", "AlreadyFinalized"), (status, cause)
    assert stack.execute({"mode": "abort", "epoch": "cutover"}, "too-late")[0] == "AlreadyFinalized"


def both_tables_hold_the_same(stack):
    assert stack.differing() == []


def every_function_reports_its_metrics(stack):
    group = "/aws/lambda/metashift-local"
    reported = set()
    pages = stack.logs.get_paginator("filter_log_events").paginate(logGroupName=group)
    for events in (page["events"] for page in pages):
        for line in (line for event in events for line in event["message"].splitlines() if '"_aws"' in line):
            record = json.loads(line[line.index("{") :])
            reported.add((record["migration"], record["phase"]))
            for directive in record["_aws"]["CloudWatchMetrics"]:
                assert directive["Namespace"] == "Metashift", record
                assert directive["Dimensions"] == [["migration", "phase"]], record
    assert ("catalog", "step") in reported, sorted(reported)
    for step in ["preflight", "backfill-page", "verify", "install-barrier", "publish-marker", "release-barrier"]:
        assert ("layout", step) in reported, (step, sorted(reported))


def a_catalog_in_s3_reaches_the_newest_format(stack):
    stack.catalog("create")
    status, output, _ = stack.execute({"store": STORE, "mode": "inspect"}, "look", "catalog-format")
    assert output["format"] == 11 and output["toFormat"] == 12, (status, output)
    status, output, _ = stack.execute({"store": STORE, "checkpoint": True}, "newest", "catalog-format")
    assert status == "done" and output["format"] == 12, (status, output)
    assert json.loads(stack.catalog("status").splitlines()[-1])["format"] == 12
    assert stack.execute({"store": STORE}, "nothing-left", "catalog-format")[0] == "done"
    status, cause, _ = stack.execute({"store": f"s3://{BUCKET}/nowhere"}, "nowhere", "catalog-format")
    assert status == "InvalidInput", (status, cause)


CASES = [
    plan_changes_nothing,
    bad_input_is_refused_by_the_step,
    backfill_hands_over_and_copies_everything,
    a_paused_migration_ends_the_run_as_paused,
    an_unacknowledged_rollout_stops_before_the_barrier,
    a_cutover_that_is_stopped_is_released,
    an_expired_cutover_is_released,
    a_held_cutover_stays_until_it_is_aborted,
    a_repair_looks_mends_and_compares,
    the_cutover_under_load_publishes_the_marker,
    a_finalized_table_is_not_finalized_again,
    both_tables_hold_the_same,
    a_catalog_in_s3_reaches_the_newest_format,
    every_function_reports_its_metrics,
]


def main(command, binaries):
    with tempfile.TemporaryDirectory(prefix="metashift-stack-") as folder:
        stack = Stack(command, binaries, folder)
        try:
            for case in CASES:  # each goes on where the one before it ended
                begun = time.monotonic()
                case(stack)
                print(f"ok    {case.__name__.replace('_', ' ')} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            stack.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
