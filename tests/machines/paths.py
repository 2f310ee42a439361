"""Executes every path of the state machines, with scripted steps in place of the Lambdas.

The interpreter is ministack's, in this process; waits and retry intervals take no time. A scripted step refuses
every input field that docs/steps.md does not name, so that a machine which sends one fails here.

    python tests/machines/paths.py [text in the name of a case]
"""

import datetime
import json
import logging
import os
import pathlib
import re
import sys
import threading
import time

os.environ.setdefault("SFN_WAIT_SCALE", "0")
logging.disable(logging.CRITICAL)

from ministack.services import stepfunctions as sfn  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUNCTION = "arn:aws:lambda:us-east-1:000000000000:function:"


def fields():
    """Fields of every step's input: those of its examples."""
    known = {}
    for path in sorted((ROOT / "tests/deployment/examples").glob("*.input.json")):
        step, *variant = path.name.removesuffix(".input.json").split(".")
        if variant != ["event"]:
            known.setdefault(step, set()).update(json.loads(path.read_text()))
    common = {"version", "table", "companion", "migration", "layout"}
    return {step: own if step.startswith("catalog") else own | common for step, own in known.items()}


FIELDS = fields()
SUBSTITUTIONS = {
    "TableName": "lake",
    "CompanionTableName": "lake_prefix_v2",
    "MigrationLabel": "lake",
    "CutoverDeadlineSeconds": "900",
    **{"".join(word.capitalize() for word in step.split("-")) + "Arn": FUNCTION + step for step in FIELDS},
}
LOCK = threading.Lock()


def failure(name, message="scripted", cause=None):
    """What Step Functions makes of an error that a Lambda returned."""
    body = json.dumps({"errorType": name, "errorMessage": message}) if cause is None else cause
    return sfn._ExecutionError(name, body)


def answer(status="done", **details):
    progress = {"scanned": 10, "copied": 7, "alreadyLive": 3, "rejected": 0, "diverged": 0}
    progress.update(details.pop("progress", {}))
    return {
        "status": status,
        "progress": progress,
        "consumed": {"readUnits": 1.5, "writeUnits": 2.0},
        "retryAfterSeconds": details.pop("wait", None),
        **details,
    }


class World:
    """Scripted steps: a queue of answers a step, then its default; every call is kept."""

    def __init__(self, segments=2, **scripts):
        self.segments = segments
        self.scripts = {name.replace("_", "-"): script for name, script in scripts.items()}
        self.calls = []
        self.barrier = None
        self.run_ended = threading.Event()

    def default(self, step, payload):
        if step == "preflight":
            state = {"repair": "repairing", "audit": "final"}.get(payload["mode"], "open")
            return answer(plan={"segments": self.segments, "generation": 0, "state": state}, report={"items": 10})
        if step == "verify":
            return answer(mismatches=0)
        if step == "install-barrier":
            self.barrier = payload["epoch"]
            return answer(epoch=payload["epoch"], deadline="2026-01-01T00:15:00Z", published=False)
        if step == "publish-marker":
            self.barrier = None
            return answer(published=True)
        if step == "release-barrier":
            held = self.barrier == payload.get("epoch", self.barrier)
            self.barrier = None if held else self.barrier
            return answer(outcome="released" if held else "notHeld")
        if step == "verify-prefix-reads":
            return answer(after=None)
        if step == "record-audit":
            return answer(clean=True, mismatches=0, stamped=True)
        if step == "catalog-migrate-step":
            return answer("continue" if payload["mode"] == "inspect" else "done", format=8, unit="8-9", report={})
        return answer()

    def call(self, function, payload):
        step = function.removeprefix(FUNCTION)
        unknown = set(payload) - FIELDS[step]
        if unknown or payload.get("version") != 1:
            raise failure("InvalidInput", f"{step} refuses {sorted(unknown)}")
        if payload.get("reason") == "watchdog":
            self.run_ended.wait(600)  # the deadline is after everything that the run does
        with LOCK:
            self.calls.append((step, payload))
            script = self.scripts.get(step)
            scripted = script(payload, self.count(step)) if callable(script) else script.pop(0) if script else None
            result = self.default(step, payload) if scripted is None else scripted
        if isinstance(result, Exception):
            raise result
        return result

    def count(self, step):
        return sum(1 for name, _ in self.calls if name == step)

    def steps(self):
        return [name for name, _ in self.calls]


def install():
    """Creates the machines under the names that `run` and their substitutions use."""
    for name in ["cutover-watchdog", "dynamodb-layout", "catalog-format"]:
        text = (ROOT / "statemachine" / f"{name}.asl.json").read_text()
        values = {**SUBSTITUTIONS, "CutoverWatchdogArn": machine("cutover-watchdog")}
        text = re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], text)
        status, _, body = sfn._create_state_machine({"name": name, "definition": text, "roleArn": "arn:aws:iam::0:role/r"})
        assert status == 200, body


