"""Jobs for tests, and a clock that stands still until it is moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.cron.drafts import JobAuthor, JobDraft, new_job
from toolcrib.cron.jobs import Job
from toolcrib.cron.store import JobStore

START = 1_800_000_000.0
"""A Friday, 08:00:00 UTC."""
MINUTE, HOUR = 60.0, 3600.0


class Clock:
    """The time of the wall, as the test sets it."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def settings_of(home: Path) -> Settings:
    return load_settings(Home(home))


def make_job(store: JobStore, schedule: str = "every 1h", *, now: float = START, **wishes: Any) -> Job:
    """A job of a person, in UTC, that is kept in the store."""
    wishes = {"prompt": "Look at the harbour", "timezone": "UTC", **wishes}
    home = store.database.path
    assert home is not None
    author = JobAuthor(folder=str(home.parent))
    return store.add(new_job(JobDraft(schedule=schedule, **wishes), author, settings_of(home.parent), store, now))
