"""Schedules: what texts mean, and when they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.core.errors import UsageError
from toolcrib.cron.schedule import (
    CronSchedule,
    Schedule,
    count_until,
    first_moment,
    machine_zone,
    parse_schedule,
    upcoming,
    zone_label,
    zone_named,
)

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 15, 17, 0, tzinfo=BERLIN).timestamp()
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "America/Havana", "Australia/Lord_Howe",
         "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia", "Asia/Beirut"]  # fmt: skip


def read(text: str, now: float = NOW) -> Schedule:
    return parse_schedule(text, BERLIN, now)


def said(schedule: Schedule, after: float = NOW, count: int = 3) -> list[str]:
    moments = islice(upcoming(schedule, after), count)
    return [datetime.fromtimestamp(one, schedule.zone).strftime("%a %m-%d %H:%M %z") for one in moments]


MEANINGS = [
    ("0 9 * * 1-5", ["Mon 11-16 09:00 +0100", "Tue 11-17 09:00 +0100", "Wed 11-18 09:00 +0100"]),
    ("30 8 * * mon,FRI", ["Mon 11-16 08:30 +0100", "Fri 11-20 08:30 +0100", "Mon 11-23 08:30 +0100"]),
    ("*/20 17 * * *", ["Sun 11-15 17:20 +0100", "Sun 11-15 17:40 +0100", "Mon 11-16 17:00 +0100"]),
    ("0 0 29 2 *", ["Tue 02-29 00:00 +0100", "Sun 02-29 00:00 +0100", "Fri 02-29 00:00 +0100"]),
    ("@hourly", ["Sun 11-15 18:00 +0100", "Sun 11-15 19:00 +0100", "Sun 11-15 20:00 +0100"]),
    ("daily", ["Mon 11-16 00:00 +0100", "Tue 11-17 00:00 +0100", "Wed 11-18 00:00 +0100"]),
    ("every 2h", ["Sun 11-15 19:00 +0100", "Sun 11-15 21:00 +0100", "Sun 11-15 23:00 +0100"]),
    ("every 90 minutes", ["Sun 11-15 18:30 +0100", "Sun 11-15 20:00 +0100", "Sun 11-15 21:30 +0100"]),
    ("Every 1h30m", ["Sun 11-15 18:30 +0100", "Sun 11-15 20:00 +0100", "Sun 11-15 21:30 +0100"]),
    ("every 1d", ["Mon 11-16 17:00 +0100", "Tue 11-17 17:00 +0100", "Wed 11-18 17:00 +0100"]),
    ("every week", ["Sun 11-22 17:00 +0100", "Sun 11-29 17:00 +0100", "Sun 12-06 17:00 +0100"]),
    ("every monday 9:00", ["Mon 11-16 09:00 +0100", "Mon 11-23 09:00 +0100", "Mon 11-30 09:00 +0100"]),
    ("every mon, thu at 9pm", ["Mon 11-16 21:00 +0100", "Thu 11-19 21:00 +0100", "Mon 11-23 21:00 +0100"]),
    ("every weekday at 8:30", ["Mon 11-16 08:30 +0100", "Tue 11-17 08:30 +0100", "Wed 11-18 08:30 +0100"]),
    ("in 30m", ["Sun 11-15 17:30 +0100"]),
    ("2 days", ["Tue 11-17 17:00 +0100"]),
    ("at 18:00", ["Sun 11-15 18:00 +0100"]),
    ("16:00", ["Mon 11-16 16:00 +0100"]),
    ("tomorrow at 9", ["Mon 11-16 09:00 +0100"]),
    ("2026-12-24", ["Thu 12-24 00:00 +0100"]),
    ("2026-12-24T18:00", ["Thu 12-24 18:00 +0100"]),
    ("2026-12-24 18:00 America/New_York", ["Thu 12-24 18:00 -0500"]),
    ("0 9 * * 1-5 America/New_York", ["Mon 11-16 09:00 -0500", "Tue 11-17 09:00 -0500", "Wed 11-18 09:00 -0500"]),
    ("every monday at 9:00 Asia/Tokyo", ["Mon 11-16 09:00 +0900", "Mon 11-23 09:00 +0900", "Mon 11-30 09:00 +0900"]),
    ("at 18:00 UTC", ["Sun 11-15 18:00 +0000"]),
    ("in 30m Etc/GMT+1", ["Sun 11-15 15:30 -0100"]),
    ("2026-12-24T18:00:00Z", ["Thu 12-24 18:00 +0000"]),
    ("2026-12-24T18:00+0530", ["Thu 12-24 18:00 +0530"]),
]


@pytest.mark.parametrize(("text", "expected"), MEANINGS, ids=[text for text, _ in MEANINGS])
def test_a_text_means_these_moments(text: str, expected: list[str]) -> None:
    """Cron expressions, spans, weekdays, times and dates are read as people mean them."""
    assert said(read(text)) == expected


REFUSED = [
    ("", "empty"),
    ("whenever", "cannot parse the schedule 'whenever'"),
    ("61 * * * *", "bad minute"),
    ("* * * *", "five fields"),
    ("0 0 9 * * *", "five fields"),
    ("0 0 30 2 *", "bad day-of-month"),
    ("@reboot", "@hourly"),
    ("every 10s", "one minute"),
    ("every 0h", "one minute"),
    ("in 0m", "it is zero"),
    ("in 99999999d", "ten years"),
    ("2026-13-01", "month"),
    ("2020-01-01 10:00", "has passed"),
    ("today 9:00", "has passed"),
    ("at 25:00", "hour"),
    ("every day at 13pm", "no 13 pm"),
    ("2026-12-24 18:00 Europe/Berln", "did you mean 'Europe/Berlin'"),
    ("2026-12-24T18:00+99:00", "not a valid UTC offset"),
    ("9" * 5000 + " * * * *", "too long"),
]


@pytest.mark.parametrize(("text", "because"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_what_cannot_be_read_is_said_in_one_sentence(text: str, because: str) -> None:
    """A bad schedule names what is wrong with it, and shows how to write one."""
    with pytest.raises(UsageError) as refused:
        read(text)

    assert because in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "`" in str(refused.value) or "choose a later one" in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text does anything but give a schedule with a next moment, or a UsageError."""
    try:
        schedule = read(text)
    except UsageError:
        return
    assert (schedule.next_after(NOW) or 0) > NOW


