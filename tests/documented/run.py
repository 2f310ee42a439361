"""Every command of README.md and docs/: run as the page has it, or marked in the page, or run by another stage.

    python3 tests/documented/run.py METASHIFT PACKAGES [PAGE ...]

METASHIFT is the built command, PACKAGES the folder that `sam build` has made. Each page is one terminal: its ```sh blocks
run from top to bottom, in a home and a working directory of its own, without credentials. What a page says in the comment
behind a command, or in a comment alone on a line for the rest of its block, holds here too:

    # until Ctrl-C             runs beside the commands after it, until the page ends; then Ctrl-C ends it with 130
    # until the marker         runs beside the commands after it, which publish the marker; then it ends by itself
    # prints what to export    the line `export …` that it prints is typed in
    # ends with N              is its exit code, else 0
    # on AWS only              is not run
    # by hand: REASON          is not run

Whether run or not, each `metashift …` in a block or in the text has to exist with its flags, and so has each script and
each stage. Everything this starts it stops.
"""

import contextlib
import functools
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "text", "json"}
UNTIL_STOPPED, UNTIL_DONE, EXPORTS = "until Ctrl-C", "until the marker", "prints what to export"
NOT_RUN = {"on AWS only": "on AWS only", "by hand: ": "by hand"}
SECONDS = 240

# Commands that another stage runs: its script has a line that is the command or begins with it.
ELSEWHERE = {
    "cargo test --workspace --all-features": "50-tests",
    "scripts/cold-start": "65-build",
}
# What is typed here instead, where a page names what a machine may have in use already or what takes long.
INSTEAD = {
    ("docs/deployment.md", "8000"): lambda terminal: str(terminal.port),
    ("docs/deployment.md", "scripts/local-stack deploy"): lambda terminal: f"scripts/local-stack deploy --binaries {terminal.packages}",
}
# What this runs; anything else has to be marked or named above.
PROGRAMS = re.compile(r"(cargo metashift|metashift|scripts/local-stack|export|\S+/tools/stack/bin/python) |eval \"\$\(scripts/local-stack ")
# Flags that the text mentions alone and that belong to programs of others.
FOREIGN = {"--config-env", "--parameter-overrides", "--add-host"}


class Wrong(Exception):
    pass


class Command:
    def __init__(self, page, number, text, comment):
        self.page, self.number, self.text, self.comment = page, number, text, comment

    def __str__(self):
        return f"{self.page}:{self.number}: {self.text}"

    def says(self, mark):
        return mark in self.comment

    @property
    def code(self):
        found = re.search(r"ends with (\d+)", self.comment)
        return 130 if self.says(UNTIL_STOPPED) else int(found[1]) if found else 0

    @property
    def elsewhere(self):
        """Who runs it, if not this: a mark of the page, a stage, or nobody."""
        for mark, who in NOT_RUN.items():
            if self.says(mark):
                return who
        if self.text.split()[0] == ".ci/run":
            return "the gate"
        if self.text in ELSEWHERE:
            return f"stage {ELSEWHERE[self.text]}"
        if not PROGRAMS.match(self.text):
            raise Wrong(f"{self}\nis not run here, and neither marked (on AWS only, by hand: …) nor the work of a stage")
        return None


def split_comment(line):
    """A line of shell as command and comment."""
    quote = None
    for at, letter in enumerate(line):
        if quote:
            quote = None if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at].strip(), line[at + 1 :].strip()
    return line.strip(), ""


def read(page):
    """The commands of a page, and its text without the blocks."""
    commands, text, block, language = [], [], None, None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            if block is None:
                block, language = [], line.strip()[3:]
                if language not in LANGUAGES:
                    raise Wrong(f"{page}:{number}: a block says what it is: {', '.join(sorted(LANGUAGES))}")
            else:
                commands += of_block(page, block) if language == "sh" else []
                block = None
        elif block is not None:
            block.append((number, line))
        else:
            text.append(line)
    return commands, "\n".join(text)


def of_block(page, lines):
    heading, begun, start = "", "", 0
    for number, line in lines:
        start = start if begun else number
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun.removesuffix("\\")
            continue
        (command, comment), begun = split_comment(begun), ""
        if command:
            yield Command(page, start, command, f"{comment} {heading}")
        else:
            heading = comment or heading


