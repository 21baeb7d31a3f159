"""What every edit of a file has in common: what is there now, whether the model knows that, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from toolcrib.approval.places import Place
from toolcrib.approval.sensitive import SensitivePaths
from toolcrib.core.attempt import attempt, attempt_async
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import BackendPath, Environment, ExecutionTarget
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject
from toolcrib.files.checkers import has_checker, problem_found
from toolcrib.files.diffs import unified_diff
from toolcrib.files.paths import at_target
from toolcrib.files.refusals import in_words
from toolcrib.files.syntax import MAX_CHECKED_BYTES, is_checked, known_by_name, problem_in
from toolcrib.files.text_files import NotEncodable, NotText, TextFile, decoded, line_count
from toolcrib.files.views import View, Views, digest_of
from toolcrib.processes.service import session_key_of

T = TypeVar("T")

MAX_EDITED_BYTES = 32 * 1024 * 1024
EVERY_LINE = 2**31 - 1
HIDDEN_DIFF = "the diff is not shown, because the file may hold secrets"


class EditRefused(ToolcribError):
    """An edit that was not made; nothing has changed. `details` are further keys of the answer."""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True, kw_only=True)
class Present:
    """What is at a path before an edit."""

    path: BackendPath
    data: bytes | None = None
    """None: there is nothing."""
    mode: int | None = None
    stamp: str = ""

    @property
    def digest(self) -> str:
        """As `expected` of Environment wants it."""
        return "" if self.data is None else digest_of(self.data)

    def text(self) -> TextFile:
        """Raises EditRefused for what is no text, and for what is not there."""
        if self.data is None:
            raise EditRefused(f"there is no file {self.path!r}")
        try:
            return decoded(self.data)
        except NotText as error:
            raise EditRefused(f"{self.path!r} cannot be edited as text: {error}") from error

    def filled_with(self, file: TextFile) -> bytes:
        """The bytes that the file would have; raises EditRefused for a text that cannot be written."""
        try:
            return file.encoded()
        except NotEncodable as error:
            raise EditRefused(f"{self.path!r} was not written: {error}") from error


class Editor:
    """Edits of one call. Acts on the effects that were agreed to, in the place where the session works."""

    def __init__(self, ctx: ToolContext, views: Views) -> None:
        self._terminal = ctx.services.terminal
        self._where: ExecutionTarget = self._terminal.execution_target(ctx)
        self._session = session_key_of(ctx)
        self._views = views

    async def work(self, work: Callable[[Environment], Awaitable[T]]) -> T:
        """What `work` gives in the place of the session."""
        result: T = await self._terminal.work_in(self._where.spec, work)
        return result

    def name_of(self, path: str) -> str:
        """A path as people call it: relative to the folder that the session is in, if it lies there."""
        folder = self._where.folder.rstrip("/") + "/"
        return path.removeprefix(folder) if folder != "/" else path

    async def look(self, effect: Effect, environment: Environment) -> Present:
        """What the effect would change; raises EditRefused for anything but a file of a decent size, or nothing."""
        if effect.kind == "delete":
            await _refuse_link(effect, environment)
        return await at_target(effect, environment, lambda path: _present(path, environment))

    def seen(self, present: Present) -> View | None:
        """What the model has seen of the file as it is; raises EditRefused where it has seen another version."""
        view = self._views.last(self._session, self._where.spec, present.path)
        if view is None or present.data is None:
            return None
        if not view.is_of(present.stamp, present.digest):
            raise EditRefused(f"{present.path!r} has changed since you last read it; read it again, then edit it")
        # By its content from now on, which somebody may write again without a change.
        self._views.seen(
            self._session, self._where.spec, present.path, present.stamp, view.whole, digest=present.digest
        )
        return view

    def knows(self, path: BackendPath, data: bytes | None, *, whole: bool) -> None:
        """Take down what the model knows after an edit."""
        view = self._views.last(self._session, self._where.spec, path)
        if data is None:
            self._views.forget(self._session, self._where.spec, path)
        elif whole or view is not None:
            whole = whole or (view is not None and view.whole)
            self._views.seen(self._session, self._where.spec, path, "", whole, digest=digest_of(data))

    async def shown_diff(self, old: Present, new: bytes | None, new_path: str = "") -> JsonObject:
        """The key `diff` of an answer, or a `note` why there is none."""
        if holds_secrets(old.path) or holds_secrets(new_path or old.path):
            return {"note": HIDDEN_DIFF}
        before, after = text_of(old.data), text_of(new)
        if (before is None) != (old.data is None) or (after is None) != (new is None):
            return {}
        names = self.name_of(old.path), self.name_of(new_path)
        diff = await asyncio.to_thread(unified_diff, before, after, *names)
        return {"diff": diff} if diff else {}


async def _present(path: BackendPath, environment: Environment) -> Present:
    try:
        part = await environment.read_lines(path, first=1, count=EVERY_LINE, max_bytes=MAX_EDITED_BYTES, plain=True)
    except (FileNotFoundError, NotADirectoryError):
        return Present(path=path)
    except OSError as error:
        raise EditRefused(f"{path!r} cannot be edited: {in_words(error, path)}") from error
    if not part.at_end:
        megabytes = MAX_EDITED_BYTES // (1024 * 1024)
        raise EditRefused(f"{path!r} is larger than {megabytes} MB; edit it with a command in the terminal")
    return Present(path=path, data=part.data, mode=part.status.mode, stamp=part.status.stamp)


async def _refuse_link(effect: Effect, environment: Environment) -> None:
    """What would be deleted is the link itself, of which a patch cannot know the content."""
    status = await environment.status(BackendPath(effect.target), follow_links=False)
    if status is not None and status.kind == "link":
        raise EditRefused(f"{effect.target!r} is a link; remove or move it with a command in the terminal")


def text_of(data: bytes | None) -> str | None:
    """The text as a model sees it; None where there is none."""
    if data is None:
        return None
    try:
        return decoded(data).text
    except NotText:
        return None


def lines_in(data: bytes) -> int:
    text = text_of(data)
    return data.count(b"\n") if text is None else line_count(text)


def holds_secrets(path: str) -> bool:
    """Whether reading the file would be asked about, so that an edit does not show what was in it."""
    place = Place(cwd="/", workspace="", home=str(Path.home()), real=str)
    return SensitivePaths("").is_secret(path, place)


async def found_problem(path: str, old: bytes | None, new: bytes, environment: Environment) -> str:
    """What a syntax check says about a file that was written; empty when there is nothing to say."""
    problem = await _checked(path, new, environment)
    if not problem or problem.startswith("not checked") or old is None:
        return problem
    before = await _checked(path, old, environment)
    if before and not before.startswith("not checked"):
        return f"{problem}; the file did not pass before this edit, either"
    return problem


async def _checked(path: str, data: bytes, environment: Environment) -> str:
    text = text_of(data) if len(data) <= MAX_CHECKED_BYTES else None
    if text is None:
        return ""
    path = known_by_name(path, text)
    # The edit is made: whatever goes wrong now must not look as if it had failed.
    if has_checker(path):
        said, error = await attempt_async(problem_found(path, text, environment))
    elif is_checked(path):
        said, error = await asyncio.to_thread(attempt, problem_in, path, text)
    else:
        return ""
    return f"not checked: {type(error).__name__}" if error is not None else said or ""


def joined_notes(*notes: str) -> JsonObject:
    """The key `note` of an answer, if there is anything to say."""
    said = "; ".join(filter(None, notes))
    return {"note": said} if said else {}
