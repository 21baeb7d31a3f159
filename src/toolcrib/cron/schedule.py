"""When a job runs: schedules, and how to parse them as people and models write them.

0 9 * * 1-5            a cron expression: minute, hour, day, month, day of the week; @hourly, @daily …
every 2h               also 30m, 1d, 1w, "90 minutes", 1h30m
every monday at 9:00   also "every day at 18:30", "every weekday at 8am", "every mon, thu at 9"
in 30m                 once; also 30m alone
at 18:00               once, the next time that clocks show it; also "tomorrow 9:00"
2026-12-24 18:00       once; also 2026-12-24T18:00+01:00

A time zone may follow each of them: `0 9 * * 1-5 Europe/Berlin`.

`next_after` is pure: the same moment always gives the same answer. When clocks change, a time of day that occurs twice
counts only the first time, and one that is skipped is made up for at the end of the gap. Schedules that run in every
hour of the day, and intervals of hours or minutes, go by elapsed time, so no hour is skipped or repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from toolcrib.core.errors import UsageError, nearest_names
from toolcrib.core.lazy import lazy_pattern

LAST_MOMENT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""Date arithmetic fails beyond this."""
FIRST_MOMENT = 0.0


class Schedule(Protocol):
    """When something is due. Moments are seconds since 1970."""

    @property
    def meaning(self) -> str:
        """The schedule in words, as it was understood."""
        ...

    @property
    def zone(self) -> tzinfo: ...

    def next_after(self, moment: float) -> float | None:
        """The first moment after this one; None if there is none."""
        ...


class OnceSchedule(Struct, frozen=True, kw_only=True):
    """A single moment."""

    at: float
    zone: tzinfo

    @property
    def meaning(self) -> str:
        return "once"

    def next_after(self, moment: float) -> float | None:
        return self.at if self.at > moment else None


class IntervalSchedule(Struct, frozen=True, kw_only=True):
    """Every `seconds`, counted from `since`, which is not itself due."""

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


class DailySchedule(Struct, frozen=True, kw_only=True):
    """Every `days` at the time of day of `since`, which is not itself due."""

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


class CronSchedule(Struct, frozen=True, kw_only=True):
    """A validated cron expression with five fields."""

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
    for wall in times:
        found = first_moment(wall, zone) if wall.tzinfo is None else wall.timestamp()
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
    """How many moments there are from `first` to `last`, both included; at most `limit`."""
    later = takewhile(lambda moment: moment <= last, upcoming(schedule, first))
    return 1 + sum(1 for _ in islice(later, limit - 1))


LOCALTIME = Path("/etc/localtime")
MAX_NAME_CHARS = 100


def zone_named(name: str) -> tzinfo:
    """The time zone with that name, such as `Europe/Berlin`; raises UsageError with the nearest names."""
    try:
        if len(name) <= MAX_NAME_CHARS:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = available_timezones()
    if not known:
        raise UsageError(f"unknown time zone {name!r}: this machine has no time zone data; install `tzdata`")
    # People often type just the city.
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(known, reverse=True)}
    near = nearest_names(name, known) or [cities[city] for city in nearest_names(name, cities)]
    meant = f" did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    raise UsageError(f"unknown time zone {name[:MAX_NAME_CHARS]!r};{meant} names look like `Europe/Berlin` or `UTC`")


def machine_zone(environ: Mapping[str, str], localtime: Path = LOCALTIME) -> tzinfo:
    """The time zone of this machine: TZ if it is set, otherwise the system's."""
    variable = environ.get("TZ", "").removeprefix(":")
    if variable:
        try:
            return ZoneInfo(variable)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return _system_zone()
    try:
        name = str(localtime.resolve()).partition("zoneinfo/")[2]
        with localtime.open("rb") as stream:
            return ZoneInfo.from_file(stream, key=name or None)
    except (OSError, ValueError):
        return _system_zone()


def _system_zone() -> tzinfo:
    # This has only today's offset, which is all that such a machine reveals.
    return datetime.now(UTC).astimezone().tzinfo or UTC


def zone_label(zone: tzinfo, moment: float) -> str:
    """A readable name for a zone: `Europe/Berlin`, or its offset at that moment."""
    key = getattr(zone, "key", None)
    return str(key) if key else "UTC" + ("" if zone is UTC else datetime.fromtimestamp(moment, zone).isoformat()[-6:])


def first_moment(wall: datetime, zone: tzinfo) -> float:
    """The first moment at which clocks in the zone show this time, or the end of the gap if they skip it.

    A time that occurs twice, because clocks were set back, means its first occurrence.
    """
    early = wall.replace(tzinfo=zone, fold=0)
    moment = early.timestamp()
    if datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0) == wall:
        return moment
    # Clocks skip this time: bisect between the two interpretations of a time that does not exist.
    before, after = int(wall.replace(tzinfo=zone, fold=1).timestamp()) - 1, int(moment)
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) >= wall:
            after = middle
        else:
            before = middle
    return float(after)


