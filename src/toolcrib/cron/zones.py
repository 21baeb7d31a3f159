"""Time zones, and the moment at which the clocks of one first show a time of day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from toolcrib.core.errors import UsageError, nearest_names

LOCALTIME = Path("/etc/localtime")
MAX_NAME_CHARS = 100


def zone_named(name: str) -> tzinfo:
    """The time zone of that name, as `Europe/Berlin`; raises UsageError with the nearest names."""
    try:
        if len(name) <= MAX_NAME_CHARS:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    known = available_timezones()
    if not known:
        raise UsageError(f"there are no time zones on this machine, so {name!r} is unknown; install `tzdata`")
    # People name the city.
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(known, reverse=True)}
    near = nearest_names(name, known) or [cities[city] for city in nearest_names(name, cities)]
    meant = f" did you mean {' or '.join(repr(one) for one in near)}?" if near else ""
    raise UsageError(f"unknown time zone {name[:MAX_NAME_CHARS]!r};{meant} names look like `Europe/Berlin` or `UTC`")


def machine_zone(environ: Mapping[str, str], localtime: Path = LOCALTIME) -> tzinfo:
    """The time zone of this machine: TZ where it is set, else what the system says."""
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
    # It knows the offset of today alone, which is all that such a machine tells.
    return datetime.now(UTC).astimezone().tzinfo or UTC


def zone_label(zone: tzinfo, moment: float) -> str:
    """The name of a zone for people: `Europe/Berlin`, else its offset at that moment."""
    key = getattr(zone, "key", None)
    return str(key) if key else "UTC" + ("" if zone is UTC else datetime.fromtimestamp(moment, zone).isoformat()[-6:])


def first_moment(wall: datetime, zone: tzinfo) -> float:
    """The first moment at which clocks in the zone show this time of day, or a later one if they skip it.

    A time that clocks show twice, because they were set back, is meant the first time.
    """
    early = wall.replace(tzinfo=zone, fold=0)
    moment = early.timestamp()
    if datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0) == wall:
        return moment
    # Clocks are set forward over it: found by halving between the two readings of a time that does not exist.
    before, after = int(wall.replace(tzinfo=zone, fold=1).timestamp()) - 1, int(moment)
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) >= wall:
            after = middle
        else:
            before = middle
    return float(after)
