"""What a patch makes of the files that it names, worked out on their present contents; nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from toolcrib.core.environments import BackendPath
from toolcrib.core.types import JsonObject
from toolcrib.files.commit import Step
from toolcrib.files.editing import EditRefused, Present, holds_secrets
from toolcrib.files.hunks import HunksDoNotFit, Misfit, with_hunks
from toolcrib.files.patch_format import FileChange
from toolcrib.files.text_files import NotEncodable, TextFile

MAX_PROBLEMS = 50
MAX_EXPLAINED = 5
"""Of so many problems the near matches are shown, which are long."""


@dataclass(frozen=True)
class PlacedChange:
    """A change of a patch with the paths that were agreed to."""

    change: FileChange
    path: BackendPath
    move_to: BackendPath | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done, one step for each file that will be different."""

    steps: tuple[Step, ...]
    moved: Mapping[BackendPath, BackendPath]
    """From where the files were that are at a new path."""
    added: frozenset[BackendPath]
    """The files whose whole content is from the patch."""


class _Problem(Exception):
    """A change that cannot be made; `rows` are for the answer."""

    def __init__(self, path: str, problem: str, misfits: Sequence[Misfit] = ()) -> None:
        super().__init__(problem)
        self.rows = list(_rows(path, problem, misfits))


def _rows(path: str, problem: str, misfits: Sequence[Misfit]) -> Iterator[JsonObject]:
    if not misfits:
        yield {"file": path, "problem": problem}
    for misfit in misfits:
        row: JsonObject = {"file": path, "hunk": misfit.hunk, "problem": misfit.problem}
        if misfit.near and not holds_secrets(path):
            row["near_matches"] = [near.as_json() for near in misfit.near]
        yield row


def planned(changes: Sequence[PlacedChange], present: Mapping[BackendPath, Present]) -> Plan:
    """The steps of a patch; raises EditRefused with every change and hunk that does not fit."""
    state = {path: _State(one) for path, one in present.items()}
    moved: dict[BackendPath, BackendPath] = {}
    rows: list[JsonObject] = []
    broken: set[BackendPath] = set()
    for placed in changes:
        touched = {placed.path, placed.move_to or placed.path}
        # What follows from a change that failed is not worth a second message.
        if touched & broken:
            continue
        try:
            _apply(placed, state, moved)
        except _Problem as problem:
            rows += problem.rows
            broken |= touched
    if rows:
        for row in rows[MAX_EXPLAINED:]:
            row.pop("near_matches", None)
        raise EditRefused(_summary(rows), problems=rows[:MAX_PROBLEMS])
    added = frozenset(path for path, file in state.items() if file.is_added)
    return Plan(tuple(_steps(state)), moved, added)


def _summary(rows: Sequence[JsonObject]) -> str:
    named = [f"{row['file']!r}" + (f" hunk {row['hunk']}" if "hunk" in row else "") for row in rows[:3]]
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    first = rows[0]["problem"]
    return f"nothing was changed, because the patch does not fit: {', '.join(named)}{more} ({first})"


class _State:
    """One file while the changes of a patch are applied to it in their order."""

    def __init__(self, before: Present) -> None:
        self.before = before
        self.data = before.data
        self.mode: int | None = None
        """That the file shall have; None keeps what it has."""
        self.is_added = False
        """All that is in it is from the patch."""


def _apply(placed: PlacedChange, state: Mapping[BackendPath, _State], moved: dict[BackendPath, BackendPath]) -> None:
    change, file = placed.change, state[placed.path]
    if change.kind == "add":
        if file.data is not None:
            raise _Problem(placed.path, "it exists already; update it, or delete it first")
        file.data, file.mode = _encoded(TextFile(change.content), placed.path), change.mode
        file.is_added = True
        return
    if file.data is None:
        raise _Problem(placed.path, f"there is no such file to {change.kind}")
    if change.kind == "delete":
        if change.hunks and _updated(change, file, placed.path):
            raise _Problem(placed.path, "it has more lines than the patch deletes")
        file.data, file.is_added = None, False
        return
    data = _updated(change, file, placed.path)
    if placed.move_to is None or placed.move_to == placed.path:
        file.data, file.mode = data, change.mode if change.mode is not None else file.mode
        return
    target = state[placed.move_to]
    if target.data is not None:
        raise _Problem(placed.move_to, f"it exists already, so {placed.path!r} cannot be moved there")
    target.mode = change.mode if change.mode is not None else file.mode if file.mode is not None else file.before.mode
    target.data, file.data = data, None
    target.is_added, file.is_added = file.is_added, False
    moved[placed.move_to] = moved.pop(placed.path, placed.path)


def _updated(change: FileChange, file: _State, path: BackendPath) -> bytes:
    assert file.data is not None
    if not change.hunks:
        if not change.move_to and change.mode is None:
            raise _Problem(path, "no hunk says what to change in it")
        return file.data
    try:
        old = replace(file.before, data=file.data).text()
        return _encoded(with_hunks(old, change.hunks), path)
    except EditRefused as error:
        raise _Problem(path, str(error)) from error
    except HunksDoNotFit as error:
        raise _Problem(path, str(error), error.misfits) from error


def _encoded(file: TextFile, path: BackendPath) -> bytes:
    try:
        return file.encoded()
    except NotEncodable as error:
        raise _Problem(path, str(error)) from error


def _steps(state: Mapping[BackendPath, _State]) -> Iterator[Step]:
    for file in state.values():
        has_new_mode = file.data is not None and file.mode not in (None, file.before.mode)
        if file.data != file.before.data or has_new_mode:
            yield Step(file.before, file.data, file.mode)
