"""Every command under every bad condition of the machine: a sentence that names the thing and the remedy.

A deleted folder, a full or read-only disk, a home that is a file or forbidden, a stdout that cannot be written: the
command either does not need what is broken, or fails with one line. Nothing that was there is lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.cli.test_cli_program import every_command
from tests.faults import bad_condition
from tests.fork_server import SOURCE, Start
from toolcrib.cli.group import CommandGroup

DEADLINE_SECONDS = 120.0
RAW = re.compile(r"Traceback|Errno|\bOSError|PermissionError|FileNotFoundError|NotADirectoryError|sqlite3")
DOCTOR_SAYS = r"the home \S* cannot be written to|MB left on the disk"
SERVER = "import sys; sys.exit(3)"
SPOIL = """
import json, os, resource, shutil
from toolcrib.registry import registry

def spoil(args, **kw):
    if args["what"] == "folder":
        shutil.rmtree(os.getcwd())
    elif args["what"] == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return json.dumps({"spoiled": args["what"]})

registry.register(name="spoil", toolset="spoil", handler=spoil, schema={"description": "Breaks something.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}}})
"""


@dataclass(frozen=True)
class Row:
    """A command, and what it cannot do without."""

    command: str
    arguments: str = ""
    needs: str = "config prints"
    """Words: `config`, to read the home; `write`, to write to it; `prints`, on stdout; `folder`, the current one."""

    @property
    def argv(self) -> list[str]:
        return [*self.command.split(), *filter(None, self.arguments.split("|"))]


ROWS = (
    Row("acp install", "zed", "prints"),
    Row("approvals answer", "K7Q2ZD", "config"),
    Row("approvals explain"),
    Row("approvals list"),
    Row("approvals revoke", "1", "config"),
    Row("approvals show", "{request}"),
    Row("approvals suggest"),
    Row("approvals test", "rm -rf build", "config prints folder"),
    Row("board add", "Paint", "config write prints"),
    Row("board assign", "{card}|anna", "config write prints"),
    Row("board attach", "{card}|{tool}", "config write prints"),
    Row("board block", "{card}|no paint", "config write prints"),
    Row("board comment", "{card}|soon", "config write prints"),
    Row("board done", "{card}", "config write prints"),
    Row("board link", "{card}|{card}", "config"),
    Row("board list"),
    Row("board move", "{card}|triage", "config write prints"),
    Row("board show", "{card}"),
    Row("chat", "-q|x", "config write prints folder"),
    Row("completion", "bash", "prints"),
    Row("config check"),
    Row("config get", "model.provider"),
    Row("config path", "", "prints"),
    Row("config set", "tools.max_parallel|3", "config write"),
    Row("config show"),
    Row("config unset", "model.provider", "config write"),
    Row("cron create", "0 9 * * *|do it", "config write prints folder"),
    Row("cron list"),
    Row("cron pause", "daily", "config write prints"),
    Row("cron remove", "daily|--yes", "config write prints"),
    Row("cron resume", "daily", "config"),
    Row("cron run", "daily", "config write prints"),
    Row("cron serve", "--once"),
    Row("cron show", "daily"),
    Row("cron update", "daily|--name|weekly", "config write prints folder"),
    Row("doctor"),
    Row("env check", "local|--only|exit-codes", "config prints folder"),
    Row("env clean", "--dry-run", "config prints"),
    Row("env list"),
    Row("env shell", "local", ""),
    Row("import hermes", "--yes|--from|{hermes}", "config write"),
    Row("login", "spotify|--client-id|abc|--no-browser|--timeout|1", "config"),
    Row("logout", "spotify", "config"),
    Row("mcp add", "other|--|python3|-c|pass", "config write"),
    Row("mcp list"),
    Row("mcp login", "clock|--no-browser|--timeout|1", "config"),
    Row("mcp logout", "clock", "config"),
    Row("mcp remove", "clock", "config write"),
    Row("mcp serve", "", "config folder"),
    Row("mcp test", "clock"),
    Row("mcp tools", "", "config"),
    Row("serve install", "--print"),
    Row("serve login", "", "config"),
    Row("serve token", "", "config write prints"),
    Row("model get"),
    Row("model list"),
    Row("model test", "scripted/x"),
    Row("model use", "scripted/x", "config write"),
    Row("plugins disable", "x", "config"),
    Row("plugins enable", "x", "config"),
    Row("plugins list"),
    Row("sessions delete", "{session}|--yes", "config write prints"),
    Row("sessions export", "last"),
    Row("sessions list"),
    Row("sessions replay", "--speed|0"),
    Row("sessions resume", "", "config write"),
    Row("sessions search", "question"),
    Row("sessions show"),
    Row("sessions stats"),
    Row("setup", "--provider|scripted|--no-test|--yes", "config write prints"),
    Row("skills approve", "greet"),
    Row("skills check"),
    Row("skills list"),
    Row("skills view", "greet"),
    Row("tools explain", "terminal"),
    Row("tools lint", "{tool}", "prints"),
    Row("tools list"),
    Row("tools new", "brew|--kind|tool", "write prints"),
    Row("tools run", 'write_file|{"path": "a.txt", "content": "x"}', "config write prints folder"),
    Row("toolsets list"),
    Row("toolsets show", "file"),
    Row("undo", "", "config write prints folder"),
)
BY_COMMAND = {row.command: row for row in ROWS}
SOME = tuple(
    BY_COMMAND[name]
    for name in (
        *("approvals show", "chat", "config get", "config set", "cron create", "cron list", "doctor", "mcp tools"),
        *("sessions export", "sessions delete", "setup", "tools new", "tools run", "undo"),
    )
)
QUICK = tuple(BY_COMMAND[name] for name in ("config set", "sessions export", "tools run"))


@dataclass(frozen=True)
class Condition:
    """A condition, what it breaks, and what a message about it says."""

    name: str
    breaks: str
    says: str
    rows: tuple[Row, ...] = ROWS


CONDITIONS = (
    Condition("deleted_folder", "folder", r"current folder no longer exists.*`cd ~`|job's folder .*--workdir"),
    Condition("full_stdout", "prints", r"standard output \(No space left on device\).*`> FILE`"),
    Condition("closed_stdout", "prints", r"standard output is closed.*`>&-`", SOME),
    Condition("home_is_a_file", "config write", r"home' is a file, where a folder is needed; move it away"),
    Condition("home_inside_a_file", "config write", r"home' is a file, where a folder is needed; move it away", SOME),
    Condition("forbidden_home", "config write", r"Permission denied.*`ls -ld \S*home\S*`", SOME),
    Condition("read_only_home", "write", r"Permission denied.*`ls -ld \S*home\S*`"),
    Condition("read_only_disk", "write", r"Read-only file system\); make it writable", SOME),
    Condition("full_disk", "write", r"No space left on device.*(`df -h \S*home\S*`|free some space)", SOME),
    Condition("no_file_may_grow", "write", r"File too large.*`ulimit -f|no temporary folder.*TMPDIR"),
)


@dataclass(frozen=True)
class ProgramExit:
    code: int
    stdout: str
    stderr: str


class Machine:
    """A folder with a home that has everything, copied anew for each run so that its paths stay the same."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "machine"
        self._pristine = root / "pristine"
        self._seed()
        self.folder.rename(self._pristine)
        self._baseline: dict[str, int] = {}

    def run(self, condition: str, *arguments: str) -> ProgramExit:
        """Run a command under a condition, on a fresh copy."""
        self.renew()
        script = (str(Path(bad_condition.__file__)), condition, str(self.folder)) if condition else ("-m", "toolcrib")
        return self._start(*script, *arguments)

    def renew(self) -> None:
        if self.folder.exists():
            for folder in (self.folder / "home", *(self.folder / "home").glob("**/")):
                folder.chmod(0o700)
            shutil.rmtree(self.folder)
        shutil.copytree(self._pristine, self.folder, symlinks=True)

    def usual_code(self, row: Row) -> int:
        """The exit code of the command while nothing is wrong."""
        if row.command not in self._baseline:
            self._baseline[row.command] = self.run("", *self.filled(row)).code
        return self._baseline[row.command]

    def filled(self, row: Row) -> list[str]:
        names = {
            "{request}": self.request,
            "{session}": self.session,
            "{tool}": self.tool,
            "{hermes}": self.hermes,
            "{card}": self.card,
        }
        return [names.get(argument, argument) for argument in row.argv]

    def config(self) -> str:
        return (self.folder / "home" / "config.yaml").read_text(encoding="utf-8")

    def script(self, steps: list[dict[str, Any]]) -> None:
        (self.folder / "script.json").write_text(json.dumps(steps), encoding="utf-8")

    def _start(self, *arguments: str) -> ProgramExit:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TOOLCRIB_HOME": str(self.folder / "home"),
            "PYTHONPATH": str(SOURCE),
            "LANG": "C.UTF-8",
        }
        wanted = Start(arguments=arguments, environ=environ, cwd=self.folder / "work")
        done = fork_server.run(wanted, timeout=DEADLINE_SECONDS)
        return ProgramExit(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _seed(self) -> None:
        home = self.folder / "home"
        (self.folder / "work").mkdir(parents=True)
        skill = home / "skills" / "greet"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: greet\ndescription: Greets.\n---\nSay hi.\n")
        script = self.folder / "script.json"
        settings = {
            "model": {"provider": "scripted"},
            "providers": {"scripted": {"base_url": str(script)}},
            "mcp_servers": {"clock": {"command": "python3", "args": ["-c", SERVER]}},
        }
        (home / "config.yaml").write_text(json.dumps(settings, indent=1))
        (home / "tools").mkdir()
        (home / "tools" / "spoil.py").write_text(SPOIL)
        self.tool = str(self.folder / "linted.py")
        Path(self.tool).write_text(SPOIL)
        (self.folder / "hermes").mkdir()
        (self.folder / "hermes" / "config.yaml").write_text("model: {default: a/b}\n")
        self.hermes = str(self.folder / "hermes")
        write = {"call": "write_file", "arguments": {"path": "made.txt", "content": "made\n"}}
        wipe = {"call": "terminal", "arguments": {"command": "rm -rf build"}}
        self.script([write, wipe, {"say": "An answer to the question."}])
        asked = self._start("-m", "toolcrib", "chat", "-q", "A question.", "--json")
        self.session = json.loads(asked.stdout.splitlines()[0])["session_id"]
        self.request = json.loads((home / "approvals.jsonl").read_text().splitlines()[0])["id"]
        made = self._start("-m", "toolcrib", "cron", "create", "0 9 * * *", "do it", "--name", "daily")
        assert made.code == 0, made.stderr
        added = self._start("-m", "toolcrib", "board", "add", "Paint the door", "--json")
        self.card = json.loads(added.stdout)["id"]
        self.script([write, {"say": "Done."}])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("bad"))
    yield made
    made.renew()


def test_the_table_has_every_command() -> None:
    """A new command gets a row, so that it is tried under every condition."""
    commands = {path for path, (command, _) in every_command().items() if not isinstance(command, CommandGroup)}

    assert {row.command for row in ROWS} == commands


@pytest.mark.services
def test_on_a_full_disk_undo_still_shows_what_it_would_do(machine: Machine) -> None:
    """Looking needs no space, and whoever has to free some wants to know what can still be undone."""
    listed, tried = machine.run("full_disk", "undo", "--list"), machine.run("full_disk", "undo", "--dry-run")
    if listed.code == bad_condition.UNAVAILABLE:
        pytest.skip(f"this machine cannot make it: {listed.stderr}")

    assert (listed.code, tried.code) == (0, 0), listed.stderr + tried.stderr
    assert "made.txt" in listed.stdout
    assert "1 file would be restored." in tried.stdout


def wrong_with(machine: Machine, condition: Condition, row: Row) -> str:
    """What is wrong with how a command ends under a condition; empty if nothing is."""
    usual = machine.usual_code(row)
    done = machine.run(condition.name, *machine.filled(row))
    shown = f"{row.command} -> {done.code}: {done.stdout[-600:]} | {done.stderr[-600:]}"
    if done.code == bad_condition.UNAVAILABLE:
        pytest.skip(f"this machine cannot make it: {done.stderr}")
    if RAW.search(done.stdout + done.stderr):
        return f"shows an error of Python: {shown}"
    is_affected = bool({*condition.breaks.split()} & {*row.needs.split()})
    says = f"{condition.says}|{DOCTOR_SAYS}" if row.command == "doctor" else condition.says
    told = re.search(says, done.stdout + done.stderr)
    if is_affected and (done.code == 0 or not told):
        return f"does not fail, or not for this reason: {shown}"
    if not is_affected and done.code != usual and not told:
        return f"ends with {done.code} instead of {usual}: {shown}"
    return ""


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
@pytest.mark.parametrize("rows", [QUICK, pytest.param(ROWS, marks=pytest.mark.services)], ids=["quick", "all"])
def test_a_command_says_what_is_wrong_and_what_to_do(
    machine: Machine, condition: Condition, rows: tuple[Row, ...]
) -> None:
    """It names the thing and the remedy, and its exit code is not 0; one that needs nothing of it works as ever."""
    tried = [row for row in rows if row in condition.rows]
    wrong = [found for row in tried if (found := wrong_with(machine, condition, row))]

    assert tried
    assert wrong == []


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("condition", ["read_only_home", "no_file_may_grow"])
@pytest.mark.parametrize("command", ["config set", "mcp remove", "cron pause", "sessions delete", "setup", "tools new"])
def test_what_was_there_stays_when_writing_fails(machine: Machine, condition: str, command: str) -> None:
    """A write that fails changes nothing: no half of a file, no empty one."""
    machine.renew()
    before = machine.config()
    files = {path.name for path in (machine.folder / "home" / "tools").glob("*.py")}

    machine.run(condition, *machine.filled(BY_COMMAND[command]))

    assert machine.config() == before
    assert {path.name for path in (machine.folder / "home" / "tools").glob("*.py")} == files
    for folder in (machine.folder / "home", *(machine.folder / "home").glob("**/")):
        folder.chmod(0o700)
    after = machine._start("-m", "toolcrib", "sessions", "list", "--json")
    assert machine.session in after.stdout
    assert "daily" in machine._start("-m", "toolcrib", "cron", "list").stdout


def test_a_stderr_that_cannot_be_written_stops_nothing(machine: Machine) -> None:
    """Messages may be lost; the work and the result are not."""
    done = machine.run("full_stderr", "chat", "-q", "x")
    changed = machine.run("full_stderr", "config", "set", "tools.max_parallel", "3")

    assert (done.code, done.stdout) == (0, "Done.\n")
    assert changed.code == 0
    assert "max_parallel" in machine.config()


@pytest.mark.services
def test_a_log_that_cannot_be_written_stops_nothing(machine: Machine) -> None:
    """The log file is the least of all: where it cannot be, there is none."""
    machine.renew()
    shutil.rmtree(machine.folder / "home" / "logs", ignore_errors=True)
    (machine.folder / "home" / "logs").write_text("a file in place of the folder")
    (machine.folder / "home" / "tools" / "broken.py").write_text(f"{SPOIL}\nraise RuntimeError('broken')\n")

    done = machine._start("-m", "toolcrib", "chat", "-q", "x")

    assert (done.code, done.stdout) == (0, "Done.\n")


def calls_of(done: ProgramExit) -> dict[str, Any]:
    """The result of each tool, from the events of a run."""
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {event["name"]: event for event in events if event["event"] == "call_finished"}


@pytest.mark.services
def test_the_folder_may_disappear_while_the_agent_works(machine: Machine) -> None:
    """Tools that worked there say so; the session goes on and is kept."""
    machine.renew()
    machine.script(
        [
            {"call": "spoil", "arguments": {"what": "folder"}},
            {"call": "write_file", "arguments": {"path": "a.txt", "content": "x"}},
            {"call": "terminal", "arguments": {"command": "echo hello"}},
            {"say": "Done."},
        ]
    )

    done = machine._start("-m", "toolcrib", "chat", "-q", "x", "--json")

    assert not RAW.search(done.stderr + done.stdout), done
    assert "work" in calls_of(done)["write_file"]["error_message"]
    assert json.loads(done.stdout.splitlines()[-1])["result"]["answer"] == "Done."
    assert not (machine.folder / "a.txt").exists()


@pytest.mark.services
def test_the_disk_may_fill_up_while_the_agent_works(machine: Machine) -> None:
    """The run ends with a sentence about the session file; what was said before is there when there is room again."""
    machine.renew()
    machine.script([{"call": "spoil", "arguments": {"what": "disk"}}, {"say": "never said"}])

    done = machine._start("-m", "toolcrib", "chat", "-q", "a new question")

    assert done.code == 1
    assert not RAW.search(done.stderr), done.stderr
    assert re.search(r"cannot write to \S*sessions.db' \(File too large\).*`ulimit -f", done.stderr)
    again = machine._start("-m", "toolcrib", "sessions", "show", "last")
    assert "a new question" in again.stdout