_T = TypeVar("_T")

EXAMPLES = "`0 9 * * 1-5`, `every 2h`, `every monday at 9:00 Europe/Berlin`, `in 30m` or `2026-12-24 18:00`"
MAX_CHARS = 200
CRON_FIELDS = 5
SHORTEST_SECONDS = 60
LONGEST_SECONDS = 10 * 366 * 86_400

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_UNIT = r"(?:s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?)"
_SPAN = lazy_pattern(rf"(?:\d{{1,9}}\s{{0,3}}{_UNIT}\s{{0,3}}){{1,5}}")
_PART = lazy_pattern(rf"(\d{{1,9}})\s{{0,3}}({_UNIT})")
_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY = r"(?:sun|mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?)(?:days?)?"
_TIME = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s?(?P<half>am|pm)?"
_DAYS_AT = lazy_pattern(
    rf"(?P<days>days?|weekdays?|weekends?|{_DAY}(?:(?:\s?,\s?|\s?,?\sand\s|\s){_DAY}){{0,6}})(?:\s(?:at\s)?{_TIME})?"
)
_AT = lazy_pattern(rf"(?:(?P<day>today|tomorrow)\s(?:at\s)?|at\s)?{_TIME}")
_IN_ZONE = lazy_pattern(r"(.+)\s([A-Z][\w+-]{1,40}(?:/[A-Za-z][\w+-]{0,40}){1,2}|UTC)")
_DATE = lazy_pattern(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?:[tT\s]\s?(?P<time>\d{1,2}:\d{2}(?::\d{2})?)(?:\.\d{1,9})?)?"
    r"\s?(?P<zone>[zZ]|[+-]\d{2}:?\d{2}|[A-Za-z][\w+-]{1,40}(?:/[\w+-]{1,40}){0,2})?"
)


def parse_schedule(text: str, zone: tzinfo, now: float) -> Schedule:
    """Parse a schedule relative to `now`; raises UsageError with examples."""
    written = " ".join(text.split())
    if not written:
        raise UsageError(f"the schedule is empty; examples: {EXAMPLES}")
    if len(written) > MAX_CHARS:
        raise _not_understood(written, "it is too long")
    # Whole seconds, because date arithmetic is exact in them.
    now = float(int(now))
    named = _IN_ZONE.fullmatch(written)
    if named is not None:
        return parse_schedule(named[1], zone_named(named[2]), now)
    for read in (_read_cron, _read_span, _read_date, _read_days, _read_time):
        found = read(written, zone, now)
        if found is not None:
            return _require_upcoming(found, written, now)
    raise _not_understood(written)


def _require_upcoming(schedule: Schedule, written: str, now: float) -> Schedule:
    if schedule.next_after(now) is not None:
        return schedule
    if isinstance(schedule, OnceSchedule):
        there, here = (datetime.fromtimestamp(one, schedule.zone).isoformat(" ") for one in (schedule.at, now))
        raise UsageError(f"the time {written!r} has passed: it means {there}, and it is now {here}; choose a later one")
    raise UsageError(f"the schedule {written!r} never occurs, because no such day exists; change its day or month")


def _read_cron(text: str, zone: tzinfo, _now: float) -> Schedule | None:
    words = text.split()
    if text.startswith("@") or text.lower() in ("hourly", "daily", "weekly", "monthly", "yearly"):
        name = "@" + text.lower().removeprefix("@")
        if name not in NICKNAMES:
            raise _not_understood(text, f"the known nicknames are {', '.join(NICKNAMES)}")
        return _cron(NICKNAMES[name], zone, text)
    if not re.match(r"[\d*]", text) or not all(re.fullmatch(r"[\d*?,/#A-Za-z-]+", word) for word in words):
        return None
    if len(words) == CRON_FIELDS:
        return _cron(text, zone, text)
    if any(word.startswith("*") for word in words):
        fields = "minute, hour, day, month and day of the week"
        raise _not_understood(text, f"a cron expression has five fields ({fields}), but this has {len(words)}")
    return None


def _cron(expression: str, zone: tzinfo, written: str) -> CronSchedule:
    try:
        explained = CronSim(expression, datetime(2000, 1, 1)).explain()
    except CronSimError as error:
        raise _not_understood(written, f"as a cron expression it has a {str(error).lower()}") from None
    return CronSchedule(expression=expression, zone=zone, meaning=explained[:1].lower() + explained[1:])


