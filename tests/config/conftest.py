"""A home in a folder of its own, for every test that needs one."""

from pathlib import Path

import pytest

from toolcrib.config.paths import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def write_config(home: Home):
    def write(text: str) -> Home:
        home.root.mkdir(exist_ok=True)
        home.config_file.write_bytes(text.encode("utf-8"))
        return home

    return write
