"""The deployed product on this machine, end to end: sandbox, local stack, the real Lambdas, the real machines.

    python tests/stack/run.py COMMANDS BINARIES

COMMANDS is the folder of `metashift`, which brings an embedded DynamoDB-compatible server with a seeded table and live
dual writers, and of `metashift-faults`, which stands between that server and the Lambdas; BINARIES the folder of the
Lambdas. Everything it starts it stops. The machines' waits take a tenth of their time.
"""

import base64
import contextlib
import hashlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import boto3

ROOT = pathlib.Path(__file__).resolve().parents[2]
ITEMS = 5_000
TABLE = "lake"
COMPANION = f"{TABLE}_prefix_v2"
BUCKET = "lake-catalog"
EMPTY = f"s3://{BUCKET}/empty"
SAMPLE = f"s3://{BUCKET}/prod"
SEGMENTS = 16
WAIT_SCALE = "0.1"
MOST_STATE = 32_768
INTERNAL = "__lake_internal/"
OWN = INTERNAL + "dynamo-prefix-v2"
PLAN = INTERNAL + "dynamo-prefix-v2/plan"
BARRIER = INTERNAL + "dynamo-prefix-v2-finalize-barrier"
MARKER = INTERNAL + "dynamo-prefix-v2-authority"
MANIFESTS = ["lance-manifest", "lance-manifest-latest", "lance-manifest-cleanup"]
SLOWLY = {"pageSize": 10, "maxPages": 5}
PAGES = {"pageSize": 20, "maxPages": 4}
LOCAL = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
CUTOVER = {"mode": "finalize", "cutoverUnderLoad": True, "rollout": {"acknowledged": True}}


