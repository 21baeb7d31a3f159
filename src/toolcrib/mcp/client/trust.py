"""What people agreed to when they let a tool of a server run: its description and its arguments, as they were then.

A server may change what a tool says about itself after it was trusted. So what was approved is kept, and a tool that
differs from it is asked about again, whatever was granted, with the difference in the question.

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
from toolcrib.mcp.names import Original

logger = logging.getLogger(__name__)

SHOWN_CHARS = 160
KEPT_CHARS = 4000
"""Of a description; the digest is of all of it."""


class Approved(msgspec.Struct, frozen=True):
    """A tool as it was when somebody first let it run."""

    digest: str
    description: str = ""
    arguments: tuple[str, ...] = ()
    name: str = ""
    """Ours, which grants refer to; empty since another tool took it over."""


class TrustStore:
    """What was approved, kept in the home. Safe from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._approved: dict[str, dict[str, Approved]] | None = None
        self._holders: dict[str, Original] = {}
        """Who was approved under a name of ours."""

    def change(self, name: str, original: Original, description: str, schema: JsonObject) -> str:
        """What is different from what was approved, for people; empty when nothing is, or nothing was approved."""
        with self._lock:
            before = self._known().get(original.server, {}).get(original.tool)
            holder = self._holders.get(name)
        if holder not in (None, original):
            server, tool = (one_line(text, SHOWN_CHARS) for text in holder)
            return f"the tool {tool!r} of the server {server!r} had this name"
        if before is None or before.digest == digest_of(original, description, schema):
            return ""
        if before.description[:KEPT_CHARS] != description[:KEPT_CHARS]:
            was, now = (one_line(text, SHOWN_CHARS) for text in (before.description, description))
            return f'its description was "{was}" and now is "{now}"'
        arguments = argument_names(schema)
        if before.arguments != arguments:
            return f"its arguments were {_listed(before.arguments)} and now are {_listed(arguments)}"
        return f"what it takes as {_listed(arguments)} is described in another way than before"

    def approve(self, name: str, original: Original, description: str, schema: JsonObject) -> None:
        """Remember a tool as it is now, and under which name of ours: somebody has let it run."""
        digest = digest_of(original, description, schema)
        approved = Approved(digest, description[:KEPT_CHARS], argument_names(schema), name)
        with self._lock:
            known = self._known()
            if known.get(original.server, {}).get(original.tool) == approved:
                return
            _put(known, original, approved)
            self._holders[name] = original
            self._save(original, approved)

    def forget(self, server: str) -> None:
        """Remember nothing of a server any more, because it was removed."""
        with self._lock:
            if self._known().pop(server, None) is not None:
                self._holders = {name: one for name, one in self._holders.items() if one.server != server}
                self._write(self._known())

    def _known(self) -> dict[str, dict[str, Approved]]:
        if self._approved is None:
            self._approved = self._read()
            self._holders = {
                approved.name: Original(server, tool)
                for server, tools in self._approved.items()
                for tool, approved in tools.items()
                if approved.name
            }
        return self._approved

    def _read(self) -> dict[str, dict[str, Approved]]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, dict[str, Approved]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("what was approved of MCP tools cannot be read from %s: %s", self._file, error)
            return {}

    def _save(self, original: Original, approved: Approved) -> None:
        """Adds to what other processes of ours wrote in the meantime."""
        now = self._read()
        _put(now, original, approved)
        self._write(now)

    def _write(self, content: dict[str, dict[str, Approved]]) -> None:
        try:
            with writing(self._file) as target:
                text = json.dumps(msgspec.to_builtins(content), ensure_ascii=False, indent=1, sort_keys=True)
                replace_file(target, text.encode("utf-8", "replace"), mode=OWNER_FILE)
        except ConfigError as error:
            # It holds in this process; only the next one asks again where it need not.
            logger.error("what was approved of an MCP tool could not be kept: %s", error)


def _put(known: dict[str, dict[str, Approved]], original: Original, approved: Approved) -> None:
    """Adds it, and takes its name from whoever had that before."""
    for tools in known.values():
        for tool, other in tools.items():
            if other.name == approved.name:
                tools[tool] = msgspec.structs.replace(other, name="")
    known.setdefault(original.server, {})[original.tool] = approved


def digest_of(original: Original, description: str, schema: JsonObject) -> str:
    """The same for the same tool with the same words about it, and for nothing else."""
    text = json.dumps([*original, description, schema], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def argument_names(schema: JsonObject) -> tuple[str, ...]:
    properties = schema.get("properties")
    return tuple(sorted(map(str, properties))) if isinstance(properties, dict) else ()


def _listed(names: tuple[str, ...]) -> str:
    return one_line(", ".join(names), SHOWN_CHARS) or "none"
