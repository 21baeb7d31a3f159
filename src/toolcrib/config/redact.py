"""Masks secrets in text that leaves the process for a person or a model: logs, errors, records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.lazy import lazy_pattern

MASK = "[secret]"
MIN_SECRET_CHARS = 8

# Every pattern takes linear time on any text: no unbounded repeat can start inside another.
_KEY_SHAPES = lazy_pattern(
    r"\b(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and many others
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}"
    r"|hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}"
    r")"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{5,}"
)
# A digit, padding or a capital inside the word distinguishes a credential from "basic authentication".
_AUTHORIZATION = lazy_pattern(
    r"\b((?i:bearer|basic))\s{1,20}(?=[\w.~+/-]{0,200}?(?:[0-9=]|[a-z][A-Z]))[A-Za-z0-9._~+/=-]{12,}"
)
_URL_PASSWORD = lazy_pattern(r"(?<=://)([^\s/:@]{0,80}):[^\s/@]{1,200}@")
_URL_PARAMETER = lazy_pattern(
    r"([?&](?:[\w-]{0,30}(?:key|token|secret|password|signature)|appid|sig)=)[^&\s\"'<>]{4,}", re.IGNORECASE
)
_SECRET_NAME = lazy_pattern(r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


def redact(text: str) -> str:
    """The text with known secret values and things shaped like keys replaced by a mask."""
    return redactor()(text)


def redactor() -> Callable[[str], str]:
    """`redact` with the current secrets, for several texts at once, because finding the secrets takes longest."""
    secrets = known_secrets()

    def redact_with(text: str) -> str:
        for value in secrets:
            text = text.replace(value, MASK)
        return mask_shapes(text)

    return redact_with


def mask_shapes(text: str) -> str:
    """The text with everything shaped like a key or credential masked; does not look up known secrets."""
    text = _KEY_SHAPES.sub(MASK, text)
    text = _AUTHORIZATION.sub(rf"\1 {MASK}", text)
    text = _URL_PARAMETER.sub(rf"\1{MASK}", text)
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)


def has_secret(text: str) -> bool:
    """Whether the text contains a known secret or something shaped like a key."""
    return _KEY_SHAPES.search(text) is not None or any(value in text for value in known_secrets())


def known_secrets() -> list[str]:
    """The values of password-like variables that are set now, longest first."""
    values = {os.environ.get(name, "") for name in list(os.environ) if _is_secret(name)}
    return sorted((value for value in values if len(value) >= MIN_SECRET_CHARS), key=len, reverse=True)


def _is_secret(name: str) -> bool:
    # Tool files can put anything into the table.
    about = OPTIONAL_ENV_VARS.get(name)
    return (isinstance(about, dict) and bool(about.get("password"))) or _is_secret_name(name)


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    # Asked about every variable for every text, and their names hardly change.
    return _SECRET_NAME.search(name) is not None
