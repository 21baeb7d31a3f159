"""Remembers each MCP tool as it was when somebody first approved it: its description and its arguments.

A server may change a tool's description after it was trusted. So the approved version is stored, and a tool that
differs from it needs approval again, whatever was granted before; the question shows the difference.

    mcp_trust.json    {"server": {"tool": {"digest": …, "description": …, "name": …}}}
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from pathlib import Path

import msgspec

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.core.errors import ConfigError
from toolcrib.core.types import JsonObject
from toolcrib.mcp.client.untrusted_text import one_line
from toolcrib.mcp.names import ToolOrigin

logger = logging.getLogger(__name__)

SHOWN_CHARS = 160
KEPT_CHARS = 4000
"""Of a description; the digest covers all of it."""


class ApprovedTool(msgspec.Struct, frozen=True):
    """A tool as it was when somebody first approved it."""

    digest: str
    description: str = ""
    arguments: tuple[str, ...] = ()
    name: str = ""
    """The registered name, which grants refer to; empty once another tool took it over."""


class TrustStore:
    """The approved tools of one home. Safe from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._approved: dict[str, dict[str, ApprovedTool]] | None = None
        self._holders: dict[str, ToolOrigin] = {}
        """Which tool was approved under a registered name."""

    def describe_change(self, name: str, origin: ToolOrigin, description: str, schema: JsonObject) -> str:
        """How a tool differs from what was approved; empty if it does not, or if nothing was approved."""
        with self._lock:
            before = self._known().get(origin.server, {}).get(origin.tool)
            holder = self._holders.get(name)
        if holder not in (None, origin):
            server, tool = (one_line(text, SHOWN_CHARS) for text in holder)
            return f"this name belonged to the tool {tool!r} of the server {server!r}"
        if before is None or before.digest == digest_of(origin, description, schema):
            return ""
        if before.description[:KEPT_CHARS] != description[:KEPT_CHARS]:
            was, now = (one_line(text, SHOWN_CHARS) for text in (before.description, description))
            return f'its description was "{was}" and is now "{now}"'
        arguments = argument_names(schema)
        if before.arguments != arguments:
            return f"its arguments were {_join(before.arguments)} and are now {_join(arguments)}"
        return f"the schema of its arguments changed ({_join(arguments)})"

    def approve(self, name: str, origin: ToolOrigin, description: str, schema: JsonObject) -> None:
        """Remember a tool as it is now, and its registered name, because somebody approved it."""
        digest = digest_of(origin, description, schema)
        approved = ApprovedTool(digest, description[:KEPT_CHARS], argument_names(schema), name)
        with self._lock:
            known = self._known()
            if known.get(origin.server, {}).get(origin.tool) == approved:
                return
            _put(known, origin, approved)
            self._holders[name] = origin
            self._save(origin, approved)

    def forget(self, server: str) -> None:
        """Forget the tools of a server that was removed."""
        with self._lock:
            if self._known().pop(server, None) is not None:
                self._holders = {name: one for name, one in self._holders.items() if one.server != server}
                self._write(self._known())

    def _known(self) -> dict[str, dict[str, ApprovedTool]]:
        if self._approved is None:
            self._approved = self._read()
            self._holders = {
                approved.name: ToolOrigin(server, tool)
                for server, tools in self._approved.items()
                for tool, approved in tools.items()
                if approved.name
            }
        return self._approved

    def _read(self) -> dict[str, dict[str, ApprovedTool]]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, dict[str, ApprovedTool]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("cannot read the approved MCP tools from %s: %s", self._file, error)
            return {}

    def _save(self, origin: ToolOrigin, approved: ApprovedTool) -> None:
        """Add a tool to what other processes wrote in the meantime."""
        now = self._read()
        _put(now, origin, approved)
        self._write(now)

    def _write(self, content: dict[str, dict[str, ApprovedTool]]) -> None:
        try:
            with writing(self._file) as target:
                text = json.dumps(msgspec.to_builtins(content), ensure_ascii=False, indent=1, sort_keys=True)
                replace_file(target, text.encode("utf-8", "replace"), mode=OWNER_FILE)
        except ConfigError as error:
            # It still holds in this process; only the next one asks again.
            logger.error("cannot store the approval of an MCP tool: %s", error)


def _put(known: dict[str, dict[str, ApprovedTool]], origin: ToolOrigin, approved: ApprovedTool) -> None:
    """Add a tool and take its name away from whichever tool had it before."""
    for tools in known.values():
        for tool, other in tools.items():
            if other.name == approved.name:
                tools[tool] = msgspec.structs.replace(other, name="")
    known.setdefault(origin.server, {})[origin.tool] = approved


def digest_of(origin: ToolOrigin, description: str, schema: JsonObject) -> str:
    """A digest that is equal only for the same tool with the same description and schema."""
    text = json.dumps([*origin, description, schema], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def argument_names(schema: JsonObject) -> tuple[str, ...]:
    properties = schema.get("properties")
    return tuple(sorted(map(str, properties))) if isinstance(properties, dict) else ()


def _join(names: tuple[str, ...]) -> str:
    return one_line(", ".join(names), SHOWN_CHARS) or "none"
