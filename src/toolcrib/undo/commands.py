"""Which files a command line may change, found with the gate's evaluator and without running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from toolcrib.approval.analyse import assess
from toolcrib.approval.calls import CommandReading, EvaluatedRedirection, EvaluationTrace
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.expansion import Expander
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, NotUnderstood, StreamData, name_set
from toolcrib.approval.shell.paths import mounted, resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import LoopCommand, Redirection, Substitution, Word
from toolcrib.undo.file_snapshot import DEVICES, CallTargets, How, TargetPath, UndoScope
from toolcrib.undo.files import SnapshotFiles
from toolcrib.undo.program_targets import CHANGING, PROGRAMS, TargetProgram

MAGIC = re.compile(r"[*?\[]")
MAX_MATCHES = 20_000
MAX_FOUND = 5_000
MAX_LOOKS = 50_000
RUNS = ("-exec", "-execdir", "-ok", "-okdir")
WITH_A_VALUE = name_set(
    "-newer -anewer -cnewer -mtime -atime -ctime -mmin -amin -cmin -size -perm -user -group -uid -gid -regex "
    "-iregex -regextype -links -inum -samefile -lname -ilname -fstype -used -xtype -D -printf -fprint -fprint0 -fls"
)
"""Tests that are skipped, together with the word after them."""
TYPES = {"f": "file", "d": "folder", "l": "link"}


def is_pattern(text: str) -> bool:
    return MAGIC.search(text) is not None


def expand(files: SnapshotFiles, pattern: str) -> list[str]:
    """The paths that match an absolute pattern, as bash would list them."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if not is_pattern(part):
            found = [f"{path}/{part}" for path in found]
            continue
        matcher = re.compile(translate(part.replace("[^", "[!")))
        named = [(path, name) for path in found for name in _names(files, path or "/")]
        found = [f"{path}/{name}" for path, name in named if _fits(matcher, part, name)][:MAX_MATCHES]
    return [path for path in found if path != "" and _is_there(files, path)]


def _fits(matcher: re.Pattern[str], part: str, name: str) -> bool:
    # Only a dot matches a leading dot.
    return (not name.startswith(".") or part.startswith(".")) and matcher.match(name) is not None


