"""What people paste about MCP servers, as data: JSON with comments and stray commas, a fenced block, TOML or YAML."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from toolcrib.config.yaml_text import parse
from toolcrib.core.attempt import attempt
from toolcrib.core.errors import ConfigError, UsageError
from toolcrib.dispatch.coercion import InvalidJson, read_json

_FENCE = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_STRING = r'("(?:\\.|[^"\\])*")'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRAY_COMMA = re.compile(_STRING + r"|,(?=\s*[}\]])", re.DOTALL)
_INNER_PART = re.compile(r'\s*"[^"\n]+"\s*:')
_TOML = re.compile(r"^\s*\[mcp_servers\b", re.MULTILINE)
_YAML = re.compile(r"^(mcp_servers|mcpServers|extensions)\s*:", re.MULTILINE)


def read_pasted(text: str) -> Any:
    """The data that the text stands for; raises UsageError with what is wrong with it."""
    text = text.removeprefix("\ufeff").replace("\u00a0", " ")
    if '"' not in text:
        # Pages make typographic quotes of straight ones.
        text = text.replace("\u201c", '"').replace("\u201d", '"')
    fenced = _FENCE.search(text)
    text = (fenced[1] if fenced else text).strip()
    if _TOML.search(text):
        return _toml(text)
    if not text.startswith(("{", "[")) and _YAML.search(text):
        return _yaml(text)
    return _json(text)


def _json(text: str) -> Any:
    text = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text).strip()
    if _INNER_PART.match(text):
        # The part between the outermost braces, as many pages show it.
        text = "{" + text.rstrip().rstrip(",") + "}"
    text = _STRAY_COMMA.sub(lambda found: found[1] or "", text)
    if not text.startswith("["):
        begin, end = text.find("{"), text.rfind("}")
        if begin < 0:
            raise UsageError(f"there is no JSON in {_shortened(text)}; `toolcrib mcp add --help` shows examples")
        text = text[begin : end + 1 if end > begin else None]
    try:
        return read_json(text)
    except InvalidJson as error:
        # Keys without quotes, and single quotes, are YAML.
        data, _ = attempt(parse, text, "the text")
        if data is not None and isinstance(data.data, dict):
            return data.data
        raise UsageError(f"this is not JSON: {error}; `toolcrib mcp add --help` shows examples") from error


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}; `toolcrib mcp add --help` shows examples") from error


def _yaml(text: str) -> Any:
    try:
        return parse(text, "the text").data
    except ConfigError as error:
        reason = str(error).partition(";")[0]
        raise UsageError(f"this is not YAML: {reason}; `toolcrib mcp add --help` shows examples") from error


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
