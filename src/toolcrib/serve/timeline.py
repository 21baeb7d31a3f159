"""Where the time of a run went: the model, tools, and waiting for a person, from the run's events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from toolcrib.serve.run_store import StoredEvent

SpanKind = Literal["model", "tool", "waiting"]


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of the timeline."""

    kind: SpanKind
    name: str
    started_at: float
    ended_at: float | None
    """None while it goes on."""
    id: str = ""
    status: str = ""
    summary: str = ""


class _Timeline:
    def __init__(self) -> None:
        self.spans: list[TimelineSpan] = []
        self._open: dict[str, int] = {}

    def start(self, key: str, kind: SpanKind, name: str, at: float, summary: str = "") -> None:
        self._open[key] = len(self.spans)
        id = key if kind != "model" else ""
        self.spans.append(TimelineSpan(kind=kind, name=name, started_at=at, ended_at=None, id=id, summary=summary))

    def end(self, key: str, at: float, status: str = "") -> None:
        place = self._open.pop(key, None)
        if place is not None:
            self.spans[place] = msgspec.structs.replace(self.spans[place], ended_at=at, status=status)

    def end_all(self, at: float) -> None:
        for key in list(self._open):
            self.end(key, at)


MODEL = "model"


def timeline(events: Iterable[StoredEvent]) -> list[TimelineSpan]:
    """The spans of a run, in the order in which they started."""
    found = _Timeline()
    name = ""
    for stored in events:
        event: dict[str, Any] = msgspec.json.decode(stored.body)
        match event["event"]:
            case "run_started":
                name = event["model"] or event["provider"]
            case "turn_started":
                found.end(MODEL, stored.at)
                found.start(MODEL, "model", name, stored.at)
            case "call_started":
                found.end(MODEL, stored.at)
                call = event["call"]
                shown = event.get("title") or call["name"]
                found.start(call["id"], "tool", shown, stored.at, event.get("summary", ""))
            case "message_added" if event["message"].get("role") == "assistant":
                found.end(MODEL, stored.at)
            case "call_finished":
                found.end(event["call_id"], stored.at, event["status"])
            case "question_asked":
                found.start(event["id"], "waiting", event["kind"], stored.at, event["text"])
            case "question_answered":
                found.end(event["id"], stored.at, event["answer"])
            case "run_ended":
                found.end_all(stored.at)
    return found.spans
