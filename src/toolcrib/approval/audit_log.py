"""The audit log of approvals: every question and decision as one line of JSON, append-only, readable only by its owner.

Each line is written with one system call; readers skip a partial line that a killed writer left.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from toolcrib.config.files import OWNER_FILE, make_folder, take_lock
from toolcrib.config.redact import redactor
from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Choice, Danger, EntryPoint
from toolcrib.core.origins import ValueFinding

Mask = Callable[[str], str]
MAX_COMMAND_CHARS = 8_000
MAX_MASKED_CHARS = 64_000
MAX_TEXT_CHARS = 300
MAX_DANGERS = 12
MAX_PATHS = 4
MAX_FINDINGS = 24
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Refuses a symbolic link, and a pipe without a reader, in place of the log."""
LOCK_WAIT_SECONDS = 2.0


class ApprovalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its outcome."""

    request: ApprovalRequest
    """The request as asked, with secrets masked and long texts cut."""
    digest: str
    """SHA-256 of the exact command."""
    call_digest: str = ""
    """What `digest_of_call` gives for the request as asked; empty for a decision without a question."""
    answer: ApprovalAnswer | None = None
    answered_at: float = 0.0

    @property
    def id(self) -> str:
        return self.request.id


class ApprovalLog:
    """The log of one home; several processes may write to it at the same time."""

    def __init__(self, path: Path, *, masker: Callable[[], Mask] = redactor, clock: Callable[[], float] = time.time):
        self.path = path
        self._masker = masker
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, ApprovalRecord] = {}
        self._read_until = 0
        self._inode = 0

    def requested(self, request: ApprovalRequest) -> None:
        """Record a question and return once it is durable; does nothing if it is already recorded."""
        with self._lock:
            self._read_new_lines()
            if request.id not in self._records:
                fields = self._request_fields(request, self._masker())
                self._append({"event": "requested", **fields, "call_digest": digest_of_call(request)})

    def answered(self, request_id: str, answer: ApprovalAnswer) -> bool:
        """Record an answer once; False if the request is unknown or already answered."""
        with self._lock, self._exclusive():
            self._read_new_lines()
            record = self._records.get(request_id)
            if record is None or record.answer is not None:
                return False
            self._append({"event": "answered", "id": request_id, **self._answer_fields(answer, self._masker())})
            self._read_new_lines()
            return True

    def decided(self, request: ApprovalRequest, answer: ApprovalAnswer) -> None:
        """Record a decision that needed no question."""
        with self._lock:
            mask = self._masker()
            fields = self._request_fields(request, mask) | self._answer_fields(answer, mask)
            self._append({"event": "decided", **fields})

    def records(self) -> list[ApprovalRecord]:
        """All records, oldest first."""
        with self._lock:
            self._read_new_lines()
            return list(self._records.values())

    def find(self, id_start: str) -> list[ApprovalRecord]:
        """The records whose id starts with this text."""
        return [record for record in self.records() if record.id.startswith(id_start)]

    def last(self, count: int = 1) -> list[ApprovalRecord]:
        """The newest records, newest first."""
        return self.records()[::-1][:count]

    def pending(self) -> list[ApprovalRequest]:
        """The requests without an answer, oldest first."""
        return [record.request for record in self.records() if record.answer is None]

    def _request_fields(self, request: ApprovalRequest, mask: Mask) -> dict[str, Any]:
        mask = _mask_needed(_texts_of(request), mask)
        shown = replace(
            request,
            command=_shorten(request.command, mask, MAX_COMMAND_CHARS),
            dangers=tuple(_masked_danger(danger, mask) for danger in request.dangers[:MAX_DANGERS]),
            tool=_shorten(request.tool, mask),
            title=_shorten(request.title, mask),
            # Kept verbatim: an answer after a restart finds its session by this key.
            session_key=request.session_key,
            call_id=_shorten(request.call_id, mask),
            turn_id=_shorten(request.turn_id, mask),
            cwd=_shorten(request.cwd, mask),
            # The command line contains them already, masked as a whole.
            arguments={},
            diff="",
            findings=tuple(_masked_finding(finding, mask) for finding in request.findings[:MAX_FINDINGS]),
        )
        digest = hashlib.sha256(request.command.encode("utf-8", "surrogatepass")).hexdigest()
        return {**msgspec.to_builtins(shown), "asked_at": request.asked_at or self._clock(), "digest": digest}

    def _answer_fields(self, answer: ApprovalAnswer, mask: Mask) -> dict[str, Any]:
        return {
            "choice": answer.choice,
            "reason": _shorten(answer.reason, mask),
            "decided_by": answer.decided_by,
            "every_scope": answer.every_scope,
            "answered_at": self._clock(),
        }

    def _append(self, fields: dict[str, Any]) -> None:
        line = json.dumps({"v": 1, **fields}, separators=(",", ":")).encode("ascii") + b"\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_LINKS
        try:
            descriptor = os.open(self.path, flags, OWNER_FILE)
        except FileNotFoundError:
            make_folder(self.path.parent)
            descriptor = os.open(self.path, flags, OWNER_FILE)
        try:
            size = self._file_status(descriptor).st_size
            if size and _byte_at(descriptor, size - 1) != b"\n":
                line = b"\n" + line
            written = os.write(descriptor, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written to {str(self.path)!r}")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _file_status(self, descriptor: int) -> os.stat_result:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{str(self.path)!r} is not a regular file")
        return status

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Holds a lock so that no other process records an answer at the same time."""
        make_folder(self.path.parent)
        lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, OWNER_FILE)
        try:
            take_lock(lock, LOCK_WAIT_SECONDS)
            yield
        finally:
            os.close(lock)

    def _read_new_lines(self) -> None:
        """Read the complete lines added since the last read."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | NO_LINKS)
        except FileNotFoundError:
            self._records, self._read_until = {}, 0
            return
        with os.fdopen(descriptor, "rb") as stream:
            now = self._file_status(descriptor)
            if now.st_ino != self._inode or now.st_size < self._read_until:
                self._records, self._read_until, self._inode = {}, 0, now.st_ino
            stream.seek(self._read_until)
            added = stream.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read_until += len(whole)
        for line in whole.splitlines():
            self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
            request_id = fields["id"]
            if fields["event"] == "answered":
                record = self._records.get(request_id)
                if record is None or record.answer is not None:
                    return
                answered = replace(record, answer=_answer(fields), answered_at=float(fields["answered_at"]))
            else:
                record = ApprovalRecord(
                    request=_request(fields),
                    digest=str(fields["digest"]),
                    call_digest=str(fields.get("call_digest", "")),
                )
                if fields["event"] == "decided":
                    record = replace(record, answer=_answer(fields), answered_at=float(fields["answered_at"]))
                answered = self._records.get(request_id, record)
        except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError):
            return  # A partial line of a killed writer, or a line from another program.
        self._records[request_id] = answered


def digest_of_call(request: ApprovalRequest) -> str:
    """Identifies the exact call: the command that a person reads may leave out arguments, or cut them."""
    call = [request.tool, request.command, request.arguments, request.cwd, request.backend]
    return hashlib.sha256(json.dumps(call, sort_keys=True, default=repr).encode()).hexdigest()


def _byte_at(descriptor: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, 1)


def _request(fields: dict[str, Any]) -> ApprovalRequest:
    names = ("id", "tool", "command", "session_key", "call_id", "turn_id", "cwd", "backend")
    texts: dict[str, Any] = {name: str(fields[name]) for name in names}
    if fields["entry_point"] not in get_args(EntryPoint):
        raise ValueError(fields["entry_point"])
    return ApprovalRequest(
        **texts,
        dangers=tuple(_danger(danger) for danger in fields["dangers"]),
        entry_point=fields["entry_point"],
        asked_at=float(fields["asked_at"]),
        may_be_permanent=bool(fields["may_be_permanent"]),
        findings=msgspec.convert(fields.get("findings") or (), tuple[ValueFinding, ...]),
    )


def _danger(fields: dict[str, Any]) -> Danger:
    span = fields["span"]
    return Danger(
        rule=str(fields["rule"]),
        description=str(fields["description"]),
        reason=str(fields["reason"]),
        scope=str(fields["scope"]),
        span=None if span is None else (int(span[0]), int(span[1])),
        paths=tuple(str(path) for path in fields["paths"]),
    )


def _answer(fields: dict[str, Any]) -> ApprovalAnswer:
    if fields["choice"] not in get_args(Choice):
        raise ValueError(fields["choice"])
    return ApprovalAnswer(
        choice=fields["choice"],
        reason=str(fields["reason"]),
        decided_by=str(fields["decided_by"]),
        every_scope=bool(fields["every_scope"]),
    )


def _texts_of(request: ApprovalRequest) -> Iterator[str]:
    """Everything in a request that may contain a secret."""
    yield from (request.command, request.tool, request.title, request.call_id, request.turn_id, request.cwd)
    for danger in request.dangers[:MAX_DANGERS]:
        yield from (danger.description, danger.reason, danger.scope, danger.rule, *danger.paths[:MAX_PATHS])


def _mask_needed(texts: Iterable[str], mask: Mask) -> Mask:
    """The mask, or one that does nothing if it would not change any of these texts: most contain no secret."""
    # One long text is quicker than many short ones. A match across its line ends only costs the time for all of them.
    together = "\n".join(text[:MAX_MASKED_CHARS] for text in texts)
    return mask if mask(together) != together else str


def _masked_danger(danger: Danger, mask: Mask) -> Danger:
    return replace(
        danger,
        description=_shorten(danger.description, mask),
        reason=_shorten(danger.reason, mask),
        scope=_shorten(danger.scope, mask),
        rule=_shorten(danger.rule, mask),
        paths=tuple(_shorten(path, mask) for path in danger.paths[:MAX_PATHS]),
    )


def _masked_finding(finding: ValueFinding, mask: Mask) -> ValueFinding:
    return replace(
        finding,
        pointer=_shorten(finding.pointer, mask),
        value=_shorten(finding.value, mask),
        reason=_shorten(finding.reason, mask),
    )


def _shorten(text: str, mask: Mask, limit: int = MAX_TEXT_CHARS) -> str:
    # Masked before it is cut: half a key would no longer look like one.
    masked = mask(text[:MAX_MASKED_CHARS]) if text else ""
    return masked if len(masked) <= limit else f"{masked[:limit]}… ({len(text)} characters)"