def machine(name):
    return f"arn:aws:states:us-east-1:000000000000:stateMachine:{name}"


def wait_for(arn):
    end = time.monotonic() + 300
    while sfn._executions[arn]["status"] == "RUNNING":
        if time.monotonic() > end:
            raise AssertionError(f"{arn} did not end within 300 seconds")
        time.sleep(0.02)
    return sfn._executions[arn]


def start(world, name, execution, given):
    sfn._call_lambda = world.call
    status, _, body = sfn._start_execution(
        {"stateMachineArn": machine(name), "name": execution, "input": json.dumps(given)}
    )
    assert status == 200, body
    return json.loads(body)["executionArn"]


def run(world, given, name="dynamodb-layout", execution=None, limit=32_768):
    """Runs to the end of the last successor and then of the watchdog; (status or error, output or cause, executions)."""
    execution = execution or f"case{time.monotonic_ns()}"
    if name != "dynamodb-layout":
        world.run_ended.set()
    result = follow(world, given, name, execution, limit)
    world.barrier_at_end = world.barrier
    world.run_ended.set()
    watchdog = f"{machine('cutover-watchdog').replace('stateMachine', 'execution')}:{execution}-watchdog"
    if watchdog in sfn._executions:
        wait_for(watchdog)
    return result


def audit(execution, limit=32_768):
    """Follows the audits that a finalization started, as `run` does."""
    arn = f"{machine('dynamodb-layout').replace('stateMachine', 'execution')}:{execution}-audit"
    return follow_to_end(arn, limit) if arn in sfn._executions else None


def follow(world, given, name, execution, limit):
    return follow_to_end(start(world, name, execution, {"version": 1, **given}), limit)


def follow_to_end(arn, limit):
    for number in range(1, 1200):
        ended = wait_for(arn)
        for event in ended["events"]:
            size = len(json.dumps(event))
            assert size < limit, f"an event of {size} bytes: {json.dumps(event)[:300]}"
        assert len(ended["output"] or "") < limit
        if ended["status"] == "FAILED":
            return ended["error"], ended["cause"], number
        output = json.loads(ended["output"])
        if output.get("status") != "continue":
            return output["status"], output, number
        arn = f"{arn.rsplit(':', 1)[0]}:{output['successor']}"
    raise AssertionError("the run did not end")


CASES = []


def case(function):
    CASES.append(function)
    return function


CATALOG = {"store": "s3://bucket/catalog"}
# Without audits, which have cases of their own: they would still run in the case that comes next.
FINALIZE = {"mode": "finalize", "writesPaused": True, "rollout": {"acknowledged": True}, "auditAfterSeconds": []}


@case
def plan_reports_and_touches_nothing():
    world = World()
    status, output, _ = run(world, {"mode": "plan"})
    assert (status, world.steps()) == ("done", ["preflight"]), (status, world.steps())
    assert output["report"] == {"items": 10} and output["mode"] == "plan", output


@case
def plan_without_a_plan_record_still_reports():
    world = World(preflight=[answer(plan=None, report={"segments": 16})])
    status, output, _ = run(world, {"mode": "plan"})
    assert status == "done" and output["plan"] is None, output


@case
def backfill_runs_every_segment_until_it_is_done():
    pages = {}

    def page(payload, _):
        pages[payload["segment"]] = pages.get(payload["segment"], 0) + 1
        return answer("done" if pages[payload["segment"]] == 3 else "continue", wait=1 if pages[payload["segment"]] == 1 else None)

    status, _, executions = run(World(segments=5, backfill_page=page), {"mode": "backfill", "pageSize": 50})
    assert (status, pages, executions) == ("done", dict.fromkeys(range(5), 3), 1)


@case
def one_segment_is_a_map_of_one():
    status, _, _ = run(World(segments=1), {"mode": "rehearse"})
    assert status == "done"


@case
def rejects_end_the_run_after_everything_else_has_moved():
    world = World(backfill_page=lambda payload, _: answer(progress={"rejected": 1 if payload["segment"] == 0 else 0}))
    status, cause, _ = run(world, FINALIZE)
    assert status == "BlockedByRejects" and "rejects" in cause and world.count("backfill-page") == 2


@case
def diverged_keys_end_the_run():
    world = World(backfill_page=lambda payload, _: answer(progress={"diverged": 2}))
    assert run(world, FINALIZE)[0] == "BlockedByDivergence"