class Stack:
    def __init__(self, commands, binaries, folder):
        self.folder = folder
        self.environment = {**os.environ, "METASHIFT_STACK_DIR": f"{folder}/stack"}
        self.log = open(f"{folder}/children.log", "w")
        self.children = []
        command = f"{commands}/metashift"
        try:
            line = self.child([command, "sandbox", "--items", str(ITEMS), "--json"])
            dynamodb = json.loads(line)["endpoint"]
            self.proxy = self.child([f"{commands}/metashift-faults", "--upstream", dynamodb]).strip()
            self.operate = [command, "layout"], {**os.environ, **LOCAL, "AWS_ENDPOINT_URL_DYNAMODB": dynamodb}
            self.dynamodb = client("dynamodb", dynamodb)
            endpoint = self.script("start", "--dynamodb", self.proxy, "--wait-scale", WAIT_SCALE).strip()
            names = ["stepfunctions", "logs", "lambda", "events", "cloudwatch"]
            self.machines, self.logs, self.lambdas, self.events, self.metrics = (client(name, endpoint) for name in names)
            client("s3", endpoint).create_bucket(Bucket=BUCKET)
            self.operate_catalog = [command, "catalog"], {**os.environ, **LOCAL, "AWS_ENDPOINT_URL": endpoint}
            settings = ["CreateCompanionTable=false", f"CatalogBucket={BUCKET}", "CatalogPrefix=prod", "CreateReportBucket=true"]
            self.script("deploy", "--table", TABLE, "--binaries", binaries, *settings)
            (stack,) = client("cloudformation", endpoint).describe_stacks(StackName="metashift-local")["Stacks"]
            self.outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        except BaseException:
            self.stop()
            raise

    def child(self, arguments):
        """Starts a server and gives the first line that it says."""
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.children.append(process)
        line = process.stdout.readline()
        assert line, f"{arguments[0]} says nothing: {pathlib.Path(self.log.name).read_text()}"
        return line

    def script(self, *arguments):
        return subprocess.run(
            [ROOT / "scripts/local-stack", *arguments], env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def operator(self, verb):
        command, environment = self.operate
        return last_line([*command, verb, "--table", TABLE, "--json"], environment)

    def catalog(self, verb, store, *flags):
        command, environment = self.operate_catalog
        return last_line([*command, verb, store, "--json", *flags], environment)

    def stop(self):
        for process in self.children:
            process.terminate()
            process.wait(30)
        self.log.close()
        self.script("stop")

    def control(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.proxy}/__faults/{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    @contextlib.contextmanager
    def fault(self, kind, **rule):
        """The rule stands within the block, where what it gives says how many requests it has hit; what it holds goes on after."""
        self.control("POST", "rules", {"name": kind, "fault": {"kind": kind}, **rule})
        try:
            yield lambda: self.control("GET", "statistics")["hits"].get(kind, 0)
        finally:
            self.control("DELETE", f"rules/{kind}")

    def calls(self, operation):
        return self.control("GET", "statistics")["calls"].get(operation, 0)

    def workers(self, step):
        """Processes of this stack's functions that run this step."""
        server, found = (pathlib.Path(self.folder) / "stack/pid").read_text().strip(), []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if parent == server and step_of((process / "environ").read_bytes()) == step:
                    found.append(int(process.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended
        return found

    def is_quiet(self):
        """No function has sent a request for longer than one of them pauses."""
        before = self.control("GET", "statistics")["calls"]
        time.sleep(2.5)
        return self.control("GET", "statistics")["calls"] == before

    def crashes(self):
        """Invocations so far whose process ended before it answered."""
        return (pathlib.Path(self.folder) / "stack/server.log").read_text().count("Runtime exited before returning a response")

    def kill_at_work(self, step):
        """Kills the step's processes, again until one was in the middle of an invocation."""
        before = self.crashes()
        for _ in range(10):
            for worker in self.workers(step):
                os.kill(worker, signal.SIGKILL)
            with contextlib.suppress(AssertionError):
                return until(lambda: self.crashes() > before, 2, "a crash")
        raise AssertionError(f"no process of {step} was at work")

    def impatient(self, machine):
        """A copy of a machine that waits 4 seconds for a function instead of 330. Gives the copy's name."""
        found = self.machines.describe_state_machine(stateMachineArn=arn_of(machine))
        definition = found["definition"].replace('"TimeoutSeconds": 330', '"TimeoutSeconds": 4')
        assert definition != found["definition"]
        name = f"impatient-{machine}"
        self.machines.create_state_machine(name=f"metashift-local-{name}", definition=definition, roleArn=found["roleArn"])
        return name

    @contextlib.contextmanager
    def without_events(self):
        """Ends of executions are told to nobody within the block, as when the best-effort event is lost."""
        rules = [rule["Name"] for rule in self.events.list_rules()["Rules"]]
        assert rules
        for rule in rules:
            self.events.disable_rule(Name=rule)
        try:
            yield
        finally:
            for rule in rules:
                self.events.enable_rule(Name=rule)

    def release(self, name):
        """What release-barrier answers to the event that AWS sends when the execution of this name was stopped."""
        event = json.loads((ROOT / "tests/deployment/examples/release-barrier.event.input.json").read_text())
        event["detail"]["name"] = name
        return self.invoke("release-barrier", event)["outcome"]

    def invoke(self, step, event):
        answer = self.lambdas.invoke(FunctionName=f"metashift-local-{step}", Payload=json.dumps(event))
        return json.loads(answer["Payload"].read())

    def start(self, given, name, machine="dynamodb-layout"):
        text = json.dumps({"version": 1, **given})
        return self.machines.start_execution(stateMachineArn=arn_of(machine), name=name, input=text)["executionArn"]

    def execute(self, given, name, machine="dynamodb-layout"):
        """Runs to the end of the last successor: (status or error, output or cause, executions)."""
        return self.follow(self.start(given, name, machine))

    def paste(self, output, name):
        """What execute gives for the command that an output of the stack holds."""
        words = shlex.split(self.outputs[output])
        assert words[:3] == ["aws", "stepfunctions", "start-execution"], words
        flags = dict(zip(words[3::2], words[4::2], strict=True))
        started = self.machines.start_execution(
            stateMachineArn=flags["--state-machine-arn"], input=flags["--input"], name=name
        )
        return self.follow(started["executionArn"])

    def follow(self, arn):
        for number in range(1, 1_000):
            ended = until(lambda: ended_execution(self.machines, arn), 300, arn)
            assert len(ended.get("output") or "") < MOST_STATE and len(ended.get("cause") or "") < MOST_STATE
            if ended["status"] != "SUCCEEDED":
                return ended.get("error", ended["status"]), ended.get("cause"), number
            output = json.loads(ended["output"])
            if "successor" not in output:
                return output["status"], output, number
            arn = f"{arn.rsplit(':', 1)[0]}:{output['successor']}"
        raise AssertionError("the run did not end")

    def history(self, arn):
        """The events of an execution, a line each; those inside of maps are not among them."""
        pages = self.machines.get_paginator("get_execution_history").paginate(executionArn=arn)
        return "\n".join(json.dumps(event, default=str) for page in pages for event in page["events"])

    def begin_cutover(self, name, **given):
        """Starts a cutover that compares slowly, up to its barrier."""
        arn = self.start({**CUTOVER, **SLOWLY, **given}, name)
        until(lambda: self.value(BARRIER), 120, f"the barrier of {name}")
        return arn

    def value(self, key):
        item = self.dynamodb.get_item(TableName=TABLE, Key={"pk": {"S": key}}, ConsistentRead=True).get("Item")
        return item and bytes(item["val"]["B"])

    def items(self, table):
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        rows = (item for page in pages for item in page["Items"])
        return {item["pk"]["S"]: bytes(item["val"]["B"]) for item in rows if not item["pk"]["S"].startswith(OWN)}

    def differing(self):
        """Keys whose copies differ at one moment. Writers go on: what two scans show is looked at again, at once."""
        v1, v2 = self.items(TABLE), self.items(COMPANION)
        return [key for key in sorted(v1.keys() | v2.keys()) if v1.get(key) != v2.get(key) and not self.equal_now(key)]

    def equal_now(self, key):
        places = [(TABLE, {"pk": {"S": key}}), (COMPANION, {"bucket": {"S": bucket(key)}, "pk": {"S": key}})]
        gets = [{"Get": {"TableName": table, "Key": place}} for table, place in places]
        first, second = self.dynamodb.transact_get_items(TransactItems=gets)["Responses"]
        return first.get("Item", {}).get("val") == second.get("Item", {}).get("val")

    def reported(self, phase):
        """Records of the embedded metric format that functions have written in this phase; the server gives 10,000 at most."""
        pattern = f'"phase":"{phase}"'
        pages = self.logs.get_paginator("filter_log_events").paginate(
            logGroupName="/aws/lambda/metashift-local", filterPattern=pattern
        )
        for event in (event for page in pages for event in page["events"]):
            for line in event["message"].splitlines():
                if '"_aws"' in line and pattern in line:
                    yield json.loads(line[line.index("{") :])

    def barrier_age_since(self, millis):
        records = (record for record in self.reported("release-barrier") if record["_aws"]["Timestamp"] >= millis)
        return any(record.get("BarrierHeldSeconds", 0) > 0 for record in records)


def last_line(command, environment):
    """The last object that a command says in JSON."""
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1]) if said else None


def arn_of(machine):
    return f"arn:aws:states:us-east-1:000000000000:stateMachine:metashift-local-{machine}"


def step_of(environment):
    variables = dict(entry.split(b"=", 1) for entry in environment.split(b"\0") if b"=" in entry)
    if b"AWS_LAMBDA_RUNTIME_API" not in variables:
        return None
    return variables[b"METASHIFT_STEP"].decode()


def binary(text):
    return base64.b64encode(text).decode()


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
    status, output, _ = stack.paste("StartPlan", "plan")
    assert status == "done" and "report" in output, output
    assert stack.value(PLAN) is None


def bad_input_is_refused_by_the_step(stack):
    status, cause, _ = stack.execute({"mode": "backfill", "pageSize": 0}, "zero-pages")
    assert status == "InvalidInput", (status, cause)


def attempts_that_hang_or_die_are_overlapped_by_their_retries(stack):
    """Every copy waits at the server until the machine has given each attempt up and started the next one beside it."""
    machine = stack.impatient("dynamodb-layout")
    with stack.fault("hold", operation="TransactWriteItems", table=COMPANION) as held:
        arn = stack.start({"mode": "backfill", "segments": SEGMENTS}, "overlapped", machine)
        first = until(lambda: held() >= SEGMENTS and stack.workers("backfill-page"), 60, "an attempt at every segment")
        os.kill(first[0], signal.SIGKILL)
        # A process serves one invocation at a time, and the killed one is not among them.
        until(lambda: len(stack.workers("backfill-page")) > SEGMENTS, 60, "retries beside them")
    status, output, _ = stack.follow(arn)
    assert status == "done" and stack.crashes() == 1, (status, output, stack.crashes())
    until(stack.is_quiet, 60, "the end of every attempt")
    assert stack.differing() == []


def a_lowered_turn_limit_hands_over_to_fresh_executions(stack):
    before = stack.calls("Scan")
    status, output, executions = stack.execute({"mode": "backfill", "newGeneration": True, "turnLimit": 1, **PAGES}, "copy")
    assert status == "done" and executions > 2, (status, output, executions)
    assert stack.differing() == []
    stack.scans = stack.calls("Scan") - before


def a_stopped_run_is_gone_on_with_and_repeats_no_more_than_a_page(stack):
    before = stack.calls("Scan")
    with stack.fault("delay", operation="Scan", fault={"kind": "delay", "millis": 100}) as delayed:
        arn = stack.start({"mode": "backfill", "newGeneration": True, **PAGES}, "half")
        until(lambda: delayed() >= stack.scans // 2, 60, "half of the pages")
        stack.machines.stop_execution(executionArn=arn)
        # This server lets the iterations of a stopped map go on, which AWS does not: they lose their permission.
        with stack.fault("error", fault={"kind": "error", "name": "AccessDeniedException"}):
            until(stack.is_quiet, 60, "the end of the stopped run")
    assert stack.calls("Scan") - before < stack.scans
    status, output, _ = stack.execute({"mode": "backfill", **PAGES}, "other-half")
    repeated = stack.calls("Scan") - before - stack.scans
    # The page at work and the one read ahead; writers' own items come and go, so that a page more or less is needed.
    assert status == "done" and repeated <= 2 * SEGMENTS + 1, (status, output, repeated)


def a_paused_migration_ends_the_run_as_paused(stack):
    stack.operator("pause")
    status, output, _ = stack.execute({"mode": "backfill", "newGeneration": True}, "paused")
    assert status == "paused", (status, output)
    stack.operator("resume")
    assert stack.paste("StartBackfill", "resumed")[0] == "done"


def two_runs_at_once_both_end(stack):
    stack.operator("pause")  # so that one generation is there before two go on with it
    assert stack.execute({"mode": "backfill", "newGeneration": True}, "generation")[0] == "paused"
    stack.operator("resume")
    runs = [stack.start({"mode": "backfill", **PAGES}, name) for name in ["twice-a", "twice-b"]]
    assert [stack.follow(arn)[0] for arn in runs] == ["done", "done"]
    assert stack.differing() == []


def a_thousand_longest_keys_that_cannot_move_block_by_name_and_fit_the_state(stack):
    """With 256 segments; no state, answer or event comes near 32 KB, because none holds a key."""
    keys = [f"tbl/{number:04}".ljust(2048, "k") for number in range(1_000)]
    for begin in range(0, len(keys), 25):
        puts = [{"PutRequest": {"Item": {"pk": {"S": key}, "val": {"B": b"v"}}}} for key in keys[begin : begin + 25]]
        assert not stack.dynamodb.batch_write_item(RequestItems={TABLE: puts})["UnprocessedItems"]
    arn = stack.start({"mode": "backfill", "newGeneration": True, "segments": 256, "pageSize": 10}, "rejects")
    status, cause, _ = stack.follow(arn)
    assert status == "BlockedByRejects", (status, cause)
    assert len(stack.operator("rejects")["rejects"]) == len(keys)
    assert max(len(event) for event in stack.history(arn).splitlines()) < MOST_STATE
    status, cause, _ = stack.execute(CUTOVER, "blocked")
    assert status == "BlockedByRejects" and stack.value(BARRIER) is None, (status, cause)
    for key in keys:
        stack.dynamodb.delete_item(TableName=TABLE, Key={"pk": {"S": key}})
    assert stack.execute({"mode": "backfill"}, "mended")[0] == "done"
    assert stack.execute({"mode": "backfill", "newGeneration": True, "segments": SEGMENTS}, "narrow")[0] == "done"


def a_rehearsal_compares_and_blocks_nobody(stack):
    status, output, _ = stack.paste("StartRehearsal", "rehearsal")
    assert status == "done" and stack.value(BARRIER) is None, (status, output)


def an_unacknowledged_rollout_stops_before_the_barrier(stack):
    status, cause, _ = stack.execute({"mode": "finalize", "cutoverUnderLoad": True}, "not-ready")
    assert status == "RolloutNotReady" and stack.value(BARRIER) is None, (status, cause)
    metric = {"metric": {"minimumReporters": 1, "windowSeconds": 300}}
    status, cause, _ = stack.execute({**CUTOVER, "rollout": metric}, "silent")
    assert status == "RolloutNotReady" and stack.value(BARRIER) is None, (status, cause)
    dimensions = [{"Name": "migration", "Value": "layout"}, {"Name": "phase", "Value": "serve"}]
    for mode, answer in [(0.0, ("status", "done")), (1.0, ("errorType", "RolloutNotReady"))]:
        minute_ago = time.time() - 60
        data = {"MetricName": "WriterMode", "Dimensions": dimensions, "Value": mode, "Timestamp": minute_ago}
        stack.metrics.put_metric_data(Namespace="Metashift", MetricData=[data])
        said = stack.invoke("check-rollout", {"version": 1, "table": TABLE, "rollout": metric})
        assert answer in said.items(), said


def a_stopped_cutover_is_released_by_its_event(stack):
    arn = stack.begin_cutover("stopped")
    stack.machines.stop_execution(executionArn=arn)
    until(lambda: stack.value(BARRIER) is None, 60, "the release by the event of the stopped execution")
    assert stack.value(MARKER) is None


def a_stopped_cutover_whose_event_is_lost_is_released_by_its_watchdog(stack):
    with stack.without_events():
        arn = stack.begin_cutover("unwatched", deadlineSeconds=10)
        stack.machines.stop_execution(executionArn=arn)
        assert stack.release("somebody-else") == "notHeld"
        other = {"version": 1, "table": TABLE, "epoch": "somebody-else", "deadlineSeconds": -55}
        foreign = stack.start(other, "foreign", "cutover-watchdog")
        until(lambda: "notHeld" in stack.history(foreign), 60, "an answer to another epoch's watchdog")
        stack.machines.stop_execution(executionArn=foreign)
        assert stack.value(BARRIER) == b"locked-v1"
        watchdog = arn_of("cutover-watchdog").replace("stateMachine", "execution") + ":unwatched-watchdog"
        status, output, _ = stack.follow(watchdog)
        assert (status, output["outcome"]) == ("done", "released") and stack.value(BARRIER) is None, (status, output)


def a_held_cutover_that_is_stopped_stays_until_it_is_aborted(stack):
    arn = stack.begin_cutover("kept", onFailure="hold", deadlineSeconds=10)
    begun = time.time() * 1000
    stack.machines.stop_execution(executionArn=arn)
    assert stack.release("kept") == "held" and stack.value(BARRIER) == b"locked-v1"
    until(lambda: stack.barrier_age_since(begun), 60, "the age of the barrier, which the alarm watches")
    status, output, _ = stack.execute({"mode": "abort", "epoch": "another"}, "abort-another")
    assert (status, output["outcome"]) == ("done", "notHeld") and stack.value(BARRIER) == b"locked-v1", output
    status, output, _ = stack.execute({"mode": "abort", "epoch": "kept"}, "abort-kept")
    assert (status, output["outcome"]) == ("done", "released") and stack.value(BARRIER) is None, output


def an_expired_cutover_is_released(stack):
    status, cause, _ = stack.execute({**CUTOVER, **SLOWLY, "deadlineSeconds": 1}, "expired")
    assert status == "CutoverExpired" and stack.value(BARRIER) is None, (status, cause)


def a_failed_verification_is_released_or_held_as_asked(stack):
    # Of the longest keys that v2 can hold, so that naming them all would not fit.
    keys = [f"tbl/only-in-v2/{number:02}".ljust(1024, "k") for number in range(40)]
    places = [{"bucket": {"S": bucket(key)}, "pk": {"S": key}} for key in keys]
    for on_failure, barrier in [("release", None), ("hold", b"locked-v1")]:
        name = f"fails-{on_failure}"
        # It comes in after the rehearsal, which would have found it, and before the barrier.
        with stack.fault("hold", operation="TransactWriteItems", mentions=[binary(b"locked-v1")]) as held:
            arn = stack.start({**CUTOVER, "onFailure": on_failure}, name)
            until(held, 120, "the request for the barrier")
            for place in places:
                stack.dynamodb.put_item(TableName=COMPANION, Item={**place, "val": {"B": b"v"}})
        status, cause, _ = stack.follow(arn)
        assert status == "VerificationFailed" and "tbl/only-in-v2" in cause and "more" in cause, (status, cause)
        assert stack.value(BARRIER) == barrier and stack.value(MARKER) is None
        for place in places:
            stack.dynamodb.delete_item(TableName=COMPANION, Key=place)
    assert stack.paste("StartAbort", "abort-failed")[1]["outcome"] == "released" and stack.value(BARRIER) is None


def a_repair_looks_mends_and_compares(stack):
    status, output, _ = stack.execute({"mode": "repair", "dryRun": True}, "dry-repair")
    assert (status, output.get("wouldChange")) == ("done", 0), (status, output)
    status, output, _ = stack.paste("StartRepair", "repair")
    assert status == "done", (status, output)


def of_two_cutovers_at_once_one_publishes_though_the_answer_is_lost(stack):
    with stack.fault("dropAnswer", operation="TransactWriteItems", mentions=[binary(b"complete-v1")]) as lost:
        runs = [stack.start({**CUTOVER, "turnLimit": 1, **PAGES}, name) for name in ["cutover-a", "cutover-b"]]
        ended = [stack.follow(arn) for arn in runs]
        assert lost() > 0
    statuses = sorted(status for status, _, _ in ended)
    assert "done" in statuses and set(statuses) <= {"done", "Superseded", "AlreadyFinalized"}, ended
    assert max(executions for status, _, executions in ended if status == "done") > 2, ended
    assert (stack.value(MARKER), stack.value(BARRIER)) == (b"complete-v1", b"locked-v1")


def a_finalized_table_is_not_finalized_again(stack):
    status, cause, _ = stack.paste("StartFinalize", "again")
    assert status in ("done", "AlreadyFinalized"), (status, cause)
    assert stack.paste("StartAbort", "too-late")[0] == "AlreadyFinalized"
    assert stack.release("cutover-a") == "published"


def both_tables_hold_the_same(stack):
    # The writers delete more than they create.
    assert (count := len(stack.items(COMPANION))) > ITEMS // 2, count
    assert (found := stack.differing()) == [], found


def every_function_reports_its_metrics(stack):
    layout = ["preflight", "backfill-page", "verify", "repair-page", "finish-repair", "check-rollout", "install-barrier"]
    layout += ["publish-marker", "release-barrier", "verify-prefix-reads"]
    for migration, phase in [*(("layout", step) for step in layout), ("catalog", "step")]:
        records = list(stack.reported(phase))
        assert records, phase
        for record in records:
            (directive,) = record["_aws"]["CloudWatchMetrics"]
            assert record["migration"] == migration and directive["Namespace"] == "Metashift", record
            assert directive["Dimensions"] == [["migration", "phase"]], record


def an_empty_catalog_in_s3_reaches_the_newest_format(stack):
    stack.catalog("create", EMPTY)
    status, output, _ = stack.execute({"store": EMPTY, "mode": "inspect"}, "look", "catalog-format")
    assert output["format"] == 11 and output["toFormat"] == 12, (status, output)
    status, output, _ = stack.execute({"store": EMPTY, "checkpoint": True}, "newest", "catalog-format")
    assert status == "done" and output["format"] == 12, (status, output)
    assert stack.catalog("status", EMPTY)["format"] == 12
    status, cause, _ = stack.execute({"store": f"s3://{BUCKET}/nowhere"}, "nowhere", "catalog-format")
    assert status == "InvalidInput", (status, cause)


def a_catalog_of_format_8_reaches_12_through_a_killed_step_and_hand_overs(stack):
    assert stack.catalog("create", SAMPLE, "--sample", "8")["format"] == 8
    given = {"store": SAMPLE, "maxSteps": 1, "turnLimit": 15, "checkpoint": True}
    arn = stack.start(given, "sample", "catalog-format")
    until(lambda: stack.catalog("status", SAMPLE)["underWay"], 60, "the first unit")
    stack.kill_at_work("catalog-migrate-step")
    status, output, executions = stack.follow(arn)
    assert status == "done" and output["format"] == 12 and executions > 1, (status, output, executions)
    assert stack.paste("StartCatalog", "nothing-left")[0] == "done"
    found = stack.catalog("status", SAMPLE)
    assert (found["format"], found["underWay"]) == (12, None), found


CASES = [
    plan_changes_nothing,
    bad_input_is_refused_by_the_step,
    attempts_that_hang_or_die_are_overlapped_by_their_retries,
    a_lowered_turn_limit_hands_over_to_fresh_executions,
    a_stopped_run_is_gone_on_with_and_repeats_no_more_than_a_page,
    a_paused_migration_ends_the_run_as_paused,
    two_runs_at_once_both_end,
    a_thousand_longest_keys_that_cannot_move_block_by_name_and_fit_the_state,
    a_rehearsal_compares_and_blocks_nobody,
    an_unacknowledged_rollout_stops_before_the_barrier,
    a_stopped_cutover_is_released_by_its_event,
    a_stopped_cutover_whose_event_is_lost_is_released_by_its_watchdog,
    a_held_cutover_that_is_stopped_stays_until_it_is_aborted,
    an_expired_cutover_is_released,
    a_failed_verification_is_released_or_held_as_asked,
    a_repair_looks_mends_and_compares,
    of_two_cutovers_at_once_one_publishes_though_the_answer_is_lost,
    a_finalized_table_is_not_finalized_again,
    both_tables_hold_the_same,
    an_empty_catalog_in_s3_reaches_the_newest_format,
    a_catalog_of_format_8_reaches_12_through_a_killed_step_and_hand_overs,
    every_function_reports_its_metrics,
]


def main(commands, binaries):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    with tempfile.TemporaryDirectory(prefix="metashift-stack-") as folder:
        stack = Stack(commands, binaries, folder)
        try:
            for case in CASES:  # each goes on where the one before it ended
                begun = time.monotonic()
                case(stack)
                print(f"ok    {case.__name__.replace('_', ' ')} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            stack.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
