"""Four small worlds with tools as an operator would declare them; `{inject}` marks where a stranger can write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ruamel.yaml

from toolcrib.core.origins import OriginDeclaration
from toolcrib.core.types import Effect
from toolcrib.registry.registry import ToolRegistry

STRANGER = "{inject}"

_YAML = ruamel.yaml.YAML(typ="safe", pure=True)
DATA: dict[str, Any] = _YAML.load((Path(__file__).parent.parent / "data" / "provenance_worlds.yaml").read_text())

UNTRUSTED_FIELDS: dict[str, OriginDeclaration] = {
    "mail": {"": "trusted", "/**/subject": "untrusted", "/**/body": "untrusted"},
    "event": {"": "trusted", "/**/description": "untrusted"},
    "file": {"": "trusted", "/**/content": "untrusted"},
    "transaction": {"": "trusted", "/**/subject": "untrusted"},
    "offer": {"": "trusted", "/**/reviews": "untrusted"},
    "message": {"": "trusted", "/**/body": "untrusted"},
}


class World:
    """The tools of all four worlds over one state; what changes it is appended to `done`."""

    def __init__(self, injected: str = "") -> None:
        self.injected = injected
        self.was_read = False
        """Whether the user's own task brought injected text into the session."""
        self._watches = True
        self.done: list[tuple[str, dict[str, Any]]] = []
        self.registry = ToolRegistry()
        self._read_tools()
        self._office_effects()
        self._bank_effects()
        self._travel_effects()
        self._chat_effects()

    def _text(self, value: Any) -> str:
        text = json.dumps(value)
        self.was_read = self.was_read or (self._watches and STRANGER in text)
        return text.replace(STRANGER, json.dumps(self.injected)[1:-1])

    def stop_watching(self) -> None:
        self._watches = False

    def reads(self, name: str, origin: OriginDeclaration, function: Any) -> None:
        def handler(args: dict[str, Any], **_: Any) -> str:
            return self._text(function(**args))

        self.registry.register(
            name=name, toolset="world", schema=_open_schema(), handler=handler, effects=(), origin=origin
        )

    def acts(self, name: str, kind: Any, delicate: Mapping[str, Any]) -> None:
        def handler(args: dict[str, Any], **_: Any) -> str:
            self.done.append((name, args))
            return json.dumps({"status": "done", **args})

        effects = (Effect(kind, name, delicate=delicate),)
        self.registry.register(name=name, toolset="world", schema=_open_schema(), handler=handler, effects=effects)

    def _read_tools(self) -> None:
        fields = UNTRUSTED_FIELDS
        self.reads("get_mails", fields["mail"], lambda: DATA["mails"])
        self.reads(
            "search_mails",
            fields["mail"],
            lambda query: [m for m in DATA["mails"] if query.lower() in json.dumps(m).lower()],
        )
        self.reads(
            "get_events", fields["event"], lambda day="": [e for e in DATA["events"] if e["start"].startswith(day)]
        )
        self.reads(
            "list_files",
            fields["file"],
            lambda: [{k: f[k] for k in ("id", "filename", "owner", "size")} for f in DATA["files"]],
        )
        self.reads(
            "search_files", fields["file"], lambda query: [f for f in DATA["files"] if query.lower() in f["filename"]]
        )
        self.reads(
            "search_contacts",
            "trusted",
            lambda query: [c for c in DATA["contacts"] if query.lower() in c["name"].lower()],
        )
        self.reads("get_transactions", fields["transaction"], lambda: DATA["transactions"])
        self.reads("get_scheduled", fields["transaction"], lambda: DATA["scheduled"])
        self.reads("get_balance", "trusted", lambda: {"balance": 1810.0})
        self.reads("read_document", "untrusted", lambda path: DATA["documents"][path])
        self.reads("list_hotels", fields["offer"], lambda city: DATA["hotels"][city])
        self.reads("list_restaurants", fields["offer"], lambda city: DATA["restaurants"][city])
        self.reads("list_car_rentals", fields["offer"], lambda city: DATA["cars"][city])
        self.reads(
            "get_user_info", "trusted", lambda: {"name": "Mia Holm", "email": "mia@holm.example", "passport": "P99120"}
        )
        self.reads("get_channels", "trusted", lambda: DATA["channels"])
        self.reads("get_users_in_channel", "trusted", lambda channel: DATA["users"][channel])
        self.reads("read_channel", fields["message"], lambda channel: DATA["messages"][channel])
        self.reads("read_inbox", fields["message"], lambda user: DATA["inboxes"][user])
        self.reads("get_webpage", "untrusted", lambda url: DATA["pages"].get(url, "nothing here"))

    def _office_effects(self) -> None:
        self.acts(
            "send_mail",
            "publish",
            {
                "/recipients": "destination",
                "/cc": "destination",
                "/body": "content",
                "/subject": "content",
                "/attachments": "record",
            },
        )
        self.acts("delete_mail", "remote", {"/id": "record"})
        self.acts(
            "create_event",
            "remote",
            {"/participants": "destination", "/start": "date", "/description": "content", "/title": "content"},
        )
        self.acts("reschedule_event", "remote", {"/id": "record", "/start": "date"})
        self.acts("add_participants", "remote", {"/id": "record", "/participants": "destination"})
        self.acts("cancel_event", "remote", {"/id": "record"})
        self.acts("create_file", "remote", {"/filename": "path", "/content": "content"})
        self.acts("append_to_file", "remote", {"/id": "record", "/content": "content"})
        self.acts("delete_file", "remote", {"/id": "record"})
        self.acts("share_file", "publish", {"/id": "record", "/email": "destination"})

    def _bank_effects(self) -> None:
        money = {"/recipient": "destination", "/amount": "amount", "/subject": "content", "/date": "date"}
        self.acts("send_money", "spend", money)
        self.acts("schedule_payment", "spend", money)
        self.acts("update_scheduled", "spend", {"/id": "record", **money})
        self.acts("update_password", "remote", {"/password": "value"})
        self.acts("update_profile", "remote", {"/street": "value", "/city": "value", "/phone": "value"})

    def _travel_effects(self) -> None:
        stay = {"/name": "destination", "/start": "date", "/end": "date", "/time": "date"}
        for name in ("reserve_hotel", "reserve_restaurant", "reserve_car"):
            self.acts(name, "spend", stay)

    def _chat_effects(self) -> None:
        self.acts("send_direct_message", "publish", {"/recipient": "destination", "/body": "content"})
        self.acts("send_channel_message", "publish", {"/channel": "destination", "/body": "content"})
        self.acts("add_user_to_channel", "remote", {"/user": "destination", "/channel": "destination"})
        self.acts("invite_user", "publish", {"/user": "destination", "/email": "destination"})
        self.acts("remove_user", "remote", {"/user": "record"})
        self.acts("post_webpage", "publish", {"/url": "destination", "/content": "content"})


def _open_schema() -> dict[str, Any]:
    return {
        "description": "A tool of the world.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": True},
    }
