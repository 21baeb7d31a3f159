"""Settings for tests of the web tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.config.load import read_config
from toolcrib.config.paths import Home, find_home
from toolcrib.config.settings import Settings


def web_settings(home: Path | None = None, **sections: Any) -> Settings:
    """The settings that a config file with these sections gives."""
    place = Home(home) if home else find_home()
    settings, warnings = read_config(json.dumps(sections), place)
    assert not warnings
    return msgspec.structs.replace(settings, home=place)
