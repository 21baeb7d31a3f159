"""The files that a command line names, and whether it only reads; for undo and plan mode. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import glob
from pathlib import Path

from toolcrib.approval.shell.judge import targets as gate_targets
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
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
    "test time timeout top tput tr trap true type ulimit umask uname uniq unset uptime w wait wc whereis "
    "which who whoami xargs xxd"
)
"""Programs that change no file by themselves; what xargs, timeout and the like run is looked at as well."""
READING_GIT = name_set(
    "status log diff show blame describe rev-parse rev-list ls-files ls-tree ls-remote cat-file shortlog reflog "
    "name-rev merge-base grep whatchanged for-each-ref show-ref count-objects check-ignore diff-tree version help"
)
WRITING_REFLOG = (["reflog", "expire"], ["reflog", "delete"])
WRITING_OPTIONS: dict[str, tuple[str, ...]] = {
    "find": ("-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "sort": ("-o", "--output"),
    "sed": ("-i", "--in-place"),
    "tree": ("-o",),
    "date": ("-s", "--set"),
    "sdiff": ("-o", "--output"),
    "info": ("-o", "--output"),
    "less": ("-o", "-O", "--log-file", "--LOG-FILE"),
    "history": ("-w", "-a", "-c", "-d"),
    "file": ("-C", "--compile"),
    "rg": ("--pre", "--hostname-bin"),
    "uniq": (),
    "xxd": (),
}
WRITES_SECOND = name_set("uniq xxd")
"""Programs that write to their second operand."""
PROGRAMS_OF_GIT = ("--output", "--open-files-in-pager", "-O", "--ext-diff", "--upload-pack", "--exec")
WRITING_SED = re.compile(r"(?:^|[;\s\d/}])[weWE]\b")
EXACT = name_set("rm rmdir unlink mv cp touch mkdir tee truncate dd ln chmod chown chgrp install")
"""Programs that change nothing but what they name."""
MODES = name_set("chmod chown chgrp")
COPIERS = name_set("cp mv install ln rsync gcp gmv ditto scp")
OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})


class NamedFiles:
    """Collects the paths that the commands of a command line name; on this machine, patterns are expanded."""

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
        """Whether the command changes no file."""

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
        if only_reads(call):
            return
        self.reads_only = False
        if call.program not in EXACT or not call.known or call.arguments.has("-b", "--backup", "-S", "--suffix"):
            self.is_exact = False
        if call.program in COPIERS:
            # What is written below a folder is not always named.
            self.owned.update(dict.fromkeys(self._paths(gate_targets(call), call.state)))
        written = self._written(call)
        if written is None:
            values = [value for _, value in call.arguments.options if value is not None]
            self.mentioned.update(dict.fromkeys(self._paths([*call.arguments.operands, *values], call.state)))
        else:
            self._write(written, call.state)

    def may_hide_more(self) -> None:
        """Parts of the command line are not known, so it may change anything."""
        self.reads_only = self.is_exact = False

    def _write(self, words: Sequence[ExpandedWord], state: ShellState) -> None:
        for word in words:
            if word.text.startswith(DEVICES):
                continue
            self.reads_only = False
            found = self._paths([word], state)
            if not found or word.glob or MAGIC.search(word.text):
                self.is_exact = False
            self.certain.update(dict.fromkeys(found))

    def _written(self, call: CommandCall) -> Sequence[ExpandedWord] | None:
        """The words that name what a command writes, moves or deletes; None if that is unknown."""
        operands, given = call.arguments.operands, call.arguments
        if call.program in MODES:
            return operands if given.has("--reference") else operands[1:]
        if call.program == "find":
            return [word for word in operands if not word.text.startswith(("-", "(", "!"))][:1] or [ExpandedWord(".")]
        if call.program == "git" and operands[:1] and operands[0].text in ("clean", "stash"):
            takes_ignored = any("x" in name.lower() or name in ("-a", "--all") for name, _ in given.options)
            return operands[1:] or [ExpandedWord(".")] if takes_ignored and operands[0].text == "clean" else None
        found = list(gate_targets(call))
        return (_into(call, found) if call.program in COPIERS and self._is_here else found) or None

    def _paths(self, words: Iterable[ExpandedWord], state: ShellState) -> list[str]:
        """The absolute paths that words name now."""
        found: list[str] = []
        for word in words:
            path = resolve(word, state) if word.text else ""
            if UNKNOWN in path or not path.startswith("/") or path.startswith(DEVICES) or "\0" in path:
                continue
            matches = glob(path)[:MAX_MATCHES] if self._is_here and MAGIC.search(path) else []  # noqa: PTH207
            found += matches or [path]
        return found


def only_reads(call: CommandCall) -> bool:
    """Whether one command changes no file, apart from its redirections."""
    program, words = call.program, [word.text for word in call.words]
    if program in READERS and program not in WRITING_OPTIONS:
        return True
    if not call.known:
        return False
    if program == "git":
        operands = [word.text for word in call.arguments.operands[:2]]
        reads = operands[:1] and operands[0] in READING_GIT and operands not in WRITING_REFLOG
        return bool(reads) and not any(one.startswith(PROGRAMS_OF_GIT) for one in words)
    if program in ("awk", "gawk"):
        return not any(mark in word for word in words for mark in (">", "|", "system", "inplace", "-f"))
    options = WRITING_OPTIONS.get(program)
    if options is None:
        return False
    if program == "sed" and any(WRITING_SED.search(word) or re.match(r"-[a-zA-Z]*i", word) for word in words):
        return False
    if program in WRITES_SECOND and len(call.arguments.operands) > 1:
        return False
    short = tuple(one for one in options if len(one) == 2)
    return not any(word.partition("=")[0] in options or (short and word.startswith(short)) for word in words)


def _into(call: CommandCall, found: Sequence[ExpandedWord]) -> list[ExpandedWord]:
    """The targets of cp, mv and the like; in a folder, only the names that they write there."""
    directory, operands = call.arguments.value("-t", "--target-directory"), call.arguments.operands
    if not found:
        return []
    target, sources = (directory, operands) if directory is not None else (operands[-1], operands[:-1])
    path = resolve(target, call.state)
    names = [source.text.rstrip("/").rpartition("/")[2] for source in sources]
    is_folder = UNKNOWN not in path and Path(path).is_dir() and not call.arguments.has("-T", "--no-target-directory")
    if not is_folder or call.program == "rsync" or any(name in ("", ".", "..") for name in names):
        return list(found)
    moved = [word for word in found if word is not target and word.text != target.text]
    return [*moved, *(one.with_text(f"{path.rstrip('/')}/{name}") for one, name in zip(sources, names, strict=True))]
