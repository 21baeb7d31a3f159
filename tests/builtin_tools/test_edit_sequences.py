"""Any sequence of edits leaves exactly the bytes that a model of a file system says."""

from __future__ import annotations

import codecs
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.builtin_tools.edit_calls import EditCalls, edit_calls

NAMES = st.sampled_from(["a.txt", "b.txt", "sub/c.txt", "sub/deep/d e.txt", "é.txt"])
LINES = st.lists(
    st.sampled_from(["one", "two", "", "  three", "x\ty", "\u4e2d\u6587", "\U0001f600", "x\u2028y"]), max_size=6
)
ENDS = st.sampled_from(["\n", "\r\n"])
MARKS = st.sampled_from([b"", codecs.BOM_UTF8])


def joined(lines: list[str], is_open: bool) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return text.removesuffix("\n") if is_open and lines and lines[-1] else text


texts = st.builds(joined, LINES, st.booleans())


def parts(data: bytes) -> tuple[bytes, str, str]:
    """Mark, text with LF, and the only line end (empty where there is none, or two)."""
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    raw = data[len(mark) :].decode()
    windows, all_ends = raw.count("\r\n"), raw.count("\n")
    end = "" if not all_ends or 0 < windows < all_ends else "\r\n" if windows else "\n"
    return mark, raw.replace("\r\n", "\n"), end


def with_text(data: bytes, text: str) -> bytes:
    """A file with another text, in its own form; not for files with two kinds of line ends."""
    mark, _, end = parts(data)
    return mark + text.replace("\n", end or "\n").encode()


def is_mixed(data: bytes) -> bool:
    return 0 < data.count(b"\r\n") < data.count(b"\n")


class Edits(RuleBasedStateMachine):
    """Edits through the tools, and changes by somebody else, beside a dict from path to bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        self._folder = Path(tempfile.mkdtemp(prefix="edit-sequences-"))
        self.calls: EditCalls = self._opened.enter_context(edit_calls(self._folder))
        self.model: dict[str, bytes] = {}
        self.known: dict[str, bytes] = {}
        """What the session has last seen of each file."""

    def teardown(self) -> None:
        self._opened.close()
        shutil.rmtree(self._folder)

    def is_stale(self, name: str) -> bool:
        return name in self.model and name in self.known and self.known[name] != self.model[name]

    def done(self, name: str, data: bytes, answer: dict[str, Any], *, sees: bool) -> None:
        assert "error" not in answer, answer
        self.model[name] = data
        if sees or name in self.known:
            self.known[name] = data

    @rule(name=NAMES, text=texts, end=ENDS, mark=MARKS, mixed=st.booleans())
    def somebody_else_writes(self, name: str, text: str, end: str, mark: bytes, mixed: bool) -> None:
        raw = text.replace("\n", end)
        data = mark + (raw.replace("\r\n", "\n", 1) if mixed else raw).encode()
        path = self.calls.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.model[name] = data

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def the_model_reads(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        assert "error" not in self.calls.call("read_file", path=name)
        self.known[name] = self.model[name]

    @rule(name=NAMES, text=texts)
    def write(self, name: str, text: str) -> None:
        old = self.model.get(name)
        new = text.encode() if old is None else with_text(old, text)
        stale = self.is_stale(name) and new != old
        answer = self.calls.write(name, text)
        if stale:
            assert "changed since" in answer["error"]
        else:
            self.done(name, new, answer, sees=True)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data(), new=texts, replace_all=st.booleans())
    def replace(self, data: st.DataObject, new: str, replace_all: bool) -> None:
        name = data.draw(st.sampled_from(sorted(path for path, content in self.model.items() if content)))
        content = self.model[name]
        _, text, _ = parts(content)
        if not text or is_mixed(content):
            return
        start = data.draw(st.integers(0, len(text) - 1))
        old = text[start : data.draw(st.integers(start + 1, len(text)))]
        places = sum(text.startswith(old, at) for at in range(len(text)))

        answer = self.calls.replace(name, old, new, replace_all=replace_all)

        if old == new or self.is_stale(name) or (places > 1 and not replace_all):
            assert "error" in answer
        else:
            self.done(name, with_text(content, text.replace(old, new)), answer, sees=False)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), new=LINES)
    def update_lines(self, data: st.DataObject, new: list[str]) -> None:
        """Replaces some whole lines by a V4A hunk with all lines of the file as context."""
        name = data.draw(st.sampled_from(sorted(self.model)))
        content = self.model[name]
        _, text, _ = parts(content)
        lines = text.split("\n")
        is_open = lines[-1] != ""
        lines = lines if is_open else lines[:-1]
        start = data.draw(st.integers(0, len(lines)))
        end = data.draw(st.integers(start, len(lines)))
        if is_mixed(content) or (start == end and not new):
            return
        after = [*lines[:start], *new, *lines[end:]]
        stays_open = is_open and (end < len(lines) or bool(new))

        answer = self.calls.patch(
            f"*** Update File: {name}",
            "@@",
            *(f" {line}" for line in lines[:start]),
            *(f"-{line}" for line in lines[start:end]),
            *(f"+{line}" for line in new),
            *(f" {line}" for line in lines[end:]),
        )

        if self.is_stale(name):
            assert "changed since" in answer["error"]
            return
        expected = "".join(f"{line}\n" for line in after)
        self.done(name, with_text(content, expected[:-1] if stays_open and after else expected), answer, sees=False)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), new=NAMES, lines=LINES)
    def change_several(self, data: st.DataObject, new: str, lines: list[str]) -> None:
        """One patch that moves a file, deletes another and adds a third; all or nothing."""
        moved = data.draw(st.sampled_from(sorted(self.model)))
        target, deleted = data.draw(NAMES), data.draw(NAMES)
        answer = self.calls.patch(
            f"*** Update File: {moved}",
            f"*** Move to: {target}",
            f"*** Delete File: {deleted}",
            f"*** Add File: {new}",
            *(f"+{line}" for line in lines),
        )
        after = dict(self.model)
        fits = not any(map(self.is_stale, {moved, target, deleted, new}))
        if moved != target:
            fits = fits and target not in after
            after[target] = after.pop(moved)
        elif fits:
            fits = False  # A move onto itself, without a hunk, says nothing.
        fits = fits and after.pop(deleted, None) is not None and new not in after
        if not fits:
            assert "error" in answer or moved == target, answer
            if "error" in answer:
                return
            after = dict(self.model)
            after.pop(deleted)
        after[new] = "".join(f"{line}\n" for line in lines).encode()
        assert "error" not in answer, answer
        for name in {moved, target, deleted, new}:
            was_known = name in self.known
            self.known.pop(name, None)
            if name in after and (name == new or (was_known and name in self.model)):
                self.known[name] = after[name]
        self.model = after

    @invariant()
    def files_are_as_the_model_says(self) -> None:
        assert self.calls.files() == self.model


Edits.TestCase.settings = settings(max_examples=25, stateful_step_count=15)
TestEdits = Edits.TestCase