@case
def a_blocked_step_without_counts_is_refused_by_state():
    assert run(World(preflight=[answer("blocked", plan=None, report={})]), {"mode": "backfill"})[0] == "Migration"
    assert run(World(backfill_page=lambda *_: answer("blocked")), {"mode": "backfill"})[0] == "Migration"


@case
def a_missing_plan_is_named():
    assert run(World(preflight=[answer(plan=None, report={})]), {"mode": "backfill"})[0] == "PlanMismatch"


@case
def a_pause_ends_the_run_as_paused():
    status, output, _ = run(World(backfill_page=lambda *_: answer("paused")), {"mode": "backfill"})
    assert status == "paused" and output["phase"] == "backfill"
    assert run(World(preflight=[answer("paused", plan=None, report={})]), {"mode": "backfill"})[0] == "paused"


@case
def transient_errors_are_retried_and_permanent_ones_are_not():
    world = World(segments=1, backfill_page=[failure("Throttled"), failure("Contended"), failure("Lambda.ServiceException")])
    assert run(world, {"mode": "backfill"})[0] == "done" and world.count("backfill-page") == 4
    world = World(segments=1, backfill_page=[failure("AccessDenied")])
    assert run(world, {"mode": "backfill"})[0] == "AccessDenied" and world.count("backfill-page") == 1
    world = World(segments=1, backfill_page=[failure("Runtime.ExitError")])
    assert run(world, {"mode": "backfill"})[0] == "done" and world.count("backfill-page") == 2


@case
def another_migrator_at_work_ends_the_run_after_three_retries():
    world = World(segments=1, backfill_page=lambda *_: failure("Superseded"))
    assert run(world, {"mode": "backfill"})[0] == "Superseded" and world.count("backfill-page") == 4


@case
def any_cause_is_survived():
    for cause in ["", "not json {", "x" * 32_768, "\u00e9" * 9_000, '{"errorMessage": null}']:
        status, shown, _ = run(World(preflight=[failure("TableMismatch", cause=cause)]), {"mode": "backfill"}, limit=80_000)
        assert status == "TableMismatch" and len(shown) <= 1_000, (status, len(shown))
        world = World(verify=lambda payload, _: failure("Corruption", cause=cause) if payload["mode"] == "final" else None)
        assert run(world, FINALIZE, limit=80_000)[0] == "Corruption" and world.barrier_at_end is None


@case
def finalize_goes_all_the_way():
    world = World(segments=3)
    layout = {"version": 1, "default": 4, "families": {}}
    status, output, _ = run(world, {**FINALIZE, "deadlineSeconds": 600, "onFailure": "hold", "layout": layout}, execution="whole-way")
    assert status == "done" and output["epoch"] == "whole-way", output
    assert all(payload["layout"] == layout for _, payload in world.calls), "every step has the layout"
    steps = [step for index, step in enumerate(world.steps()) if index == 0 or world.steps()[index - 1] != step]
    expected = ["preflight", "backfill-page", "verify", "check-rollout", "install-barrier", "verify", "publish-marker", "verify-prefix-reads"]
    assert [step for step in steps if step != "release-barrier"] == expected, steps
    installed = next(payload for step, payload in world.calls if step == "install-barrier")
    assert installed["onFailure"] == "hold" and installed["deadlineSeconds"] == 600 and installed["epoch"] == "whole-way"
    assert installed["owner"].endswith(":whole-way") and installed["writesPaused"] is True
    compared = [(p["mode"], p["direction"], p["segment"]) for s, p in world.calls if s == "verify"]
    for mode in ["rehearse", "final"]:
        assert sorted(c[1:] for c in compared if c[0] == mode) == sorted((d, s) for d in ["v1", "v2"] for s in range(3))


@case
def differing_tables_lead_to_the_exact_comparison_of_both_directions():
    world = World(publish_marker=[answer("continue", exact=True), failure("VerificationFailed")])
    assert run(world, FINALIZE)[0] == "VerificationFailed" and world.barrier_at_end is None
    exact = [p for s, p in world.calls if s == "verify" and p.get("exact")]
    assert sorted((p["direction"], p["segment"], p["mode"]) for p in exact) == [(d, s, "final") for d in ["v1", "v2"] for s in range(2)], exact
    world = World(publish_marker=lambda *_: answer("continue", exact=True))
    assert run(world, FINALIZE)[0] == "VerificationFailed" and world.count("publish-marker") == 2 and world.barrier_at_end is None
    # The comparison that names the keys ends early: that the tables differ is still what the run says.
    expired = lambda payload, _: failure("CutoverExpired") if payload.get("exact") else None
    world = World(publish_marker=[answer("continue", exact=True)], verify=expired)
    assert run(world, FINALIZE)[0] == "VerificationFailed" and world.barrier_at_end is None
    # And it goes on in a successor, exactly.
    turns = lambda payload, n: answer("continue", mismatches=0) if payload.get("exact") and n < 13 else None
    world = World(publish_marker=[answer("continue", exact=True), failure("VerificationFailed")], verify=turns)
    status, _, executions = run(world, {**FINALIZE, "turnLimit": 1})
    assert status == "VerificationFailed" and executions > 1 and world.count("publish-marker") == 2 and world.barrier_at_end is None