class Metashift:
    """The command's own account of its subcommands and flags."""

    def __init__(self, binary):
        self.binary = binary

    @functools.cache
    def help(self, *words):
        said = subprocess.run([self.binary, *words, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
        listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  \S))+)", said, re.MULTILINE)
        commands = set(re.findall(r"^  ([a-z][a-z-]*)", listed[1], re.MULTILINE)) if listed else set()
        return commands, set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", said, re.MULTILINE))

    @functools.cache
    def flags(self):
        """Every flag of every subcommand."""
        found = set()

        def collect(*words):
            commands, flags = self.help(*words)
            found.update(flags)
            for command in commands - {"help"}:
                collect(*words, command)

        collect()
        return found

    def check(self, words):
        path = []
        while words and words[0] in self.help(*path)[0]:
            path.append(words.pop(0))
        commands, flags = self.help(*path)
        if commands and words and re.match("[a-z]", words[0]):
            raise Wrong(f"metashift {' '.join(path)} has no command {words[0]}")
        for word in words:
            if word.startswith("--") and word.split("=")[0] not in flags:
                raise Wrong(f"metashift {' '.join(path)} has no flag {word}")


def check_mention(text, metashift):
    """Whether what the text names exists; False if it is no command that can be looked up."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if words[:2] == ["cargo", "metashift"]:
        words.pop(0)
    match words:
        case ["metashift", *rest]:
            metashift.check(rest)
        case ["layout" | "catalog", _, *_]:
            metashift.check(words)
        case [".ci/run", *parts]:
            stages = [stage.stem for stage in (ROOT / ".ci/stages").glob("*.sh")]
            for part in parts:
                if not any(part in stage for stage in stages):
                    raise Wrong(f"no stage matches {part}")
        case [program, *rest] if program.startswith("scripts/"):
            if not os.access(ROOT / program, os.X_OK):
                raise Wrong(f"there is no {program}")
            source = (ROOT / program).read_text()
            for flag in (word for word in rest if word.startswith("--")):
                if flag not in source:
                    raise Wrong(f"{program} has no flag {flag}")
        case ["cargo", "test" | "run" | "build", *rest]:
            for flag, package in zip(rest, rest[1:]):
                if flag in ("-p", "--package") and not is_package(package):
                    raise Wrong(f"there is no package {package}")
        case [flag, *_] if re.fullmatch("--[a-z][a-z-]*", flag):
            scripts = (path.read_text() for path in (ROOT / "scripts").iterdir())
            if flag not in metashift.flags() | FOREIGN and not any(flag in script for script in scripts):
                raise Wrong("nothing here has such a flag")
        case _:
            return False
    return True


@functools.cache
def is_package(name):
    manifests = (*ROOT.glob("*/Cargo.toml"), *ROOT.glob("tests/*/Cargo.toml"))
    return any(f'\nname = "{name}"\n' in manifest.read_text() for manifest in manifests)


def mentions(text):
    """Code within the text, a line break in it or not."""
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield " ".join(found[1].split())


class Terminal:
    """One page's working directory, which looks like a checkout, its home, and what it has exported."""

    def __init__(self, page, folder, metashift, packages):
        self.page, self.folder, self.packages, self.port = page, folder, packages, free_port()
        self.work, self.running, self.replaced = folder / "work", [], set()
        tools, programs = folder / "home/.cache/metashift", folder / "bin"
        for made in (self.work, tools, programs):
            made.mkdir(parents=True)
        for entry in ROOT.iterdir():
            if entry.name not in (".git", "target"):
                (self.work / entry.name).symlink_to(entry)
        (tools / "tools").symlink_to(os.environ["METASHIFT_TOOLS"])
        (programs / "metashift").symlink_to(metashift)
        cargo = programs / "cargo"
        cargo.write_text('#!/bin/sh\n[ "$1" = metashift ] || exit 1\nshift\nexec metashift "$@"\n')
        cargo.chmod(0o755)
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder / "home"), "LANG": "C.UTF-8",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def typed(self, command):
        text = command.text
        for (page, old), new in INSTEAD.items():
            if page == self.page and old in text:
                text = text.replace(old, new(self))
                self.replaced.add((page, old))
        return text

    def start(self, script, output):
        return subprocess.Popen(
            ["bash", "-c", script], cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, command):
        if command.says(UNTIL_STOPPED) or command.says(UNTIL_DONE):
            return self.leave_running(command)
        exported, said = self.folder / "exported", self.folder / "said"
        with open(said, "w") as output:
            process = self.start(f"set -aeo pipefail\n{self.typed(command)}\nenv -0 >{shlex.quote(str(exported))}", output)
            try:
                code = ended(process, SECONDS)
            finally:
                end(process)
        if code != command.code:
            raise Wrong(f"{command}\nended with {code}, not {command.code}:\n{said.read_text()[-4000:]}")
        if code == 0:
            entries = exported.read_bytes().decode().rstrip("\0").split("\0")
            self.environment = dict(entry.split("=", 1) for entry in entries)

    def leave_running(self, command):
        said = self.folder / f"said-{len(self.running)}"
        with open(said, "w") as output:
            process = self.start(f"exec {self.typed(command)}", output)
        self.running.append((command, process, said))
        pattern = r"^ *export (.*)\n" if command.says(EXPORTS) else r"\n"
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, said.read_text(), re.MULTILINE)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Wrong(f"{command}\nsays nothing:\n{said.read_text()}")
            time.sleep(0.05)
        if command.says(EXPORTS):
            self.environment.update(word.split("=", 1) for word in shlex.split(found[1]))

    def close(self):
        """The end of what still runs, the last one first."""
        for command, process, said in reversed(self.running):
            if command.says(UNTIL_STOPPED):
                process.send_signal(signal.SIGINT)
            code = ended(process, 30)
            if code != command.code:
                raise Wrong(f"{command}\nended with {code}, not {command.code}:\n{said.read_text()[-4000:]}")

    def clear(self):
        for _, process, _ in self.running:
            end(process)
        stack = ["scripts/local-stack", "stop"]
        if (self.work / "target/local-stack/pid").exists():
            subprocess.run(stack, cwd=self.work, env=self.environment, stdout=subprocess.DEVNULL, check=False)