minutes = st.one_of(st.integers(0, 59).map(str), st.sampled_from(["*", "*/5", "*/17", "0,30", "10-20"]))
hours = st.one_of(st.integers(0, 23).map(str), st.sampled_from(["*", "*/2", "0-23", "1-3", "0,2,23"]))
days = st.sampled_from(["* * *", "* * 0", "1 * *", "* 3,10 *", "* * 1-5", "L * *", "13 * 5"])
moments = st.integers(
    int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2060, 1, 1, tzinfo=UTC).timestamp())
)


def cron(minute: str, hour: str, day: str, zone: str) -> CronSchedule:
    return CronSchedule(expression=f"{minute} {hour} {day}", zone=ZoneInfo(zone), meaning="")


@given(minutes, hours, days, st.sampled_from(ZONES), moments)
def test_moments_of_a_cron_expression_only_grow(minute: str, hour: str, day: str, zone: str, start: int) -> None:
    """Each next moment is later than the one before, and the same from wherever between them one looks."""
    schedule = cron(minute, hour, day, zone)

    found = [float(start), *islice(upcoming(schedule, start), 5)]

    for before, after in pairwise(found):
        assert before < after
        assert schedule.next_after((before + after) / 2) == after
        assert schedule.next_after(after - 0.001) == after


spans = st.sampled_from(["every 1m", "every 7m", "every 2h", "every 1d", "every 3d", "every 2w", "every 1d 6h"])


@given(spans, st.sampled_from(ZONES), moments, st.integers(0, 400 * 86_400))
def test_moments_of_a_span_only_grow(span: str, zone: str, since: int, later: int) -> None:
    """The same for spans, however long after their beginning one looks."""
    schedule = parse_schedule(span, ZoneInfo(zone), since)

    found = [float(since + later), *islice(upcoming(schedule, since + later), 5)]

    for before, after in pairwise(found):
        assert before < after
        assert schedule.next_after((before + after) / 2) == after


@settings(max_examples=25)
@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from(ZONES), st.integers(2000, 2059))
def test_a_time_of_day_comes_once_a_day_when_clocks_change(hour: int, minute: int, zone: str, year: int) -> None:
    """A job for a time of day runs once on every day that there is: not twice, and never not at all."""
    if zone == "Pacific/Apia" and year == 2011:
        return  # A whole day was left out there.
    schedule = cron(str(minute), str(hour), "* * *", zone)
    place = ZoneInfo(zone)
    first, last = (datetime(one, 1, 1, tzinfo=place).timestamp() for one in (year, year + 1))

    found = [one for one in islice(upcoming(schedule, first - 1), 368) if one < last]

    dates = [datetime.fromtimestamp(one, place).date() for one in found]
    assert dates == [dates[0] + timedelta(days=number) for number in range(len(dates))]
    assert len(dates) in (365, 366)
    for one in found:
        shown = datetime.fromtimestamp(one, place)
        off = (shown.hour * 60 + shown.minute) - (hour * 60 + minute)
        assert 0 <= off <= 60  # Later than meant only where clocks skip that time.