@case
def a_rehearsal_with_differences_installs_no_barrier():
    world = World(verify=lambda *_: answer(mismatches=2))
    assert run(world, FINALIZE)[0] == "VerificationFailed" and world.count("install-barrier") == 0


@case
def an_unready_rollout_installs_no_barrier():
    world = World(check_rollout=[failure("RolloutNotReady")])
    assert run(world, {"mode": "finalize", "writesPaused": True})[0] == "RolloutNotReady"
    assert world.count("install-barrier") == 0
    assert next(p for s, p in world.calls if s == "check-rollout")["rollout"] == {"acknowledged": False}


@case
def every_failure_after_the_barrier_releases_it():
    for script in [
        {"install_barrier": lambda *_: failure("OutcomeUnknown")},
        {"verify": lambda payload, _: failure("CutoverExpired") if payload["mode"] == "final" else None},
        {"verify": lambda payload, _: answer("blocked", mismatches=0) if payload["mode"] == "final" else None},
        {"publish_marker": lambda *_: failure("Unavailable")},
    ]:
        world = World(**script)
        status = run(world, FINALIZE)[0]
        expected = {"install_barrier": ["OutcomeUnknown"], "publish_marker": ["Unavailable"]}
        assert status in expected.get(next(iter(script)), ["CutoverExpired", "VerificationFailed", "Migration"]), status
        released = [p for s, p in world.calls if s == "release-barrier" and p["reason"] == "failure"]
        assert len(released) == 1 and world.barrier_at_end is None, world.steps()


@case
def a_held_barrier_stays_and_the_failure_is_the_first_one():
    world = World(
        verify=lambda payload, _: failure("CutoverExpired") if payload["mode"] == "final" else None,
        release_barrier=lambda *_: answer(outcome="held"),
    )
    assert run(world, {**FINALIZE, "onFailure": "hold"})[0] == "CutoverExpired"


@case
def a_lost_publish_answer_ends_as_a_success():
    world = World(publish_marker=lambda *_: failure("OutcomeUnknown"), release_barrier=lambda *_: answer(outcome="published"))
    status, _, _ = run(world, FINALIZE)
    assert status == "done" and world.count("verify-prefix-reads") == 1


@case
def a_barrier_that_finds_the_marker_goes_on_as_a_success():
    world = World(install_barrier=[answer(epoch="e", deadline="2026-01-01T00:15:00Z", published=True)])
    assert run(world, FINALIZE)[0] == "done" and world.count("publish-marker") == 0


@case
def a_release_that_fails_keeps_the_first_failure_and_says_so():
    def release(payload, _):
        return failure("Unavailable") if payload["reason"] == "failure" else None

    world = World(verify=lambda payload, _: failure("CutoverExpired") if payload["mode"] == "final" else None, release_barrier=release)
    status, cause, _ = run(world, FINALIZE, execution="stuck")
    assert status == "CutoverExpired" and "watchdog" in cause, cause
    assert world.barrier_at_end == "stuck" and world.barrier is None


@case
def a_pause_under_the_barrier_releases_it():
    world = World(verify=lambda payload, _: answer("paused", mismatches=0) if payload["mode"] == "final" else None)
    assert run(world, FINALIZE)[0] == "paused" and world.barrier_at_end is None


@case
def a_pause_under_a_barrier_that_is_held_says_that_writers_are_blocked():
    world = World(
        verify=lambda payload, _: answer("paused", mismatches=0) if payload["mode"] == "final" else None,
        release_barrier=lambda payload, _: answer(outcome="held") if payload["reason"] == "failure" else None,
    )
    status, cause, _ = run(world, {**FINALIZE, "onFailure": "hold"})
    assert status == "BarrierHeld" and "abort" in cause, (status, cause)


@case
def a_table_that_is_final_is_read_by_prefix_and_nothing_else_is_done():
    plan = {"segments": 2, "generation": 0, "state": "final"}
    world = World(preflight=[answer(plan=plan, report={})])
    assert run(world, FINALIZE)[0] == "done"
    assert world.steps() == ["preflight", "verify-prefix-reads"], world.steps()