def ended(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"nothing within {seconds} s"


def end(process):
    """Ends what is left of a process and of those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def check_tables(commands, mentioned):
    """The tables above name what is there."""
    texts = {command.text for command in commands}
    for text, stage in ELSEWHERE.items():
        lines = [line.strip() for line in (ROOT / f".ci/stages/{stage}.sh").read_text().splitlines()]
        if not any(f"{line} ".startswith(f"{text} ") for line in lines):
            raise Wrong(f"stage {stage} does not run: {text}")
        if text not in texts:
            raise Wrong(f"no page has the command: {text}")
    for flag in FOREIGN - {mention.split()[0] for mention in mentioned}:
        raise Wrong(f"no page mentions {flag}")
    for page, old in INSTEAD:
        if not any(command.page == page and old in command.text for command in commands):
            raise Wrong(f"no command of {page} has: {old}")
    alias = 'metashift = "run --quiet --package metashift-cli --bin metashift --"'
    if alias not in (ROOT / ".cargo/config.toml").read_text():
        raise Wrong("cargo metashift is another command than the one that is run here")


def walk(page, commands, binary, packages, counted):
    with tempfile.TemporaryDirectory(prefix="metashift-documented-") as folder:
        terminal = Terminal(page, pathlib.Path(folder), binary, packages)
        try:
            for command in commands:
                who = command.elsewhere
                counted[who or "here"] = counted.get(who or "here", 0) + 1
                begun = time.monotonic()
                if not who:
                    terminal.run(command)
                how = who or f"{time.monotonic() - begun:.1f} s"
                print(f"ok    {command} ({how})", flush=True)
            terminal.close()
        finally:
            terminal.clear()


def main(binary, packages, *chosen):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    binary, packages = (str(pathlib.Path(path).resolve()) for path in (binary, packages))
    metashift, counted, looked_up, wrong = Metashift(binary), {}, 0, []
    pages = {page: read(page) for page in PAGES}
    check_tables(
        [command for commands, _ in pages.values() for command in commands],
        [mention for _, text in pages.values() for mention in mentions(text)],
    )
    for page, (commands, text) in pages.items():
        for mention in [*(command.text for command in commands), *mentions(text)]:
            try:
                looked_up += check_mention(mention, metashift)
            except Wrong as reason:
                wrong.append(f"{page}: {mention}: {reason}")
        for command in commands:
            try:
                command.elsewhere
            except Wrong as reason:
                wrong.append(str(reason))
    if wrong:
        raise Wrong("\n".join(wrong))
    for page, (commands, _) in pages.items():
        if not chosen or page in chosen:
            walk(page, commands, binary, packages, counted)
    print("; ".join(f"{number} {who}" for who, number in sorted(counted.items())), f"; {looked_up} looked up", sep="")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Wrong as reason:
        sys.exit(f"FAILED {reason}")
