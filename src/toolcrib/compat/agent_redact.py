"""`agent.redact`: secrets in text, masked."""

from __future__ import annotations

import re
from typing import Any

from toolcrib.config.load import load_settings
from toolcrib.config.redact import MASK, redact
from toolcrib.core.errors import ConfigError

# `NAME_KEY=value` and `password: value`. In source code such lines are mostly no secrets, so it is left out there.
_ASSIGNMENT = re.compile(
    r"(?P<name>\b[\w-]{0,60}?(?:api_?key|token|secret|password|passwd|credentials?)[\"']?\s{0,5}[=:]\s{0,5})"
    r"(?P<quote>[\"']?)(?!\[secret\])(?P<value>[^\s\"',;&]{6,})(?P=quote)",
    re.IGNORECASE,
)


def redact_sensitive_text(
    text: Any,
    *,
    force: bool = False,
    code_file: bool = False,
    file_read: bool = False,
    redact_url_credentials: bool = False,  # noqa: ARG001 - always masked here
) -> Any:
    """The text with keys, tokens and passwords masked; None stays None.

    Does nothing if `security.redact_secrets` is off, unless `force` is true. Texts of files keep assignments that only
    look like passwords.
    """
    if text is None:
        return None
    said = text if isinstance(text, str) else str(text)
    if not said or not (force or _is_wanted()):
        return said
    masked = redact(said)
    if code_file or file_read:
        return masked
    return _ASSIGNMENT.sub(rf"\g<name>\g<quote>{MASK}\g<quote>", masked)


def _is_wanted() -> bool:
    try:
        return load_settings().security.redact_secrets
    except ConfigError:
        # A config that cannot be read switches nothing off.
        return True