def input_of(execution):
    arn = f"{machine('dynamodb-layout').replace('stateMachine', 'execution')}:{execution}"
    return json.loads(sfn._executions[arn]["input"])


AUDITED = {key: value for key, value in FINALIZE.items() if key != "auditAfterSeconds"}


@case
def a_finalization_is_audited_by_itself_after_an_hour_and_a_day():
    world = World(segments=2)
    status, output, _ = run(world, {**AUDITED, "layout": {"version": 1, "default": 4, "families": {}}, "pageSize": 50}, execution="seen")
    assert status == "done" and output["audit"] == "seen-audit", output
    status, output, executions = audit("seen")
    assert (status, output["mode"], output["run"], executions) == ("done", "audit", "seen", 2), (status, output, executions)
    assert input_of("seen-audit")["auditAfterSeconds"] == [3600, 86400]
    assert [p["run"] for s, p in world.calls if s == "record-audit"] == ["audit-seen", "audit-seen-2"]
    compared = [p for s, p in world.calls if s == "verify" and p.get("run", "").startswith("audit-")]
    for name in ["audit-seen", "audit-seen-2"]:
        walked = sorted((p["direction"], p["segment"]) for p in compared if p["run"] == name)
        assert walked == [("v1", 0), ("v1", 1), ("v2", 0), ("v2", 1)], walked
    assert all(p["mode"] == "rehearse" and p["pageSize"] == 50 and p["layout"]["default"] == 4 for p in compared), compared
    assert sum(1 for s, p in world.calls if s == "preflight" and p["mode"] == "audit") == 2
    assert world.count("install-barrier") == 1, "an audit blocks no writer"


@case
def the_audits_come_when_they_are_due():
    waited, sleep = [], sfn._scaled_sleep
    sfn._scaled_sleep = waited.append
    try:
        for number, ago, least, most in [(0, 0, 50, 60), (1, 0, 3_590, 3_600), (1, 600, 2_990, 3_000), (1, 7_200, 0, 0)]:
            # Each counts from the start of the first execution, which the later ones find in resume.
            since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=ago)
            plan = {"segments": 2, "generation": 0, "state": "final"}
            resume = {"run": "due", "number": 1, "phase": "audit", "plan": plan, "audit": number, "since": since.strftime("%Y-%m-%dT%H:%M:%S.000Z")}
            given = {"mode": "audit", "auditAfterSeconds": [60, 3_600][: number + 1], "resume": resume}
            waited.clear()
            assert run(World(), given)[0] == "done" and len(waited) == 1, (given, waited)
            assert least <= waited[0] <= most, (given, waited)
    finally:
        sfn._scaled_sleep = sleep
    assert run(World(), {"mode": "audit"})[0] == "done", "by itself at once"


@case
def an_audit_that_finds_differences_ends_typed_and_names_the_command():
    differs = [answer(clean=False, mismatches=3, stamped=False)]
    world = World(verify=lambda payload, _: answer(mismatches=1) if payload.get("run", "").startswith("audit-") else None, record_audit=differs)
    assert run(world, AUDITED, execution="late")[0] == "done", "the cutover is a success all the same"
    status, cause, executions = audit("late")
    assert (status, executions) == ("VerificationFailed", 1) and "metashift layout audit" in cause, (status, cause)
    assert world.count("record-audit") == 1


@case
def an_audit_fails_pauses_and_hands_over_as_a_run_does():
    for script, expected in [
        ({"preflight": lambda payload, _: failure("AlreadyFinalized", "metashift layout run takes over")}, "AlreadyFinalized"),
        ({"record_audit": lambda *_: failure("PlanMismatch")}, "PlanMismatch"),
        ({"verify": lambda *_: failure("AccessDenied")}, "AccessDenied"),
        ({"verify": lambda *_: answer("paused", mismatches=0)}, "paused"),
    ]:
        world = World(**script)
        assert run(world, {"mode": "audit"})[0] == expected, expected
        assert world.count("record-audit") == (1 if expected == "PlanMismatch" else 0)
    turns = {}

    def page(payload, _):
        key = (payload["direction"], payload["segment"])
        turns[key] = turns.get(key, 0) + 1
        return answer("done" if turns[key] >= 3 else "continue", mismatches=0)

    world = World(segments=2, verify=page)
    status, output, executions = run(world, {"mode": "audit", "turnLimit": 1}, execution="by-hand")
    assert (status, output["run"], executions) == ("done", "by-hand", 3), (status, output, executions)
    assert {p["run"] for s, p in world.calls if s in ("verify", "record-audit")} == {"audit-by-hand"}
    names = [e["name"] for e in sfn._executions.values()]
    assert any(re.fullmatch(r"by-hand-audit-[0-9a-z]{1,5}-1", name) for name in names), "under names that no run has"


