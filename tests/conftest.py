"""What all tests share: a home of their own, so that nobody's real settings are read or changed."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

SERVICES_ARE_REQUIRED = os.environ.get("TOOLCRIB_REQUIRE_SERVICES") == "1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty toolcrib home for the test and its subprocesses."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TOOLCRIB_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in (
        "HERMES_HOME",
        "TOOLCRIB_SAFE_MODE",
        "HERMES_SAFE_MODE",
        "TOOLCRIB_YOLO",
        "HERMES_YOLO_MODE",
        "PYTHONDONTWRITEBYTECODE",
        "NO_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where services are required, a skipped test that needs one has failed."""
    report = yield
    if SERVICES_ARE_REQUIRED and report.skipped and item.get_closest_marker("services"):
        report.outcome = "failed"
        report.longrepr = f"a required service is missing: {report.longrepr}"
    return report
