"""Where the values of a session come from: the person's words, and the results of calls with their origins.

Recording is cheap, because it happens on every call. Texts are read only when a call names delicate arguments.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolcrib.core.context import ToolContext
from toolcrib.core.lazy import lazy, lazy_pattern
from toolcrib.core.origins import OriginDeclaration, ResultSource, ValueFinding, ValueOrigin
from toolcrib.core.types import Effect, JsonObject, ToolEntry, ToolResult

if TYPE_CHECKING:
    from toolcrib.approval.vouching import ValueIndex

DEFAULT_SESSION = "default"
MAX_SESSIONS = 1_000
MAX_WEIGHT = 4_000_000
"""About how many bytes of results one session keeps, about as many as the longest contexts of models hold; the oldest
are dropped, and then fewer values are vouched for."""
MAX_TOTAL_WEIGHT = 64_000_000
"""The same for all sessions of a runtime; the oldest sessions are dropped."""
OVERHEAD = 1_000
"""What a result takes besides its text."""

OUTSIDE_EFFECTS = frozenset({"publish", "remote", "spend", "network", "schedule", "write", "delete"})
"""The effects that provenance decides about, if the tool names its delicate arguments."""

_NETWORK_COMMAND = lazy_pattern(
    r"\b(?:curl|wget|http|https|aria2c|lynx|w3m|links|ssh|scp|sftp|rsync|ftp|telnet|nc|ncat|socat|dig|nslookup|whois|git|"
    r"gh|glab|pip3?|pipx|uvx?|npm|npx|pnpm|yarn|cargo|go|gem|docker|podman|kubectl|aws|gcloud|az|mail|mutt|psql|mysql|"
    r"requests|urllib|httpx|aiohttp|socket)\b|://",
    re.IGNORECASE,
)


_Recorded = tuple[int, ToolResult, Mapping[str, Any], OriginDeclaration]


class Provenance:
    """What one session has heard and read. `Runtime.call` and `Agent` share it: `runtime.provenance(session_id)`.

    provenance = runtime.provenance("s1")
    provenance.add_person("Pay my rent to Anna")
    provenance.origin_of("DE89 3704 0044 0532 0130 00")  # an ValueOrigin, or None if it was never seen
    """

    def __init__(self, workspace: str = "") -> None:
        self.workspace = workspace
        self.words: list[tuple[int, str]] = []
        """The person's words, each with the number of its question."""
        self.question = 0
        self.is_incomplete = False
        """Whether something was dropped or is not known, so a value that is found nowhere may be untrusted."""
        self.weight = 0
        """About how many bytes the results take."""
        self._recorded: deque[_Recorded] = deque()
        self._results: deque[ResultSource] = deque()
        self.has_untrusted = False
        """Whether anything that a stranger may have written was read."""
        self._untrusted_files: set[str] = set()
        self._may_have_downloaded = False
        self._count = 0
        self._lock = threading.RLock()

    # What was heard and read

    def add_person(self, text: str, *, follow_up: bool = False) -> None:
        """Add what a person typed. It begins a new question, unless it is a follow-up to the current one."""
        with self._lock:
            if not follow_up:
                self.question += 1
            if text.strip():
                self.words.append((self.question, text))

    def add_result(self, result: ToolResult, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Add a result of this session, in the order of the calls; returns it with its origin filled in.

        `Runtime.call` does this for every call. Use it for results from elsewhere. Without an origin and effects, a
        result counts as untrusted.
        """
        origin = result.origin or self._derived_origin(result.effects)
        result = result if result.origin == origin else replace(result, origin=origin)
        self._keep(result, arguments or {}, origin)
        return result

    def add_untrusted(self, text: str, source: str) -> None:
        """Add a text that a stranger may have written, and that came from no call."""
        self.add_result(ToolResult(content=text, name=source, origin="untrusted"))

    def record(self, entry: ToolEntry, arguments: JsonObject, result: ToolResult) -> ToolResult:
        """Add the result of a call; returns it with its origin."""
        if result.status != "ok" and result.error_type != "tool_error":
            return result  # Our own message: it did not come from the tool.
        origin = result.origin or entry.origin
        effects = result.effects
        if effects is None:
            if origin == "derived" and not self.has_untrusted:
                return result  # Computed from harmless arguments, so it will never matter.
        else:
            if not origin:
                origin = self._derived_origin(effects)
            self._note_writes(effects)
            if result.origin != origin:
                result = replace(result, origin=origin)
        self._keep(result, arguments, origin)
        return result

    def _keep(self, result: ToolResult, arguments: Mapping[str, Any], origin: OriginDeclaration) -> None:
        # Runs after most calls, so it reads nothing; `results` does, when somebody asks.
        if not self.has_untrusted and _has_level(origin or "untrusted", "untrusted"):
            self.has_untrusted = True
        self._recorded.append((self.question, result, arguments, origin))
        self.weight = weight = self.weight + len(result.content) + OVERHEAD
        if weight > MAX_WEIGHT:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with self._lock:
            self.is_incomplete = True
            while self.weight > MAX_WEIGHT // 2 and self._results:
                self.weight -= len(self._results.popleft().content) + OVERHEAD
            while self.weight > MAX_WEIGHT // 2 and len(self._recorded) > 1:
                self.weight -= len(self._recorded.popleft()[1].content) + OVERHEAD

    @property
    def results(self) -> deque[ResultSource]:
        """The results of this session, oldest first."""
        with self._lock:
            while self._recorded:
                question, result, arguments, origin = self._recorded.popleft()
                if result.status != "ok" and not _has_level(origin, "untrusted"):
                    origin = "derived"  # An error repeats arguments, so it vouches for nothing.
                source = ResultSource(
                    number=self._count,
                    question=question,
                    tool=result.name,
                    call_id=result.call_id,
                    content=result.content,
                    arguments=arguments,
                    origin=origin or "untrusted",
                )
                self._results.append(source)
                self._count += 1
            return self._results

    # What follows from effects

    def _derived_origin(self, effects: tuple[Effect, ...] | None) -> OriginDeclaration:
        """The origin of a result whose tool declares none."""
        if effects is None:
            return "untrusted"
        kinds = {effect.kind for effect in effects}
        if "network" in kinds:
            return "untrusted"
        if "exec" in kinds:
            return self._origin_of_output(effects)
        reads = [effect for effect in effects if effect.kind == "read"]
        if reads:
            return "trusted" if all(self._is_own_file(effect) for effect in reads) else "untrusted"
        return "derived"

    def _origin_of_output(self, effects: tuple[Effect, ...]) -> OriginDeclaration:
        """Output of a command is trusted until the session has read untrusted content or used the network."""
        commands = [effect.target for effect in effects if effect.kind == "exec"]
        if any(_NETWORK_COMMAND.search(command) for command in commands):
            self._may_have_downloaded = True
        return "untrusted" if self.has_untrusted or self._may_have_downloaded else "trusted"

    def _is_own_file(self, effect: Effect) -> bool:
        """Whether a file is in the workspace and was not written from untrusted content in this session."""
        if effect.backend or self._may_have_downloaded:
            return False
        path = self._resolved(effect)
        inside = bool(self.workspace) and path.is_relative_to(self.workspace)
        return inside and not any(str(one) in self._untrusted_files for one in (path, *path.parents))

    def _note_writes(self, effects: tuple[Effect, ...]) -> None:
        kinds = {effect.kind for effect in effects}
        if not kinds & {"write", "exec"} or not ("network" in kinds or self.has_untrusted):
            return
        if "exec" in kinds:
            # A command may write anything anywhere.
            self._may_have_downloaded = True
        self._untrusted_files.update(str(self._resolved(effect)) for effect in effects if effect.kind == "write")

    def _resolved(self, effect: Effect) -> Path:
        path = Path(effect.cwd or self.workspace or ".") / Path(effect.target).expanduser()
        return Path(*_normal_parts(path))

    # What is known about values

    @lazy
    def index(self) -> ValueIndex:
        """The values of this session."""
        # Imported here, because only calls with delicate arguments need it.
        from toolcrib.approval.vouching import ValueIndex  # noqa: PLC0415

        return ValueIndex(self)

    def origin_of(self, value: str | float) -> ValueOrigin | None:
        """Where a value comes from, the most trustworthy place first; None if it was seen nowhere."""
        with self._lock:
            return self.index.origin_of(value)

    def findings(
        self, entry: ToolEntry, arguments: JsonObject, effects: tuple[Effect, ...] | None, *, limit: float
    ) -> tuple[ValueFinding, ...] | None:
        """What is known about each delicate value of a call; None if the call names no delicate arguments."""
        named = [effect for effect in effects or () if effect.delicate is not None and effect.kind in OUTSIDE_EFFECTS]
        if not named:
            return None
        with self._lock:
            return self.index.findings(entry.name, arguments, named, limit)


class ProvenanceStore:
    """The provenance of every session of one runtime."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._sessions: dict[str, Provenance] = {}
        self._has_dropped = False
        self._lock = threading.Lock()

    def of(self, session_id: str = "") -> Provenance:
        """The provenance of a session; a new one for a session that is not known yet."""
        key = session_id or DEFAULT_SESSION
        known = self._sessions.get(key)
        if known is not None:
            return known
        with self._lock:
            self._make_room()
            made = self._sessions.setdefault(key, Provenance(self._workspace))
            made.is_incomplete = made.is_incomplete or self._has_dropped
            return made

    def _make_room(self) -> None:
        """Drop the oldest sessions if there are too many or if they take too much."""
        weight = sum(provenance.weight for provenance in self._sessions.values())
        while self._sessions and (len(self._sessions) >= MAX_SESSIONS or weight > MAX_TOTAL_WEIGHT):
            weight -= self._sessions.pop(next(iter(self._sessions))).weight
            self._has_dropped = True

    def is_known(self, session_id: str) -> bool:
        return session_id in self._sessions

    def share(self, session_id: str, parent_id: str) -> None:
        """Let a session and its parent have one provenance: what a subagent reads, its parent has read."""
        parent = self.of(parent_id)
        with self._lock:
            self._sessions[session_id] = parent

    def record(self, entry: ToolEntry, arguments: JsonObject, result: ToolResult, ctx: ToolContext) -> ToolResult:
        """Add the result of a call to its session; returns it with its origin."""
        provenance = self._sessions.get(ctx.session_id or DEFAULT_SESSION)
        if provenance is None:
            provenance = self.of(ctx.session_id)
        return provenance.record(entry, arguments, result)


def _has_level(origin: OriginDeclaration, level: str) -> bool:
    if isinstance(origin, str):
        return origin == level
    # A field that no pointer covers is untrusted.
    return level in origin.values() or (level == "untrusted" and "" not in origin)


def _normal_parts(path: Path) -> tuple[str, ...]:
    """The parts of a path without `.` and `..`, whether or not it exists."""
    parts: list[str] = []
    for part in path.absolute().parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return tuple(parts)