@case
def an_audit_that_cannot_be_started_is_said():
    starting = sfn._invoke_nested_start_execution

    def refuse(resource, given):
        if given["Name"].endswith("-audit"):
            raise sfn._ExecutionError(error, "scripted")
        return starting(resource, given)

    sfn._invoke_nested_start_execution = refuse
    try:
        error = "StepFunctions.ExecutionLimitExceededException"
        status, cause, _ = run(World(), AUDITED)
        assert status == error and "The marker is published" in cause and "metashift layout audit" in cause, (status, cause)
        error = "StepFunctions.ExecutionAlreadyExistsException"
        status, output, _ = run(World(), AUDITED, execution="twice")
        assert (status, output["audit"]) == ("done", "twice-audit"), (status, output)
    finally:
        sfn._invoke_nested_start_execution = starting


@case
def the_times_of_the_audits_are_checked():
    for given in [59, 2_592_001, "60", None, 60.5, [60, "61"], [60] * 6, [-60], {}, True]:
        world = World()
        status = run(world, {**AUDITED, "auditAfterSeconds": given})[0]
        assert status == "InvalidInput" and world.calls == [], (given, status)
    assert run(World(), {"mode": "audit", "auditAfterSeconds": []})[0] == "InvalidInput"
    for given, executions in [([60], 1), ([2_592_000] * 5, 5), (60, 1)]:
        name = f"times-{executions}-{time.monotonic_ns()}"
        assert run(World(), {**AUDITED, "auditAfterSeconds": given}, execution=name)[1]["audit"] == f"{name}-audit"
        assert audit(name)[::2] == ("done", executions), given
    status, output, _ = run(World(), FINALIZE, execution="unaudited")
    assert status == "done" and output["audit"] is None and audit("unaudited") is None, output


@case
def a_failed_prefix_read_releases_nothing():
    world = World(verify_prefix_reads=lambda *_: failure("VerificationFailed"))
    assert run(world, FINALIZE)[0] == "VerificationFailed"
    assert not [p for s, p in world.calls if s == "release-barrier" and p["reason"] == "failure"]


@case
def a_lowered_turn_limit_hands_over_in_every_phase():
    done = {}

    def page(payload, _):
        key = json.dumps(payload, sort_keys=True)
        done[key] = done.get(key, 0) + 1
        return answer("done" if done[key] >= 3 else "continue", mismatches=0)

    world = World(segments=2, backfill_page=page, verify=page)
    status, output, executions = run(world, {**FINALIZE, "turnLimit": 1}, execution="long")
    assert status == "done" and executions == 7, (status, executions)
    assert output["epoch"] == "long" and world.count("preflight") == 1 and world.count("install-barrier") == 1
    assert {p["epoch"] for s, p in world.calls if "epoch" in p} == {"long"}
    assert all(count == 3 for count in done.values()), done


@case
def a_hand_over_that_fails_under_the_barrier_releases_it():
    starting = sfn._invoke_nested_start_execution

    def refuse(resource, given):
        if given["StateMachineArn"].endswith("dynamodb-layout"):
            raise sfn._ExecutionError(error, "scripted")
        return starting(resource, given)

    again = {"verify": lambda payload, _: answer("continue", mismatches=0) if payload["mode"] == "final" else None}
    sfn._invoke_nested_start_execution = refuse
    try:
        error = "StepFunctions.ExecutionLimitExceededException"
        world = World(**again)
        assert run(world, {**FINALIZE, "turnLimit": 1})[0] == error and world.barrier_at_end is None
        status = run(World(backfill_page=lambda *_: answer("continue")), {"mode": "backfill", "turnLimit": 1})[0]
        assert status == error
        error = "StepFunctions.ExecutionAlreadyExistsException"
        arn = start(World(**again), "dynamodb-layout", "lost-answer", {"version": 1, **FINALIZE, "turnLimit": 1})
        ended = wait_for(arn)
        assert ended["status"] == "SUCCEEDED" and re.fullmatch(r"lost-answer-[0-9a-z]{1,5}-1", json.loads(ended["output"])["successor"])
    finally:
        sfn._invoke_nested_start_execution = starting


@case
def a_run_without_end_ends():
    world = World(segments=1)
    given = {"mode": "backfill", "resume": {"run": "r", "number": 1000, "phase": "backfill", "plan": {"segments": 1, "generation": 0, "state": "open"}}}
    assert run(world, given)[0] == "Internal" and world.calls == []


