"""Reads a schedule as people and models write it.

0 9 * * 1-5            a cron expression: minute, hour, day, month, day of the week; @hourly, @daily …
every 2h               also 30m, 1d, 1w, "90 minutes", 1h30m
every monday at 9:00   also "every day at 18:30", "every weekday at 8am", "every mon, thu at 9"
in 30m                 once; also 30m alone
at 18:00               once, the next time that clocks show it; also "tomorrow 9:00"
2026-12-24 18:00       once; also 2026-12-24T18:00+01:00

The name of a time zone may stand behind each of them: `0 9 * * 1-5 Europe/Berlin`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import TypeVar

from cronsim import CronSim, CronSimError

from toolcrib.core.errors import UsageError
from toolcrib.core.lazy import lazy_pattern
from toolcrib.cron.schedule import LAST_MOMENT, Cron, Days, Once, Schedule, Steps
from toolcrib.cron.zones import first_moment, zone_named

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
    """The schedule that a text means, seen from `now`; raises UsageError, in one sentence with examples."""
    written = " ".join(text.split())
    if not written:
        raise UsageError(f"the schedule is empty; write for example {EXAMPLES}")
    if len(written) > MAX_CHARS:
        raise _not_understood(written, "it is too long")
    # Whole seconds: nobody means less, and dates count in them exactly.
    now = float(int(now))
    named = _IN_ZONE.fullmatch(written)
    if named is not None:
        return parse_schedule(named[1], zone_named(named[2]), now)
    for read in (_read_cron, _read_span, _read_date, _read_days, _read_time):
        found = read(written, zone, now)
        if found is not None:
            return _that_comes(found, written, now)
    raise _not_understood(written)


def _that_comes(schedule: Schedule, written: str, now: float) -> Schedule:
    if schedule.next_after(now) is not None:
        return schedule
    if isinstance(schedule, Once):
        there, here = (datetime.fromtimestamp(one, schedule.zone).isoformat(" ") for one in (schedule.at, now))
        raise UsageError(f"the time {written!r} has passed: it means {there}, and now it is {here}; name a later one")
    raise UsageError(f"the schedule {written!r} never comes: no day is like that; change its day or month")


def _read_cron(text: str, zone: tzinfo, _now: float) -> Schedule | None:
    words = text.split()
    if text.startswith("@") or text.lower() in ("hourly", "daily", "weekly", "monthly", "yearly"):
        name = "@" + text.lower().removeprefix("@")
        if name not in NICKNAMES:
            raise _not_understood(text, f"of the words with an @ there are {', '.join(NICKNAMES)}")
        return _cron(NICKNAMES[name], zone, text)
    if not re.match(r"[\d*]", text) or not all(re.fullmatch(r"[\d*?,/#A-Za-z-]+", word) for word in words):
        return None
    if len(words) == CRON_FIELDS:
        return _cron(text, zone, text)
    if any(word.startswith("*") for word in words):
        fields = "minute, hour, day, month and day of the week"
        raise _not_understood(text, f"a cron expression has five fields ({fields}), and this has {len(words)}")
    return None


def _cron(expression: str, zone: tzinfo, written: str) -> Cron:
    try:
        explained = CronSim(expression, datetime(2000, 1, 1)).explain()
    except CronSimError as error:
        raise _not_understood(written, f"as a cron expression it has a {str(error).lower()}") from None
    return Cron(expression=expression, zone=zone, meaning=explained[:1].lower() + explained[1:])


def _read_span(text: str, zone: tzinfo, now: float) -> Schedule | None:
    """`every 2h` is repeated; `in 30m`, or the span alone, comes once."""
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
        raise _not_understood(text, "that is longer than ten years")
    if not repeated:
        if not seconds:
            raise _not_understood(text, "that is no time at all")
        return Once(at=now + seconds, zone=zone)
    if seconds < SHORTEST_SECONDS:
        raise _not_understood(text, "the shortest step is one minute")
    if all(unit in "dw" for _, unit in parts):
        return Days(days=seconds // UNITS["d"], since=now, zone=zone, meaning=_every(seconds))
    return Steps(seconds=seconds, since=now, zone=zone, meaning=_every(seconds))


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
    return Once(at=at, zone=zone)


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
        raise _not_understood(text, "that is too far away")
    return Once(at=at, zone=zone)


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
            raise UsageError(f"{text!r} is no offset from UTC, as `+01:00` is")
        return timezone(-offset if text[0] == "-" else offset)
    return zone_named(text)


def _checked(text: str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except ValueError as error:
        raise _not_understood(text, str(error)) from None


def _not_understood(text: str, why: str = "") -> UsageError:
    because = f" ({why})" if why else ""
    return UsageError(f"cannot read the schedule {text[:80]!r}{because}; write for example {EXAMPLES}")
