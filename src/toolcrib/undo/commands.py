"""Which files a command line would change, delete or make, read from its text and from what is there now."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from toolcrib.approval.analyse import assess
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.expansion import Expander
from toolcrib.approval.shell.model import UNKNOWN, Data, ExpandedWord, NotUnderstood
from toolcrib.approval.shell.paths import mounted, resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import Site
from toolcrib.approval.shell.state import State
from toolcrib.approval.shell.syntax import LoopCommand, Redirection, Script, Substitution, Word
from toolcrib.undo.area import DEVICES, Area, How, Target, Touched
from toolcrib.undo.found_files import expand, found, is_pattern, read_search
from toolcrib.undo.program_targets import CHANGING, PROGRAMS, Watch

MAX_EXPANDED = 200
"""Patterns with more matches stay patterns until the end: the reader of commands looks at every word."""
MAX_FOUND_RUNS = 100
MAX_LINES = 1_000
MAX_SCRIPT_BYTES = 200_000
MAX_TARGETS = 20_000
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
HIDDEN = "not kept: what a part of the command touches is only known when it runs"
NOT_READ = "not kept: the command could not be read to its end"
EXTENDED = re.compile(r"[?*+@!]\*")
"""How the reader of commands writes `!(a)` and the like; any name is more than what it fits."""
_WORDS = re.compile(r"[\w.+-]+")
# Quotes and the like can hide a program from a look at the words.
_ODD = re.compile(r"[>$`\\'\"(){}*?\[\]#~!]|<<|\./")


def may_change_files(command: str) -> bool:
    """Whether a command line may change a file that could be kept; quick, and rather yes than no."""
    if _ODD.search(command):
        return True
    return any(word in CHANGING for word in _WORDS.findall(command))


def touched_by_command(command: str | Script, *, cwd: str, area: Area, is_here: bool) -> Touched:
    """What a command line may touch when it runs in a folder; nothing of it is run."""
    home = str(Path.home()) if is_here else area.files.real("~")
    watcher = Watcher(area, is_here=is_here)
    assessment = assess(watcher, command, cwd=cwd, home=home)
    if assessment.not_understood:
        watcher.note(NOT_READ)
    return Touched(tuple(watcher.found)[:MAX_TARGETS], tuple(watcher.notes))


class GlobExpander(Expander):
    """An expander that looks at the disk for what a pattern stands for."""

    def __init__(self, run: Callable[[Substitution, State], Data], spend: Callable[[int], None], area: Area) -> None:
        super().__init__(run, spend)
        self._area = area

    def fields(self, words: Sequence[Word], state: State) -> list[ExpandedWord]:
        return [one for given in super().fields(words, state) for one in self._expanded(given, state)]

    def _expanded(self, given: ExpandedWord, state: State) -> list[ExpandedWord]:
        if not given.glob or not given.known or not state.cwd_known or not is_pattern(given.text):
            return [given]
        path = resolve(given, state)
        matches = expand(self._area.files, path) if path.startswith("/") else []
        if not matches or len(matches) > MAX_EXPANDED:
            return [given]
        self.spend(len(matches) // 10)
        return [ExpandedWord(_as_written(match, given.text, state.cwd), origin=given.origin) for match in matches]


def _as_written(match: str, pattern: str, cwd: str) -> str:
    """A match as the shell would pass it on: relative where the pattern is."""
    if pattern.startswith("/"):
        return match
    prefix = cwd.rstrip("/") + "/"
    if not match.startswith(prefix):
        return match
    # Without the dot in front, a name may look like an option.
    return ("./" if pattern.startswith("./") else "") + match[len(prefix) :]


class Watcher(Evaluator):
    """Walks through a command line and takes down what each command in it would touch."""

    def __init__(self, area: Area, *, is_here: bool) -> None:
        super().__init__()
        self.area = area
        self.is_here = is_here
        self.found: dict[Target, None] = {}
        self.notes: dict[str, None] = {}
        self.expander = GlobExpander(self.run_substitution, self.spend, area)
        self._input = ""

    def note(self, text: str) -> None:
        self.notes[text] = None

    def add(self, path: str, how: How = "path") -> None:
        """Take down an absolute path."""
        self.found[Target(path, how)] = None

    def add_word(self, word: ExpandedWord, state: State, how: How = "path") -> None:
        """Take down the path that a word names, or all that a pattern stands for."""
        if not word.text:
            return
        path = resolve(word, state)
        self.add_path(path, state, how)
        if word.text.endswith("/") and how == "tree" and not is_pattern(path):
            # With a slash behind it, a link stands for the folder that it points to.
            self.add_path(f"{path}/.", state, how)

    def add_path(self, path: str, state: State, how: How = "path") -> None:
        if state.remote or (state.container and not mounted(path, state)) or path.startswith(DEVICES):
            return
        if UNKNOWN in path or not path.startswith("/"):
            self.note(HIDDEN)
            known = path.partition(UNKNOWN)[0].rpartition("/")[0]
            if known.startswith("/") or not state.remote:
                self.add(known if known.startswith("/") else self.area.workspace, "guess")
            return
        matches: list[str] = []
        if is_pattern(path) and not self._is_there(path):
            matches = expand(self.area.files, path) or expand(self.area.files, EXTENDED.sub("*", path))
        for one in matches or [path]:
            self.add(one, how)

    def _is_there(self, path: str) -> bool:
        return self.area.files.look(path).kind != "missing"

    # What the evaluator meets

    def loop(self, node: LoopCommand, state: State, stdin: Data | None) -> Data:
        """A loop that reads its input goes round once for each line of it."""
        text = stdin.text if stdin is not None and node.condition is not None else None
        separator = "\0" if text and "\0" in text else "\n"
        lines = text.removesuffix(separator).split(separator) if text else []
        if len(lines) < 2:
            return super().loop(node, state, stdin)
        if len(lines) > MAX_LINES:
            self.note(HIDDEN)
            self.add(state.cwd or self.area.workspace, "guess")
        return Data.join([super(Watcher, self).loop(node, state, Data(f"{line}\n")) for line in lines[:MAX_LINES]])

    def targets(self, redirections: Sequence[Redirection], state: State) -> list[tuple[Redirection, ExpandedWord]]:
        targets = super().targets(redirections, state)
        for redirection, target in targets:
            operator = redirection.operator
            if operator == "<" and redirection.descriptor in ("", "0"):
                self._input = resolve(target, state)
            elif operator in (">", ">>", ">|", "&>", "&>>", "<>") or (
                operator == ">&" and not re.fullmatch(r"\d+-?|-", target.text)
            ):
                self.add_word(target, state)
        return targets

    def invoke(self, words: list[ExpandedWord], state: State, stdin: Data | None, site: Site) -> Data:
        program = words[0].text.rpartition("/")[2].removesuffix(".exe")
        call = CommandCall(program, words[1:], state, stdin, site.text, site.span)
        if program in ("find", "gfind"):
            printed = self._find(call, site)
            if printed is not None:
                return printed
        look = PROGRAMS.get(program)
        if look is not None:
            look(Watch(self, call, self._input))
        elif "/" in words[0].text or program in SHELLS:
            self._run_script(words, state, site)
        return super().invoke(words, state, stdin, site)

    def _find(self, call: CommandCall, site: Site) -> Data | None:
        """Do what find would do with what it would find; None where that is not known."""
        if not call.known or not call.state.cwd_known:
            return None
        search = read_search([word.text for word in call.words])
        shown = found(self.area.files, search, call.state.cwd or self.area.workspace)
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
        return Data("".join(path + separator for path in shown))

    def _run_script(self, words: list[ExpandedWord], state: State, site: Site) -> None:
        """Read a script of the workspace that the command runs."""
        is_shell = words[0].text.rpartition("/")[2] in SHELLS
        operands = [word for word in words[1:] if not word.text.startswith("-")] if is_shell else words
        if not operands or (is_shell and any(word.text == "-c" for word in words)):
            return
        text = self.text_of(resolve(operands[0], state))
        if not text or not (is_shell or re.match(r"#!.*\b(?:ba|da|z|k)?sh\b", text)):
            return
        inner = state.copy()
        inner.positional = list(operands[1:])
        try:
            self.run_text(text, inner, None, site)
        except NotUnderstood:
            self.note(HIDDEN)

    def text_of(self, path: str) -> str:
        """The text of a file that is there; empty where there is none that can be read."""
        if not path.startswith("/") or UNKNOWN in path:
            return ""
        try:
            state = self.area.files.look(path)
            content = self.area.files.read(path, MAX_SCRIPT_BYTES) if state.kind == "file" else None
        except OSError:
            return ""
        return content.decode(errors="replace") if content is not None else ""