@case
def two_hundred_and_fifty_six_segments_stay_under_32_kilobytes_of_state():
    big = {"scanned": 10**12, "copied": 10**12, "alreadyLive": 10**12}
    world = World(segments=256, backfill_page=lambda *_: answer("done", progress=big), verify=lambda *_: answer(mismatches=0, progress=big))
    status, _, executions = run(world, {**FINALIZE, "resume": {"run": "wide", "number": 0, "phase": "backfill", "plan": {"segments": 256, "generation": 0, "state": "open"}}})
    assert status == "done" and world.count("verify") == 1024 and executions > 1, executions


@case
def repair_mends_then_compares():
    world = World()
    status, _, _ = run(world, {"mode": "repair"}, execution="mend")
    assert status == "done" and world.count("finish-repair") == 1
    assert world.count("repair-page") == 4 and world.count("verify") == 4
    assert {p["run"] for s, p in world.calls if s in ("repair-page", "finish-repair")} == {"mend"}
    assert next(p for s, p in world.calls if s == "preflight")["repairRun"] == "mend"
    assert run(World(repair_page=lambda *_: answer("paused")), {"mode": "repair"})[0] == "paused"
    assert run(World(repair_page=lambda *_: failure("Divergence")), {"mode": "repair", "repairRun": "again"})[0] == "Divergence"


@case
def a_repair_that_already_runs_is_gone_on_with():
    repairing = {"segments": 1, "generation": 0, "state": "repairing", "repairRun": "older"}
    paging = iter(["continue", "continue"])
    world = World(preflight=[answer(plan=repairing)], repair_page=lambda *_: answer(next(paging, "done")))
    status, _, executions = run(world, {"mode": "repair", "turnLimit": 1})
    assert status == "done" and executions == 2, (status, executions)
    assert {p["run"] for s, p in world.calls if s in ("repair-page", "finish-repair")} == {"older"}


@case
def a_dry_repair_compares_nothing():
    world = World(repair_page=lambda *_: answer(mismatches=3))
    status, output, _ = run(world, {"mode": "repair", "dryRun": True})
    assert status == "done" and output["wouldChange"] == 12, output
    assert world.count("verify") == 0 and all(p["dryRun"] for s, p in world.calls if s == "repair-page")


@case
def abort_releases_and_asks_nothing_first():
    world = World(preflight=lambda *_: failure("ForeignLeftovers"))
    world.barrier = "e1"
    status, output, _ = run(world, {"mode": "abort", "epoch": "e1"})
    assert status == "done" and output["outcome"] == "released" and output["epoch"] == "e1" and world.barrier is None
    assert world.steps() == ["release-barrier"] and world.calls[-1][1]["reason"] == "abort"
    world = World(release_barrier=lambda *_: answer(outcome="notHeld"))
    assert run(world, {"mode": "abort"})[1]["outcome"] == "notHeld" and "epoch" not in world.calls[-1][1]
    assert run(World(release_barrier=lambda *_: answer(outcome="published")), {"mode": "abort"})[0] == "AlreadyFinalized"
    assert run(World(release_barrier=lambda *_: answer(outcome="held")), {"mode": "abort"})[0] == "BarrierHeld"
    assert run(World(release_barrier=lambda *_: failure("AccessDenied")), {"mode": "abort"})[0] == "AccessDenied"


@case
def bad_input_reaches_no_step():
    resume = {"run": "r", "number": 1, "phase": "elsewhere", "plan": {"segments": 1, "generation": 0, "state": "open"}}
    for given in [{}, {"mode": "all"}, {"mode": "plan", "version": 2}, {"mode": "finalize", "onfailure": "hold"}, {"mode": "finalize", "epoch": "mine"}, {"mode": "plan", "resume": resume}, {"mode": "plan", "turnLimit": "9"}, {"mode": "plan", "deadlineSeconds": None}]:
        world = World()
        assert run(world, given)[0] == "InvalidInput" and world.calls == [], given
    for name in ["n" * 65, "caf\u00e9", "a(b)"]:
        assert run(World(), {"mode": "plan"}, execution=name)[0] == "InvalidInput", name


@case
def a_run_is_never_handed_over_to_a_stranger_of_a_like_name():
    for name, given, machine_name in [
        ("lake", {"mode": "backfill", "turnLimit": 1}, "dynamodb-layout"),
        ("lake", {**CATALOG, "turnLimit": 1}, "catalog-format"),
    ]:
        stranger = {"version": 1, "mode": "plan"} if machine_name == "dynamodb-layout" else {"version": 1, **CATALOG, "mode": "inspect"}
        assert wait_for(start(World(), machine_name, f"{name}-1", stranger))["status"] == "SUCCEEDED"
        world = World(
            segments=1,
            backfill_page=lambda _, count: answer("done" if count >= 3 else "continue"),
            catalog_migrate_step=lambda payload, count: None if payload["mode"] == "inspect" else answer("done" if count >= 4 else "continue", format=12, unit=None, report={}),
        )
        status, _, executions = run(world, given, name=machine_name, execution=name)
        assert (status, executions) == ("done", 3), (machine_name, status, executions)
        mine = [arn.rsplit(":", 1)[1] for arn in sfn._executions if f":{machine_name}:{name}-" in arn and not arn.endswith(f":{name}-1")]
        began = {one.removeprefix(f"{name}-").rsplit("-", 1)[0] for one in mine}
        assert len(mine) == 2 and len(began) == 1, mine


