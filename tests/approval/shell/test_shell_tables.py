"""The figures that the analyser promises, on the labelled command lines."""

from __future__ import annotations

import pytest

from tests.approval.shell.shell_rows import CONTRACT_CLASSES, Row, read_rows, tables
from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.findings import Assessment


@pytest.fixture(scope="module", params=tables())
def assessed(request: pytest.FixtureRequest) -> list[tuple[Row, Assessment]]:
    return [(row, analyse(row.command)) for row in read_rows(request.param)]


@pytest.fixture
def judged(assessed: list[tuple[Row, Assessment]]) -> list[tuple[Row, str]]:
    return [(row, assessment.verdict) for row, assessment in assessed]


def share(hits: list[bool]) -> float:
    return 100 * sum(hits) / len(hits) if hits else 100.0


def missed(judged: list[tuple[Row, str]], wrong: tuple[str, ...]) -> str:
    return "\n".join(f"{verdict} {row.kind}: {row.command[:120]!r}" for row, verdict in judged if verdict in wrong)


def test_dangerous_commands_of_the_contract_are_found(judged: list[tuple[Row, str]]) -> None:
    """At least 97 % of the dangerous commands in the classes of the contract are asked about or blocked."""
    rows = [(row, verdict) for row, verdict in judged if row.label != "safe" and row.kind in CONTRACT_CLASSES]

    assert share([verdict != "safe" for _, verdict in rows]) >= 97, missed(rows, ("safe",))


def test_dangerous_commands_of_every_class_are_found(judged: list[tuple[Row, str]]) -> None:
    """At least 92 % of all dangerous commands are asked about or blocked."""
    rows = [(row, verdict) for row, verdict in judged if row.label != "safe"]

    assert share([verdict != "safe" for _, verdict in rows]) >= 92, missed(rows, ("safe",))


def test_harmless_commands_pass_without_a_question(judged: list[tuple[Row, str]]) -> None:
    """At most 4 % of the harmless commands are asked about, and none is blocked."""
    rows = [(row, verdict) for row, verdict in judged if row.label == "safe"]

    assert share([verdict == "safe" for _, verdict in rows]) >= 96, missed(rows, ("ask", "block"))
    assert not [row.command for row, verdict in rows if verdict == "block"]


def test_catastrophic_commands_are_blocked(judged: list[tuple[Row, str]]) -> None:
    """At least 95 % of the catastrophic commands are blocked."""
    rows = [(row, verdict) for row, verdict in judged if row.label == "catastrophic"]

    assert share([verdict == "block" for _, verdict in rows]) >= 95, missed(rows, ("safe", "ask"))


def test_what_is_not_understood_is_asked_about(assessed: list[tuple[Row, Assessment]]) -> None:
    """A labelled command that is no valid shell syntax is never safe."""
    for row, assessment in assessed:
        assert assessment.verdict != "safe" or not assessment.not_understood, row.command
