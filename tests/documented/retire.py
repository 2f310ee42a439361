"""What `metashift layout retire` prints, run as it is printed, with the real aws CLI.

    python3 tests/documented/retire.py METASHIFT AWS

METASHIFT is the built command, AWS the CLI. A table of 64 items is migrated, audited and retired on an embedded server; the
commands for the backup are looked at only, since that server makes none. Everything this starts it stops.
"""

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile

ITEMS = 64
KEPT = "__lake_internal/"


@contextlib.contextmanager
def sandbox(metashift, environment):
    """The endpoint of a server with a table of items, and no writers."""
    command = [metashift, "--json", "sandbox", "--items", str(ITEMS), "--writers", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            yield json.loads(server.stdout.readline())["endpoint"]
        finally:
            server.send_signal(signal.SIGINT)


def main(metashift, aws):
    with tempfile.TemporaryDirectory() as home:
        # The printed commands say `aws`, whatever the file is called.
        programs = pathlib.Path(home, "programs")
        programs.mkdir()
        (programs / "aws").symlink_to(pathlib.Path(aws).absolute())
        environment = {
            "HOME": home, "PATH": f"{programs}:{os.environ['PATH']}", "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local",
        }
        with sandbox(metashift, environment) as endpoint:

            def layout(*words):
                command = [metashift, "--json", "layout", *words, "--table", "lake", "--endpoint", endpoint]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
                return json.loads(done.stdout.splitlines()[-1])

            def keys():
                command = f"aws dynamodb scan --table-name lake --endpoint-url {endpoint} --region us-east-1 --output json"
                done = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, env=environment, check=True)
                return {item["pk"]["S"] for item in json.loads(done.stdout)["Items"]}

            layout("run", "--local", "--segments", "2", "--finalize", "--writes-paused", "--rollout-acknowledged")
            layout("audit")
            own = {"pk": {"S": f"{KEPT}of-the-lake's-own"}, "val": {"B": "dg=="}}
            put = ["aws", "dynamodb", "put-item", "--table-name", "lake", "--item", json.dumps(own)]
            subprocess.run([*put, "--endpoint-url", endpoint, "--region", "us-east-1"], env=environment, check=True)
            before = keys()
            internal = {key for key in before if key.startswith(KEPT)}
            assert len(before - internal) == ITEMS and own["pk"]["S"] in internal, before
            said = layout("retire", "--horizon-days", "0")
            assert said["userItems"] == ITEMS, said
            backup, listed, removal = said["commands"]
            for command in (backup, listed, removal):
                assert f"--endpoint-url {endpoint}" in command and "--region us-east-1" in command, command
            ran = subprocess.run(["sh", "-c", removal], stdout=subprocess.PIPE, text=True, env=environment, timeout=240, check=True)
            assert ran.stdout.strip() == "nothing is left", ran.stdout
            assert keys() == internal, sorted(keys() ^ internal)
            print(f"{ITEMS} items are removed by what retire prints, {len(internal)} records stay")


if __name__ == "__main__":
    main(*sys.argv[1:])
