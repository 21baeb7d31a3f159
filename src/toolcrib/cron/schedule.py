"""When a job runs. `next_after` is pure: the same moment always gives the same answer.

What happens when clocks are changed: a time of day that clocks show twice is meant once, the first time; one that they
skip is made up for at the end of the gap. A schedule that runs in every hour of the day, and one in steps of hours or
minutes, goes by the time that passes, so that neither an hour is left out nor one is done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Protocol

from cronsim import CronSim
from msgspec import Struct

from toolcrib.cron.zones import first_moment

LAST_MOMENT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""Behind it, dates cannot be counted with any more."""
FIRST_MOMENT = 0.0


class Schedule(Protocol):
    """When something is due. Moments are seconds since 1970."""

    @property
    def meaning(self) -> str:
        """What it was taken for, in words."""
        ...

    @property
    def zone(self) -> tzinfo: ...

    def next_after(self, moment: float) -> float | None:
        """The first moment after this one; None when there is none any more."""
        ...


class Once(Struct, frozen=True, kw_only=True):
    """One moment."""

    at: float
    zone: tzinfo

    @property
    def meaning(self) -> str:
        return "once"

    def next_after(self, moment: float) -> float | None:
        return self.at if self.at > moment else None


class Steps(Struct, frozen=True, kw_only=True):
    """Every so many seconds, counted from a moment that is none of them itself."""

    seconds: int
    since: float
    zone: tzinfo
    meaning: str

    def next_after(self, moment: float) -> float | None:
        steps = max(0, int((moment - self.since) // self.seconds)) + 1
        # A division of large numbers may be off by one either way.
        while self.since + steps * self.seconds <= moment:
            steps += 1
        found = self.since + steps * self.seconds
        return found if found < LAST_MOMENT else None


class Days(Struct, frozen=True, kw_only=True):
    """Every so many days at the time of day of a moment that is none of them itself."""

    days: int
    since: float
    zone: tzinfo
    meaning: str

    def next_after(self, moment: float) -> float | None:
        start = datetime.fromtimestamp(self.since, self.zone).replace(tzinfo=None)
        passed = datetime.fromtimestamp(max(moment, self.since), self.zone).replace(tzinfo=None) - start
        steps = max(1, passed.days // self.days)
        while True:
            try:
                found = first_moment(start + timedelta(days=steps * self.days), self.zone)
            except OverflowError:
                return None
            if found > moment:
                return found if found < LAST_MOMENT else None
            steps += 1


class Cron(Struct, frozen=True, kw_only=True):
    """The times of a cron expression of five fields, which was checked."""

    expression: str
    zone: tzinfo
    meaning: str

    @property
    def in_every_hour(self) -> bool:
        return len(CronSim(self.expression, datetime(2000, 1, 1)).hours) == 24

    def next_after(self, moment: float) -> float | None:
        moment = max(moment, FIRST_MOMENT)
        if moment >= LAST_MOMENT:
            return None
        here = datetime.fromtimestamp(moment, self.zone)
        if self.in_every_hour:
            minute, _, *others = self.expression.split()
            return _first_later(CronSim(" ".join([minute, "*", *others]), here), moment, self.zone)
        return _first_later(CronSim(self.expression, here.replace(tzinfo=None, fold=0)), moment, self.zone)


def _first_later(times: Iterator[datetime], moment: float, zone: tzinfo) -> float | None:
    for time in times:
        found = first_moment(time, zone) if time.tzinfo is None else time.timestamp()
        if found > moment:
            return found
    return None


def upcoming(schedule: Schedule, moment: float) -> Iterator[float]:
    """All moments after this one, in order."""
    found = schedule.next_after(moment)
    while found is not None:
        yield found
        found = schedule.next_after(found)


def count_until(schedule: Schedule, first: float, last: float, limit: int) -> int:
    """How many moments there are from one of them up to `last`, which counts, too; never more than `limit`."""
    later = takewhile(lambda moment: moment <= last, upcoming(schedule, first))
    return 1 + sum(1 for _ in islice(later, limit - 1))