@settings(max_examples=25)
@given(st.sampled_from(["*/30 2 * * *", "0,15,30,45 1-3 * * *"]), st.sampled_from(ZONES), st.integers(2000, 2059))
@pytest.mark.services
def test_times_that_clocks_show_twice_are_meant_once(expression: str, zone: str, year: int) -> None:
    """In the night in which clocks go back, no time of day of a job is run a second time."""
    place = ZoneInfo(zone)
    schedule = CronSchedule(expression=expression, zone=place, meaning="")
    first, last = (datetime(one, 1, 1, tzinfo=place).timestamp() for one in (year, year + 1))

    found = []
    for one in upcoming(schedule, first):
        if one >= last:
            break
        found.append(datetime.fromtimestamp(one, place).replace(tzinfo=None, fold=0))

    assert len(found) == len(set(found))


def test_a_job_of_every_hour_goes_by_the_time_that_passes() -> None:
    """Where clocks go back, a job of every hour runs in both of the hours; where they go forward, in the next."""
    back = datetime(2026, 10, 25, 0, 30, tzinfo=BERLIN).timestamp()
    forward = datetime(2026, 3, 29, 0, 30, tzinfo=BERLIN).timestamp()

    assert said(read("0 * * * *", back), back, 4) == [
        "Sun 10-25 01:00 +0200", "Sun 10-25 02:00 +0200", "Sun 10-25 02:00 +0100", "Sun 10-25 03:00 +0100",
    ]  # fmt: skip
    assert said(read("0 0-23 * * *", forward), forward, 2) == ["Sun 03-29 01:00 +0100", "Sun 03-29 03:00 +0200"]


def test_a_time_that_clocks_skip_is_made_up_for_at_the_end_of_the_gap() -> None:
    """A job for half past two runs at three in the night in which there is no half past two."""
    before = datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN).timestamp()

    assert said(read("30 2 * * *", before), before, 2) == ["Sun 03-29 03:00 +0200", "Mon 03-30 02:30 +0200"]
    assert said(read("2026-03-29 02:30", before), before, 1) == ["Sun 03-29 03:00 +0200"]


def test_days_keep_their_time_of_day() -> None:
    """`every 1d` means the same time of day, also behind a change of clocks."""
    start = datetime(2026, 10, 24, 9, 0, tzinfo=BERLIN).timestamp()

    assert said(read("every 1d", start), start, 2) == ["Sun 10-25 09:00 +0100", "Mon 10-26 09:00 +0100"]


@given(st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1)), st.sampled_from(ZONES))
def test_the_first_moment_is_the_first(wall: datetime, zone: str) -> None:
    """At that moment clocks show the time or a later one, and a second before they show an earlier one."""
    wall = wall.replace(microsecond=0)
    place = ZoneInfo(zone)

    moment = first_moment(wall, place)

    assert datetime.fromtimestamp(moment, place).replace(tzinfo=None, fold=0) >= wall
    assert datetime.fromtimestamp(moment - 1, place).replace(tzinfo=None, fold=0) < wall


def test_passed_moments_are_counted_up_to_a_limit() -> None:
    """The count holds the first and the last moment, and stops at the limit."""
    schedule = read("every 1m")
    first = schedule.next_after(NOW) or 0

    assert count_until(schedule, first, first, 100) == 1
    assert count_until(schedule, first, first + 600, 100) == 11
    assert count_until(schedule, first, first + 86_400, 100) == 100


def test_an_unknown_zone_names_the_nearest() -> None:
    """Who names the city alone is told the zone."""
    with pytest.raises(UsageError, match="'Europe/Berlin'"):
        zone_named("Berlin")


@pytest.mark.parametrize("name", ["../../etc/passwd", "Europe/", "\0", "x" * 5000])
def test_no_name_of_a_zone_reads_other_files(name: str) -> None:
    """What is no zone is refused, whatever it looks like."""
    with pytest.raises(UsageError, match="unknown time zone"):
        zone_named(name)


def test_the_zone_of_the_machine(tmp_path: Path) -> None:
    """TZ counts first, then the link of the system, then its offset."""
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Asia/Tokyo")

    assert zone_label(machine_zone({"TZ": "Europe/Paris"}, link), 0) == "Europe/Paris"
    assert zone_label(machine_zone({}, link), 0) == "Asia/Tokyo"
    assert zone_label(machine_zone({}, tmp_path / "missing"), 0).startswith("UTC")
