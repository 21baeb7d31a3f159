"""Which files a command line names, and whether it only reads, as the gate's evaluator sees it; nothing is run.

Scans find what a command changes in the workspace. This is for the rest: files that scans do not follow, but that the
command names, and commands that need no scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

from toolcrib.approval.analyse import assess
from toolcrib.approval.calls import CommandReading, EvaluatedRedirection
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.judge import targets as gate_targets
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, StreamData, name_set
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import Redirection

MAX_MATCHES = 5_000
DEVICES = ("/dev/", "/proc/", "/sys/")
MAGIC = re.compile(r"[*?\[]")
READERS = name_set(
    ": [ [[ ack ag b2sum basename bc break cal cat cd cksum clear cmp column comm command continue cut date "
    "declare df diff dir dirname dirs du echo egrep env exit export expr false fgrep file fold free getent grep "
    "groups hash head help hexdump history hostname id info jobs join jq less let ll local locale ls lsblk lscpu "
    "lsof man md5sum more nice nl nohup od paste pgrep popd printenv printf ps pushd pwd read readlink readonly "
    "realpath return rev rg sdiff seq set sha1sum sha256sum sha512sum shift shopt sleep stat strings tac tail "
    "test time timeout top tput tr trap tree true type ulimit umask uname uniq unset uptime w wait wc whereis "
    "which who whoami xargs xxd"
)
"""Programs that change no file by themselves; what xargs, timeout and the like run is looked at as well."""
READING_GIT = name_set(
    "status log diff show blame describe rev-parse rev-list ls-files ls-tree ls-remote cat-file shortlog reflog "
    "name-rev merge-base grep whatchanged for-each-ref show-ref count-objects check-ignore diff-tree version help"
)
WRITING_OPTIONS = {
    "find": ("-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "sort": ("-o", "--output"),
    "sed": ("-i", "--in-place"),
    "tree": ("-o",),
    "date": ("-s", "--set"),
}
EXACT = name_set("rm rmdir unlink mv cp touch mkdir tee truncate dd ln chmod chown chgrp install")
"""Programs that change nothing but what they name."""
MODES = name_set("chmod chown chgrp")
COPIERS = name_set("cp mv install ln rsync gcp gmv ditto scp")
OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})


def reads_only(reading: CommandReading | None) -> bool | None:
    """Whether a command that the gate has read changes no file; None if only a closer look can tell."""
    if reading is None:
        return None
    if not reading.complete or any(
        call.program not in READERS and call.program not in CHECKED for call in reading.calls
    ):
        return False
    if reading.trace is None:
        return None
    named = NamedPaths()
    for step in reading.trace.steps:
        if isinstance(step, EvaluatedRedirection):
            named.redirect(step.redirection, step.target, step.state)
        else:
            named.look_at(step.call)
    return named.reads_only


CHECKED = WRITING_OPTIONS.keys() | {"git", "awk", "gawk"}


class NamedPaths:
    """Collects the paths that the commands of a command line name."""

    def __init__(self, is_here: bool = True) -> None:
        self._is_here = is_here
        self.certain: dict[str, None] = {}
        """Paths that are written, moved or deleted, with everything below them."""
        self.owned: dict[str, None] = {}
        """Folders in which what changes is the doing of the command, besides the certain paths."""
        self.mentioned: dict[str, None] = {}
        """Paths that a program may write to."""
        self.is_exact = True
        """Whether the command changes nothing but the certain paths."""
        self.reads_only = True

    def redirect(self, redirection: Redirection, target: ExpandedWord, state: ShellState) -> None:
        operator = redirection.operator
        if operator in OUTPUTS and not (operator == ">&" and re.fullmatch(r"\d+-?|-", target.text)):
            self._write([target], state)

    def look_at(self, call: CommandCall) -> None:
        """Add what one command names."""
        if call.state.remote or call.state.container:
            # What it does there is no file of this machine, except what is mounted.
            self.reads_only = self.is_exact = False
            return
        if _only_reads(call):
            return
        self.reads_only = False
        written = _written(call, self._is_here)
        if call.program not in EXACT or not call.known or call.arguments.has("-b", "--backup", "-S", "--suffix"):
            self.is_exact = False
        if call.program in COPIERS:
            # What is written below a folder is not always named.
            self.owned.update(dict.fromkeys(_paths(gate_targets(call), call.state, self._is_here)))
        if written is None:
            values = [value for _, value in call.arguments.options if value is not None]
            for path in _paths([*call.arguments.operands, *values], call.state, self._is_here):
                self.mentioned[path] = None
        else:
            self._write(written, call.state)

    def _write(self, words: Sequence[ExpandedWord], state: ShellState) -> None:
        for word in words:
            if word.text.startswith(DEVICES):
                continue
            self.reads_only = False
            found = _paths([word], state, self._is_here)
            if not found or word.glob or MAGIC.search(word.text):
                self.is_exact = False
            for path in found:
                self.certain[path] = None


class NamingEvaluator(Evaluator):
    """Evaluates a command line and collects the paths that it names."""

    def __init__(self, is_here: bool) -> None:
        super().__init__()
        self.named = NamedPaths(is_here)

    def targets(self, redirections: Sequence[Redirection], state: ShellState) -> list[tuple[Redirection, ExpandedWord]]:
        found = super().targets(redirections, state)
        for redirection, target in found:
            self.named.redirect(redirection, target, state)
        return found

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        program = words[0].text.rpartition("/")[2].removesuffix(".exe")
        self.named.look_at(CommandCall(program, words[1:], state, stdin, site.text, site.span))
        return super().invoke(words, state, stdin, site)

    def judge_flow(self, call: CommandCall, site: CommandLocation) -> None:
        """Undo asks which files change; where secrets go is for the gate to judge."""


def named_by(command: str, cwd: str, reading: CommandReading | None, *, is_here: bool = True) -> NamedPaths:
    """The paths that a command names if it runs in a folder; on this machine, patterns are expanded."""
    evaluator = NamingEvaluator(is_here)
    script = reading.script if reading is not None else None
    assessment = assess(evaluator, script or command, cwd=cwd, home=str(Path.home()))
    hides = any(finding.rule in ("unknown_code", "unknown_command") for finding in assessment.findings)
    if assessment.not_understood or hides:
        evaluator.named.is_exact = evaluator.named.reads_only = False
    return evaluator.named


def _only_reads(call: CommandCall) -> bool:
    """Whether one command changes no file, apart from its redirections."""
    words = [word.text for word in call.words]
    if call.program in READERS and call.program not in WRITING_OPTIONS:
        return True
    if not call.known:
        return False
    if call.program == "git":
        operands = call.arguments.operands
        return (
            bool(operands) and operands[0].text in READING_GIT and not any(one.startswith("--output") for one in words)
        )
    if call.program in ("awk", "gawk"):
        return not any(mark in word for word in words for mark in (">", "|", "system", "inplace", "-f"))
    if call.program in ("sed",) and any(re.search(r"(?:^|[;\s\d/}])[weWE]\b", word) for word in words):
        return False
    options = WRITING_OPTIONS.get(call.program)
    short = tuple(one for one in options or () if not one.startswith("--") and len(one) == 2)
    return options is not None and not any(
        word.partition("=")[0] in options or (short and word.startswith(short)) or (re.match(r"-[a-zA-Z]*i", word)
        and call.program == "sed")
        for word in words
    )  # fmt: skip


def _written(call: CommandCall, is_here: bool) -> Sequence[ExpandedWord] | None:
    """The words that name what a command writes, moves or deletes; None if that is unknown."""
    operands = call.arguments.operands
    if call.program in MODES:
        return operands if call.arguments.has("--reference") else operands[1:]
    if call.program == "find":
        roots = [word for word in operands if not word.text.startswith(("-", "(", "!"))]
        return roots[:1] or [ExpandedWord(".")]
    if call.program == "git" and operands[:1] and operands[0].text in ("clean", "stash"):
        everything = call.arguments.has("-x", "-X", "-a", "--all") or any(
            "x" in name.lower() for name, _ in call.arguments.options
        )
        return (operands[1:] or [ExpandedWord(".")]) if everything and operands[0].text == "clean" else None
    found = list(gate_targets(call))
    if call.program in COPIERS and found and is_here:
        return _into(call, found)
    return found or None


def _into(call: CommandCall, found: Sequence[ExpandedWord]) -> list[ExpandedWord]:
    """The targets of cp, mv and the like; in a folder, only the names that they write there."""
    directory = call.arguments.value("-t", "--target-directory")
    operands = call.arguments.operands
    target, sources = (directory, operands) if directory is not None else (operands[-1], operands[:-1])
    path = resolve(target, call.state)
    if UNKNOWN in path or not Path(path).is_dir() or call.arguments.has("-T", "--no-target-directory"):
        return list(found)
    names = [source.text.rstrip("/").rpartition("/")[2] for source in sources]
    moved = [word for word in found if word is not target and word.text != target.text]
    if call.program == "rsync" or any(name in ("", ".", "..") for name in names):
        return list(found)
    return [
        *moved,
        *(source.with_text(f"{path.rstrip('/')}/{name}") for source, name in zip(sources, names, strict=True)),
    ]


def _paths(words: Iterable[ExpandedWord], state: ShellState, is_here: bool) -> list[str]:
    """The absolute paths that words name now."""
    found: list[str] = []
    for word in words:
        path = resolve(word, state) if word.text else ""
        if UNKNOWN in path or not path.startswith("/") or path.startswith(DEVICES) or "\0" in path:
            continue
        matches = glob(path)[:MAX_MATCHES] if is_here and MAGIC.search(path) else []  # noqa: PTH207 - any folder
        found += matches or [path]
    return found
