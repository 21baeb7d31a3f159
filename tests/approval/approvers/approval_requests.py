"""Requests for the approver tests, and a store that keeps them in a file."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

import msgspec

from toolcrib.core.approvals import ApprovalAnswer, ApprovalRequest, Danger

RECURSIVE_DELETE = Danger(
    rule="recursive_delete",
    description="recursive delete",
    reason="deletes directories and everything in them",
    scope="inside the workspace",
    paths=("/w/node_modules",),
)


def made_request(
    request_id: str,
    session_key: str = "",
    *,
    command: str = "rm -rf node_modules",
    dangers: tuple[Danger, ...] = (RECURSIVE_DELETE,),
    asked_at: float = 0.0,
    may_be_permanent: bool = True,
) -> ApprovalRequest:
    return ApprovalRequest(
        id=request_id,
        tool="terminal",
        command=command,
        dangers=dangers,
        session_key=session_key,
        asked_at=asked_at,
        may_be_permanent=may_be_permanent,
    )


class FileStore:
    """Appends requests and answers to a file; a second one on the same file is a restarted program."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()

    def requested(self, request: ApprovalRequest) -> None:
        self._append({"requested": msgspec.to_builtins(request)})

    def answered(self, request_id: str, answer: ApprovalAnswer) -> bool:
        with self._lock:
            if request_id not in {request.id for request in self._open()}:
                return False
            self._write({"answered": request_id, **msgspec.to_builtins(answer)})
            return True

    def pending(self) -> list[ApprovalRequest]:
        with self._lock:
            return self._open()

    def answers(self) -> dict[str, str]:
        """Each answered request and its recorded choice."""
        return {row["answered"]: row["choice"] for row in self._rows() if "answered" in row}

    def _open(self) -> list[ApprovalRequest]:
        known: dict[str, ApprovalRequest] = {}
        for row in self._rows():
            if "answered" in row:
                del known[row["answered"]]
                continue
            fields = row["requested"]
            dangers = tuple(Danger(**{**each, "paths": tuple(each["paths"])}) for each in fields["dangers"])
            known[fields["id"]] = ApprovalRequest(**{**fields, "dangers": dangers, "findings": ()})
        return list(known.values())

    def _append(self, row: dict[str, object]) -> None:
        with self._lock:
            self._write(row)

    def _write(self, row: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _rows(self) -> list[dict[str, object]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]
