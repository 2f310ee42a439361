"""Runs a state machine and its successors to their end. Exit code 0: done or paused; 1: failed, with name and cause.

    local-stack-execute.py MACHINE INPUT [NAME]
"""

import json
import sys
import time

import boto3


def main(machine, given, name=None):
    client = boto3.client("stepfunctions")
    pages = client.get_paginator("list_state_machines").paginate()
    arns = {found["name"]: found["stateMachineArn"] for page in pages for found in page["stateMachines"]}
    if machine not in arns:
        print(f"there is no state machine {machine}; deploy first", file=sys.stderr)
        return 1
    name = name or f"run-{time.time_ns()}"
    arn = client.start_execution(stateMachineArn=arns[machine], name=name, input=given)["executionArn"]
    while True:
        print(arn.rsplit(":", 1)[1], file=sys.stderr)
        while (ended := client.describe_execution(executionArn=arn))["status"] == "RUNNING":
            time.sleep(0.2)
        if ended["status"] != "SUCCEEDED":
            print(f"{ended['status']} {ended.get('error', '')}: {ended.get('cause', '')}")
            return 1
        output = json.loads(ended["output"])
        if output.get("status") != "continue" or "successor" not in output:
            print(json.dumps(output))
            return 0
        arn = f"{arn.rsplit(':', 1)[0]}:{output['successor']}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