def _read_span(text: str, zone: tzinfo, now: float) -> Schedule | None:
    """`every 2h` repeats; `in 30m`, or the span alone, runs once."""
    lowered = text.lower()
    repeated = lowered.startswith("every ")
    span = lowered.removeprefix("every ").removeprefix("in ")
    if repeated and re.fullmatch(_UNIT, span) and span not in ("s", "m", "h", "d", "w"):
        span = f"1 {span}"
    if not _SPAN.fullmatch(span):
        return None
    parts = [(int(number), unit[0]) for number, unit in _PART.findall(span)]
    seconds = sum(number * UNITS[unit] for number, unit in parts)
    if seconds > LONGEST_SECONDS:
        raise _not_understood(text, "it is longer than ten years")
    if not repeated:
        if not seconds:
            raise _not_understood(text, "it is zero")
        return OnceSchedule(at=now + seconds, zone=zone)
    if seconds < SHORTEST_SECONDS:
        raise _not_understood(text, "the shortest interval is one minute")
    if all(unit in "dw" for _, unit in parts):
        return DailySchedule(days=seconds // UNITS["d"], since=now, zone=zone, meaning=_every(seconds))
    return IntervalSchedule(seconds=seconds, since=now, zone=zone, meaning=_every(seconds))


def _every(seconds: int) -> str:
    words = []
    for name, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count} {name}" + ("s" if count > 1 else ""))
    return f"every {words[0].removeprefix('1 ') if len(words) == 1 else ' '.join(words)}"


def _read_days(text: str, zone: tzinfo, _now: float) -> Schedule | None:
    """`every monday at 9:00`, as a cron expression."""
    lowered = re.sub(r"^daily\s(?=at\s|\d)", "every day ", text.lower())
    found = _DAYS_AT.fullmatch(lowered.removeprefix("every "))
    if found is None or not lowered.startswith("every "):
        return None
    clock = _clock(found, text) if found["hour"] else time()
    kind = found["days"]
    if kind.startswith(("day", "weekday", "weekend")):
        days = {"day": "*", "weekd": "1-5", "weeke": "0,6"}[re.match(r"day|weekd|weeke", kind)[0]]  # type: ignore[index]
    else:
        days = ",".join(str(_DAY_NAMES.index(name[:3])) for name in re.findall(_DAY, kind))
    return _cron(f"{clock.minute} {clock.hour} * * {days}", zone, text)


def _read_time(text: str, zone: tzinfo, now: float) -> Schedule | None:
    """`at 18:00`, `tomorrow 9am`: once."""
    found = _AT.fullmatch(text.lower())
    if found is None or not (found["day"] or found["minute"] or found["half"] or text.lower().startswith("at ")):
        return None
    clock, today = _clock(found, text), datetime.fromtimestamp(now, zone).date()
    if found["day"] == "tomorrow":
        today += timedelta(days=1)
    at = first_moment(datetime.combine(today, clock), zone)
    if at <= now and not found["day"]:
        at = first_moment(datetime.combine(today + timedelta(days=1), clock), zone)
    return OnceSchedule(at=at, zone=zone)


def _clock(found: re.Match[str], text: str) -> time:
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if found["half"] and not 1 <= hour <= 12:
        raise _not_understood(text, f"there is no {hour} {found['half']}")
    if found["half"]:
        hour = hour % 12 + (12 if found["half"] == "pm" else 0)
    return _checked(text, lambda: time(hour, minute))


def _read_date(text: str, zone: tzinfo, _now: float) -> Schedule | None:
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    if found["zone"]:
        zone = _zone(found["zone"])
    day, clock = found["date"], found["time"] or "00:00"
    wall = _checked(text, lambda: datetime.fromisoformat(f"{day}T{clock.zfill(5 if clock.count(':') == 1 else 8)}"))
    at = _moment(wall, zone) if wall.year > 1 else -1.0
    if at >= LAST_MOMENT:
        raise _not_understood(text, "it is too far in the future")
    return OnceSchedule(at=at, zone=zone)


def _moment(wall: datetime, zone: tzinfo) -> float:
    try:
        return first_moment(wall, zone)
    except (OverflowError, OSError):
        return LAST_MOMENT


def _zone(text: str) -> tzinfo:
    if text in "zZ":
        return UTC
    if text[0] in "+-":
        digits = text[1:].replace(":", "")
        offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        if offset >= timedelta(days=1):
            raise UsageError(f"{text!r} is not a valid UTC offset; write it like `+01:00`")
        return timezone(-offset if text[0] == "-" else offset)
    return zone_named(text)


def _checked(text: str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except ValueError as error:
        raise _not_understood(text, str(error)) from None


def _not_understood(text: str, why: str = "") -> UsageError:
    because = f" ({why})" if why else ""
    return UsageError(f"cannot parse the schedule {text[:80]!r}{because}; examples: {EXAMPLES}")