def _names(files: SnapshotFiles, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except OSError:
        return []


def _is_there(files: SnapshotFiles, path: str) -> bool:
    try:
        return files.look(path).kind != "missing"
    except OSError:
        return False


@dataclass
class FindQuery:
    """One run of find."""

    roots: list[str] = field(default_factory=list)
    names: list[tuple[re.Pattern[str], bool]] = field(default_factory=list)
    """Name patterns, and whether they must match."""
    paths: list[tuple[re.Pattern[str], bool]] = field(default_factory=list)
    kinds: frozenset[str] = frozenset()
    least_depth: int = 0
    most_depth: int = 1_000
    deletes: bool = False
    commands: list[list[str]] = field(default_factory=list)
    """What it runs, with `{}` for each path found."""
    zero: bool = False
    """Whether its output is separated by zero bytes."""


def read_find(words: Sequence[str]) -> FindQuery:
    """What the words of find ask for."""
    search, at, count = FindQuery(), 0, len(words)
    while at < count and (not words[at].startswith(("-", "(", "!")) or words[at] in ("-H", "-L", "-P")):
        if not words[at].startswith("-"):
            search.roots.append(words[at])
        at += 1
    search.roots = search.roots or ["."]
    loose = any(word in ("-o", "-or", "-prune", "(", "\\(", ",") for word in words[at:])
    wanted = True
    while at < count:
        word, value = words[at], words[at + 1] if at + 1 < count else ""
        at += 1
        if word in ("!", "-not"):
            wanted = not wanted
            continue
        if word in RUNS:
            end = next((number for number in range(at, count) if words[number] in (";", "+", "\\;")), count)
            search.commands.append(list(words[at:end]))
            at = end + 1
        else:
            at += _read_test(search, word, value, wanted, loose)
        wanted = True
    return search


def _read_test(search: FindQuery, word: str, value: str, wanted: bool, loose: bool) -> int:
    """Add one test; returns how many arguments follow it."""
    if word == "-delete":
        search.deletes = True
    elif word == "-print0":
        search.zero = True
    elif word in ("-maxdepth", "-mindepth"):
        number = int(value) if value.isdecimal() else 0
        if word == "-maxdepth":
            search.most_depth = number
        else:
            search.least_depth = number
        return 1
    elif word in ("-name", "-iname", "-path", "-ipath", "-wholename"):
        if not loose:
            flags = re.IGNORECASE if word.startswith("-i") else 0
            into = search.names if word.endswith("name") and word != "-wholename" else search.paths
            into.append((re.compile(translate(value), flags), wanted))
        return 1
    elif word == "-type":
        if not loose and wanted:
            search.kinds = frozenset(TYPES.get(letter, "special") for letter in value.split(","))
        return 1
    return int(word in WITH_A_VALUE)


def found(files: SnapshotFiles, search: FindQuery, folder: str) -> list[str] | None:
    """The paths that the search gives, as find prints them; None when there are too many."""
    result: list[str] = []
    looks = [MAX_LOOKS]
    for root in search.roots:
        start = root if root.startswith("/") else f"{folder.rstrip('/')}/{root}"
        for shown, kind, depth in _below(files, start.rstrip("/") or "/", root, 0, search.most_depth, looks):
            if depth >= search.least_depth and _passes(search, shown, kind):
                result.append(shown)
        if len(result) > MAX_FOUND or looks[0] <= 0:
            return None
    return result


def _passes(search: FindQuery, shown: str, kind: str) -> bool:
    if search.kinds and kind not in search.kinds:
        return False
    name = shown.rstrip("/").rpartition("/")[2]
    tests = [(pattern, name, wanted) for pattern, wanted in search.names]
    tests += [(pattern, shown, wanted) for pattern, wanted in search.paths]
    return all((pattern.match(text) is not None) == wanted for pattern, text, wanted in tests)


def _below(
    files: SnapshotFiles, path: str, shown: str, depth: int, most: int, looks: list[int]
) -> Iterator[tuple[str, str, int]]:
    looks[0] -= 1
    if looks[0] <= 0:
        return
    try:
        kind = files.look(path).kind
        names = files.names(path) if kind == "folder" and depth < most else []
    except OSError:
        return
    if kind == "missing":
        return
    yield shown, kind, depth
    for name in names:
        if name != ".git":
            inner, inner_shown = f"{path.rstrip('/')}/{name}", f"{shown.rstrip('/')}/{name}"
            yield from _below(files, inner, inner_shown, depth + 1, most, looks)


MAX_EXPANDED = 200
"""Patterns with more matches stay patterns until the end: the reader of commands looks at every word."""
MAX_FOUND_RUNS = 100
MAX_LINES = 1_000
MAX_SCRIPT_BYTES = 200_000
MAX_TARGETS = 20_000
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
FIND = frozenset({"find", "gfind"})
HIDDEN = "not saved: what part of the command changes is only known when it runs"
NOT_READ = "not saved: the command could not be analysed completely"
EXTENDED = re.compile(r"[?*+@!]\*")
"""How the evaluator writes `!(a)` and the like; any name covers more than they match."""
_WORDS = re.compile(r"[\w.+-]+")
# Quotes and the like can hide a program from a search for words.
_ODD = re.compile(r"[>$`\\'\"(){}*?\[\]#~!]|<<|\./")


def may_change_files(command: str) -> bool:
    """Whether a command line may change a file that undo covers; quick, and true when in doubt."""
    if _ODD.search(command):
        return True
    return any(word in CHANGING for word in _WORDS.findall(command))


def targets_of_command(
    command: str, *, cwd: str, scope: UndoScope, is_here: bool, reading: CommandReading | None = None
) -> CallTargets:
    """The files that a command line may change if it runs in a folder; does not run it.

    `reading` is what the gate read; the command is evaluated again only if the answer depends on the files that exist.
    """
    home = str(Path.home()) if is_here else scope.files.real("~")
    trace = reading.trace if reading is not None else None
    if trace is not None and (trace.cwd, trace.home) == (cwd, home):
        collector = TargetCollector(scope, is_here=is_here)
        if collector.follow(trace):
            return collector.targets_found()
    collector = TargetCollector(scope, is_here=is_here)
    script = reading.script if reading is not None else None
    if assess(collector, script or command, cwd=cwd, home=home).not_understood:
        collector.note(NOT_READ)
    return collector.targets_found()


class GlobExpander(Expander):
    """Folds words and expands patterns to the files that match them now."""

    def __init__(
        self, run: Callable[[Substitution, ShellState], StreamData], spend: Callable[[int], None], scope: UndoScope
    ) -> None:
        super().__init__(run, spend)
        self._scope = scope

    def fields(self, words: Sequence[Word], state: ShellState) -> list[ExpandedWord]:
        return [one for given in super().fields(words, state) for one in self._expanded(given, state)]

    def _expanded(self, given: ExpandedWord, state: ShellState) -> list[ExpandedWord]:
        if not given.glob or not given.known or not state.cwd_known or not is_pattern(given.text):
            return [given]
        path = resolve(given, state)
        matches = expand(self._scope.files, path) if path.startswith("/") else []
        if not matches or len(matches) > MAX_EXPANDED:
            return [given]
        self.spend(len(matches) // 10)
        return [ExpandedWord(_as_written(match, given.text, state.cwd), origin=given.origin) for match in matches]


def _as_written(match: str, pattern: str, cwd: str) -> str:
    """A match as the shell would pass it: relative if the pattern is."""
    if pattern.startswith("/"):
        return match
    prefix = cwd.rstrip("/") + "/"
    if not match.startswith(prefix):
        return match
    # Without the leading dot, a name may look like an option.
    return ("./" if pattern.startswith("./") else "") + match[len(prefix) :]


class TargetCollector(Evaluator):
    """Evaluates a command line and collects the files that its commands would change."""

    def __init__(self, scope: UndoScope, *, is_here: bool) -> None:
        super().__init__()
        self.undo_scope = scope
        self.is_here = is_here
        self.found: dict[TargetPath, None] = {}
        self.notes: dict[str, None] = {}
        self.expander = GlobExpander(self.run_substitution, self.spend, scope)
        self._input = ""

    def targets_found(self) -> CallTargets:
        return CallTargets(tuple(self.found)[:MAX_TARGETS], tuple(self.notes))

    def follow(self, trace: EvaluationTrace) -> bool:
        """Collect from an evaluation that already took place; False if only a new one can tell."""
        for step in trace.steps:
            if isinstance(step, EvaluatedRedirection):
                self._redirect(step.redirection, step.target, step.state)
            elif step.call.program in FIND or self._script_of([step.first, *step.call.words], step.call.state):
                return False
            else:
                self._look_at(step.call)
        return True

    def note(self, text: str) -> None:
        self.notes[text] = None

    def add(self, path: str, how: How = "path") -> None:
        """Collect an absolute path."""
        self.found[TargetPath(path, how)] = None

    def add_word(self, word: ExpandedWord, state: ShellState, how: How = "path") -> None:
        """Collect the path that a word names, or everything that a pattern matches."""
        if not word.text:
            return
        path = resolve(word, state)
        self.add_path(path, state, how)
        if word.text.endswith("/") and how == "tree" and not is_pattern(path):
            # With a trailing slash, a link means the folder that it points to.
            self.add_path(f"{path}/.", state, how)

    def add_path(self, path: str, state: ShellState, how: How = "path") -> None:
        if state.remote or (state.container and not mounted(path, state)) or path.startswith(DEVICES):
            return
        if UNKNOWN in path or not path.startswith("/"):
            self.note(HIDDEN)
            known = path.partition(UNKNOWN)[0].rpartition("/")[0]
            if known.startswith("/") or not state.remote:
                self.add(known if known.startswith("/") else self.undo_scope.workspace, "guess")
            return
        matches: list[str] = []
        if is_pattern(path) and not self._is_there(path):
            matches = expand(self.undo_scope.files, path) or expand(self.undo_scope.files, EXTENDED.sub("*", path))
        for one in matches or [path]:
            self.add(one, how)

    def _is_there(self, path: str) -> bool:
        return self.undo_scope.files.look(path).kind != "missing"

    # Called by the evaluator

    def loop(self, node: LoopCommand, state: ShellState, stdin: StreamData | None) -> StreamData:
        """A loop that reads its input runs once for each line."""
        text = stdin.text if stdin is not None and node.condition is not None else None
        separator = "\0" if text and "\0" in text else "\n"
        lines = text.removesuffix(separator).split(separator) if text else []
        if len(lines) < 2:
            return super().loop(node, state, stdin)
        if len(lines) > MAX_LINES:
            self.note(HIDDEN)
            self.add(state.cwd or self.undo_scope.workspace, "guess")
        return StreamData.join(
            [super(TargetCollector, self).loop(node, state, StreamData(f"{line}\n")) for line in lines[:MAX_LINES]]
        )

    def targets(self, redirections: Sequence[Redirection], state: ShellState) -> list[tuple[Redirection, ExpandedWord]]:
        targets = super().targets(redirections, state)
        for redirection, target in targets:
            self._redirect(redirection, target, state)
        return targets

    def invoke(
        self, words: list[ExpandedWord], state: ShellState, stdin: StreamData | None, site: CommandLocation
    ) -> StreamData:
        program = words[0].text.rpartition("/")[2].removesuffix(".exe")
        call = CommandCall(program, words[1:], state, stdin, site.text, site.span)
        if program in FIND:
            printed = self._find(call, site)
            if printed is not None:
                return printed
        self._look_at(call)
        script = self._script_of(words, state)
        if script is not None:
            self._run_script(script, state, site)
        return super().invoke(words, state, stdin, site)

    def judge_flow(self, call: CommandCall, site: CommandLocation) -> None:
        """Undo asks which files change; where secrets go is for the gate to judge."""

    def _find(self, call: CommandCall, site: CommandLocation) -> StreamData | None:
        """Evaluate what find would run on the files that it would find; None when that is unknown."""
        if not call.known or not call.state.cwd_known:
            return None
        search = read_find([word.text for word in call.words])
        shown = found(self.undo_scope.files, search, call.state.cwd or self.undo_scope.workspace)
        if shown is None or (search.commands and len(shown) > MAX_FOUND_RUNS):
            for root in search.roots if search.deletes or search.commands else []:
                self.add_word(ExpandedWord(root), call.state, "guess")
            return None
        for path in shown if search.deletes else []:
            self.add_word(ExpandedWord(path), call.state)
        for words in search.commands:
            for path in shown:
                inner = [ExpandedWord(word.replace("{}", path)) for word in words]
                if inner:
                    self.invoke(inner, call.state.copy(), None, site)
        separator = "\0" if search.zero else "\n"
        return StreamData("".join(path + separator for path in shown))

    def _redirect(self, redirection: Redirection, target: ExpandedWord, state: ShellState) -> None:
        operator = redirection.operator
        if operator == "<" and redirection.descriptor in ("", "0"):
            self._input = resolve(target, state)
        elif operator in (">", ">>", ">|", "&>", "&>>", "<>") or (
            operator == ">&" and not re.fullmatch(r"\d+-?|-", target.text)
        ):
            self.add_word(target, state)

    def _look_at(self, call: CommandCall) -> None:
        look = PROGRAMS.get(call.program)
        if look is not None:
            look(TargetProgram(self, call, self._input))

    def _script_of(self, words: list[ExpandedWord], state: ShellState) -> tuple[str, list[ExpandedWord]] | None:
        """The text and the arguments of a script in the workspace that the command runs."""
        program = words[0].text.rpartition("/")[2]
        is_shell = program in SHELLS
        if program.removesuffix(".exe") in PROGRAMS or not (is_shell or "/" in words[0].text):
            return None
        operands = [word for word in words[1:] if not word.text.startswith("-")] if is_shell else words
        if not operands or (is_shell and any(word.text == "-c" for word in words)):
            return None
        text = self.text_of(resolve(operands[0], state))
        if not text or not (is_shell or re.match(r"#!.*\b(?:ba|da|z|k)?sh\b", text)):
            return None
        return text, list(operands[1:])

    def _run_script(self, script: tuple[str, list[ExpandedWord]], state: ShellState, site: CommandLocation) -> None:
        text, arguments = script
        inner = state.copy()
        inner.positional = arguments
        try:
            self.run_text(text, inner, None, site)
        except NotUnderstood:
            self.note(HIDDEN)

    def text_of(self, path: str) -> str:
        """The text of a file; empty when it cannot be read."""
        if not path.startswith("/") or UNKNOWN in path:
            return ""
        try:
            state = self.undo_scope.files.look(path)
            content = self.undo_scope.files.read(path, MAX_SCRIPT_BYTES) if state.kind == "file" else None
        except OSError:
            return ""
        return content.decode(errors="replace") if content is not None else ""
