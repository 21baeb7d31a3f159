"""Secrets in the settings of MCP servers: moved from the config to variables in `.env`, and masked for display."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolcrib.config.redact import MASK, mask_shapes

PREFIX = "MCP_"
_LAST_WORDS = frozenset(
    "KEY APIKEY TOKEN PASSWORD PASSWD PASS PAT CREDENTIAL CREDENTIALS COOKIE BEARER SIGNATURE".split()  # noqa: SIM905
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SCHEME = re.compile(r"((?:bearer|basic|token|apikey|key)\s+)(\S.*)", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(
    r"<.*>|\[.*\]|\{.*\}|\.{3}|…|[x*]{3,}"
    r"|.*(?:\byour|your[-_ ]|placeholder|change[-_ ]?me|replace[-_ ]?(?:me|with)|[-_ ]here\b|insert[-_ ]).*",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"(?<=[?&])(?P<name>[^=&#\s]+)=(?P<value>[^&#\s]+)")
_ASSIGNED = re.compile(r"(?P<head>-{0,2}(?P<name>[A-Za-z][\w-]*)=)(?P<value>.+)", re.DOTALL)
_HEADER = re.compile(r"(?P<head>(?P<name>[A-Za-z][\w-]*):\s*)(?P<value>\S.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}")


class SecretExtractor:
    """Replaces the secrets of a server with variables; collects the values for `.env` in `variables`."""

    def __init__(self, server: str, taken: Mapping[str, str]) -> None:
        """`taken` holds the existing variables, whose values must not change."""
        self.variables: dict[str, str] = {}
        self._server = server
        self._taken = taken

    def extract(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with variables instead of secrets."""
        changed = dict(settings)
        for key in ("env", "headers"):
            if isinstance(changed.get(key), dict):
                changed[key] = {name: self._value(name, value) for name, value in changed[key].items()}
        if isinstance(changed.get("args"), list):
            changed["args"] = self._words(changed["args"])
        if isinstance(changed.get("url"), str):
            changed["url"] = _PARAMETER.sub(
                lambda found: f"{found['name']}={self._value(found['name'], found['value'])}", changed["url"]
            )
        oauth = changed.get("oauth")
        if isinstance(oauth, dict) and isinstance(oauth.get("client_secret"), str):
            changed["oauth"] = {**oauth, "client_secret": self._value("client_secret", oauth["client_secret"])}
        return changed

    def _words(self, words: list[Any]) -> list[Any]:
        moved: list[Any] = []
        option = ""
        for word in map(str, words):
            parts = _ASSIGNED.fullmatch(word) or _HEADER.fullmatch(word)
            if parts is not None and is_secret_name(parts["name"]):
                moved.append(parts["head"] + self._value(parts["name"], parts["value"]))
            elif option and not word.startswith("-"):
                moved.append(self._value(option, word))
            elif mask_shapes(word) != word:
                moved.append(self._value("argument", word))
            else:
                moved.append(word)
            option = word if word.startswith("-") and "=" not in word else ""
        return moved

    def _value(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        is_secret = is_secret_name(name) or mask_shapes(value) != value
        if not value.strip() or "${" in value or not is_secret:
            return value
        scheme = _SCHEME.fullmatch(value)
        head, secret = (scheme[1], scheme[2]) if scheme else ("", value)
        variable = self._name(name, secret)
        if not _PLACEHOLDER.fullmatch(secret):
            # The person has to replace a placeholder such as YOUR_API_KEY.
            self.variables[variable] = secret
        return f"{head}${{{variable}}}"

    def _name(self, name: str, secret: str) -> str:
        """An unused name for the variable."""
        server, key = _upper(self._server), _upper(name)
        wanted = PREFIX + (key if key.startswith(f"{server}_") else f"{server}_{key}")
        if _PLACEHOLDER.fullmatch(secret):
            return wanted
        known = {**self._taken, **self.variables}
        candidate, number = wanted, 2
        while known.get(candidate, secret) != secret:
            candidate, number = f"{wanted}_{number}", number + 1
        return candidate


def is_secret_name(name: str) -> bool:
    """Whether a variable, header or option of this name holds a secret."""
    words = [word.upper() for word in _WORDS.findall(name)]
    return bool(words) and (words[-1] in _LAST_WORDS or "SECRET" in words or "AUTHORIZATION" in words)


def without_secrets(settings: Any, name: str = "") -> Any:
    """The settings of servers for display: masks what has the name or the shape of a secret."""
    if isinstance(settings, dict):
        return {key: without_secrets(value, str(key)) for key, value in settings.items()}
    if isinstance(settings, list):
        return [without_secrets(value, name) for value in settings]
    if not isinstance(settings, str) or not settings or "${" in settings:
        return settings
    return MASK if is_secret_name(name) else mask_shapes(settings)


def variables_in(settings: Any) -> set[str]:
    """The variables that the settings refer to."""
    if isinstance(settings, str):
        return set(_VARIABLE.findall(settings))
    inner = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    return {name for item in inner for name in variables_in(item)}


def own_variables(server: str, settings: Any) -> set[str]:
    """The variables that `SecretExtractor` may have created for a server."""
    return {name for name in variables_in(settings) if name.startswith(f"{PREFIX}{_upper(server)}_")}


def _upper(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])", "_", name).strip("_").upper()
