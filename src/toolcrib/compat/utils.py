"""`utils`: flags in environment variables, and atomic file writes."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolcrib.config.files import OWNER_FILE
from toolcrib.config.load import YES, is_yes

TRUTHY_STRINGS = frozenset(YES)


def is_truthy_value(value: Any, default: bool = False) -> bool:
    """Whether a value from a config or variable means yes; None means `default`, unknown words mean no."""
    if value is None:
        return default
    if isinstance(value, str):
        return is_yes(value)
    return bool(value)


def env_var_enabled(name: str, default: str = "") -> bool:
    """Whether a variable is set to a word that means yes."""
    return is_truthy_value(os.environ.get(name, default))


def env_int(key: str, default: int = 0) -> int:
    """A variable as a whole number; `default` if it is unset or no number."""
    try:
        return int(os.environ.get(key, "").strip())
    except ValueError:
        return default


def env_float(key: str, default: float = 0.0) -> float:
    """A variable as a number; `default` if it is unset or no number."""
    try:
        return float(os.environ.get(key, "").strip())
    except ValueError:
        return default


def env_bool(key: str, default: bool = False) -> bool:
    """A variable as a switch; `default` if it is unset."""
    return is_truthy_value(os.environ.get(key), default)


def atomic_replace(tmp_path: str | Path, target: str | Path) -> str:
    """Move a file over another; a link stays and its file is replaced. Returns the path that was written."""
    real = os.path.realpath(target)
    Path(tmp_path).replace(real)
    return real


def atomic_json_write(
    path: str | Path, data: Any, *, indent: int | None = 2, mode: int | None = None, **dump_kwargs: Any
) -> None:
    """Write JSON so that readers see the old or the new content; an existing file keeps its mode."""
    target = Path(os.path.realpath(path))
    # Before anything is created, so that data which is no JSON leaves no trace.
    text = json.dumps(data, indent=indent, **{"ensure_ascii": False, **dump_kwargs})
    target.parent.mkdir(parents=True, exist_ok=True)
    known = target.stat().st_mode & 0o7777 if target.exists() else OWNER_FILE
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    with ExitStack() as on_failure:
        on_failure.callback(Path(temporary).unlink, missing_ok=True)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        Path(temporary).chmod(known if mode is None else mode)
        atomic_replace(temporary, target)
        on_failure.pop_all()


def base_url_hostname(base_url: str) -> str:
    """The host of an address in lower case, with or without a scheme; "" if there is none."""
    text = (base_url or "").strip()
    try:
        return urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