@case
def started_twice_each_run_ends():
    world = World()
    first, second = start(world, "dynamodb-layout", "twice-a", {"version": 1, "mode": "backfill"}), start(world, "dynamodb-layout", "twice-b", {"version": 1, "mode": "backfill"})
    assert wait_for(first)["status"] == wait_for(second)["status"] == "SUCCEEDED"


def watchdog(world, epoch="e1"):
    return run(world, {"table": "lake", "epoch": epoch, "deadlineSeconds": 60}, name="cutover-watchdog")


@case
def the_watchdog_releases_its_epoch_and_no_other():
    world = World()
    world.barrier = "e1"
    assert watchdog(world)[0] == "done" and world.barrier is None
    world = World()
    world.barrier = "e2"
    assert watchdog(world)[0] == "done" and world.barrier == "e2"
    assert all(p["epoch"] == "e1" and p["reason"] == "watchdog" for _, p in world.calls)


@case
def the_watchdog_asks_again_before_the_deadline_and_after_errors():
    world = World(release_barrier=[answer("continue", wait=5), failure("AccessDenied"), answer(outcome="released")])
    assert watchdog(world)[0] == "done" and world.count("release-barrier") == 3


@case
def the_watchdog_of_a_held_barrier_asks_on_then_fails_typed():
    world = World(release_barrier=lambda *_: answer(outcome="held"))
    assert watchdog(world)[0] == "CutoverExpired" and world.count("release-barrier") == 600


@case
def the_watchdog_refuses_an_input_without_an_epoch():
    assert run(World(), {"table": "lake"}, name="cutover-watchdog")[0] == "InvalidInput"


@case
def the_catalog_migrates_in_turns_and_executions():
    def step(payload, count):
        if payload["mode"] == "inspect":
            return None
        return answer("done" if count >= 6 else "continue", wait=1, format=12, unit=None, report={})

    world = World(catalog_migrate_step=step)
    status, output, executions = run(world, {**CATALOG, "toFormat": 12, "maxSteps": 9, "turnLimit": 2}, name="catalog-format")
    assert status == "done" and output["format"] == 12 and executions == 3, (status, output, executions)


@case
def the_catalog_is_only_inspected_when_asked_or_done():
    world = World()
    arn = start(world, "catalog-format", "look", {"version": 1, **CATALOG, "mode": "inspect"})
    assert json.loads(wait_for(arn)["output"])["format"] == 8 and world.count("catalog-migrate-step") == 1
    world = World(catalog_migrate_step=[answer("done", format=12, unit=None, report={})])
    assert run(world, CATALOG, name="catalog-format")[0] == "done" and world.count("catalog-migrate-step") == 1


@case
def the_catalog_ends_typed():
    inspect_ok = answer("continue", format=8, unit="8-9", report={})
    for script, expected in [
        ([failure("Migration")], "Migration"),
        ([answer("blocked", format=8, unit=None, report={})], "Migration"),
        ([inspect_ok, answer("blocked", format=8, unit=None, report={})], "Migration"),
        ([inspect_ok, answer("paused", format=8, unit=None, report={})], "paused"),
        ([inspect_ok, *[failure("Fenced")] * 4], "Fenced"),
        ([inspect_ok, *[failure("Fenced")] * 3], "done"),
    ]:
        assert run(World(catalog_migrate_step=list(script)), CATALOG, name="catalog-format")[0] == expected, expected
    for given in [{}, {"store": 1, "mode": "walk"}, {**CATALOG, "format": 12}, {**CATALOG, "turnLimit": "9"}]:
        assert run(World(), given, name="catalog-format")[0] == "InvalidInput"
    over = {**CATALOG, "resume": {"run": "r", "number": 1000}}
    assert run(World(), over, name="catalog-format")[0] == "Internal"


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    install()
    failed = run_cases = 0
    for function in CASES:
        if wanted not in function.__name__:
            continue
        run_cases += 1
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"ok    {name}", flush=True)
        except Exception as error:  # every case runs; the exit code says whether one failed
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__} {error}", flush=True)
    print(f"{run_cases} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
