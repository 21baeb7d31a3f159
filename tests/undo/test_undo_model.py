"""Any sequence of calls and undos leaves what a model of the file system says."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.undo.undo_work import SESSION, tree_of, working_in

NAMES = ("a", "b", "d", "d/a", "d/e", "d/e/f", "g h", "l")
NAME = st.sampled_from(NAMES)
TEXT = st.text("xy\n", max_size=4)
MODE = st.sampled_from(["600", "644", "755", "700"])
FOLDER_MODE = st.sampled_from(["700", "755", "500"])

# Every word that is drawn is a name inside the folder of the test, and nothing else is executed.
ONE = (
    "rm -f {a}",
    "rm -rf {a}",
    "rmdir {a}",
    "unlink {a}",
    "truncate -s 2 {a}",
    "sed -i s/x/yy/ {a}",
    "printf new > {a}",
    "printf more >> {a}",
    "printf t | tee {a}",
    "mkdir -p {a}",
    "touch {a}",
    "chmod 640 {a}",
    "chmod -R u+x {a}",
    "find . -name 'a' -delete",
    "rm -rf *",
    "for f in *; do mv \"$f\" \"$f.old\"; done",
    "cd d && rm -f a e/f",
)  # fmt: skip
TWO = (
    "mv {a} {b}",
    "mv -T {a} {b}",
    "cp {a} {b}",
    "cp -r {a} {b}",
    "cp -a {a}/. {b}",
    "ln -sf {a} {b}",
    "ln -f {a} {b}",
    "install -m 600 {a} {b}",
    "dd if={a} of={b} status=none",
    "rm -rf {a} && cp -r {b} {a}",
    "mv {a} tmp.1; mv {b} {a}; mv tmp.1 {b}",
)


class UndoMachine(RuleBasedStateMachine):
    """The model is the list of what the folder was before each call that changed it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        root = self.opened.enter_context(tempfile.TemporaryDirectory())
        self.work = self.opened.enter_context(working_in(Path(root)))
        self.before: list[tuple[str, dict[str, tuple[Any, ...]]]] = []
        self.undone: list[list[tuple[str, dict[str, tuple[Any, ...]]]]] = []

    def teardown(self) -> None:
        self.opened.close()

    @property
    def tree(self) -> dict[str, tuple[Any, ...]]:
        return tree_of(self.work.folder)

    @initialize(files=st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/e/f"]), TEXT, max_size=4))
    def fill(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.work.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _noted(self, before: dict[str, tuple[Any, ...]], call_id: str) -> None:
        if self.tree != before:
            self.before.append((call_id, before))

    def _call(self, name: str, **args: str) -> None:
        before, ctx = self.tree, self.work.context()
        # A tool that fails in the middle has changed what it has changed.
        self.work.runtime.call_sync(name, args, ctx)
        self._noted(before, ctx.call_id)

    @rule(name=NAME, text=TEXT)
    def write(self, name: str, text: str) -> None:
        self._call("write", path=name, text=text)

    @rule(name=NAME)
    def delete(self, name: str) -> None:
        self._call("delete", path=name)

    @rule(name=st.sampled_from(["a", "b", "d", "l"]), to=st.sampled_from(["a", "b", "d", "new"]))
    def move(self, name: str, to: str) -> None:
        self._call("move", path=name, to=to)

    @rule(name=NAME, mode=MODE)
    def chmod(self, name: str, mode: str) -> None:
        self._call("chmod", path=name, mode=mode)

    @rule(name=st.sampled_from(["a", "l", "d/l"]), to=NAME)
    def link(self, name: str, to: str) -> None:
        self._call("link", path=name, to=to)

    @rule(name=NAME, text=TEXT)
    def write_file(self, name: str, text: str) -> None:
        self._call("write_file", path=name, content=text)

    @rule(first=NAME, second=NAME, text=st.text("xy", min_size=1, max_size=3))
    def patch(self, first: str, second: str, text: str) -> None:
        lines = ("*** Begin Patch", f"*** Delete File: {first}", f"*** Add File: {second}", f"+{text}", "*** End Patch")
        self._call("patch", mode="patch", patch="\n".join(lines))

    @rule(command=st.sampled_from(ONE + TWO), first=NAME, second=NAME)
    def run(self, command: str, first: str, second: str) -> None:
        before, ctx = self.tree, self.work.context()
        line = command.format(a=shlex.quote(first), b=shlex.quote(second))
        self.work.runtime.call_sync("terminal", {"command": f"cd {shlex.quote(str(self.work.folder))}; {line}"}, ctx)
        self._noted(before, ctx.call_id)

    @precondition(lambda self: self.before)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.before)))
        wanted = self.before[-count][1]

        undone = self.work.history.undo_calls(SESSION, count)

        assert undone.refused == []
        assert self.tree == wanted
        del self.before[-count:]

    @precondition(lambda self: self.before)
    @rule(data=st.data())
    def undo_to(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.before) - 1))
        call_id, wanted = self.before[at]

        undone = self.work.history.undo_to(SESSION, call_id)

        assert undone.refused == []
        assert self.tree == wanted
        del self.before[at:]

    @precondition(lambda self: self.before)
    @rule()
    def undo_and_redo(self) -> None:
        now = self.tree

        self.work.history.undo_calls(SESSION, 1)
        redone = self.work.history.redo(SESSION)

        assert redone.refused == []
        assert self.tree == now

    @invariant()
    def only_changes_are_listed(self) -> None:
        listed = [one.call_id for one in self.work.history.calls(SESSION) if one.can_be_undone]
        assert listed == [call_id for call_id, _ in self.before]


TestUndoModel = UndoMachine.TestCase
TestUndoModel.settings = settings(
    max_examples=20,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
