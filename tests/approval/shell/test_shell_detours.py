"""Code that reaches a shell or another interpreter on a detour is still read."""

from __future__ import annotations

import pytest

from tests.approval.shell.shell_detours import (
    BUILD_FILES,
    CARRIERS,
    CATASTROPHIC,
    DESCRIPTORS,
    FILTERS,
    HARMLESS,
    HOOKS,
    LOOPS,
    OUTPUT_SUBSTITUTIONS,
    REFERENCES,
    SQL_TEXT,
    UNREAD,
)
from toolcrib.approval.analyse import analyse


@pytest.mark.parametrize("command", OUTPUT_SUBSTITUTIONS)
def test_data_into_an_output_substitution_is_followed(command: str) -> None:
    """What flows into `>( … )` is data into the program inside."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", FILTERS)
def test_text_from_an_unmodelled_filter_is_no_known_code(command: str) -> None:
    """A filter whose output is not computed exactly gives unknown text, which no shell runs unasked."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", REFERENCES)
def test_variable_that_stands_for_another_is_followed(command: str) -> None:
    """A name reference means the variable behind it, never its own text."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", DESCRIPTORS)
def test_code_from_a_descriptor_is_read(command: str) -> None:
    """An interpreter that reads from a file descriptor runs what was opened there; unknown text is asked about."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", BUILD_FILES)
def test_build_file_written_and_used_in_one_line_is_read(command: str) -> None:
    """Recipes and scripts that the same line wrote are judged when a build tool runs them."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", LOOPS)
def test_loop_that_deletes_what_another_command_lists_is_asked_about(command: str) -> None:
    """A loop over a listing is the same as `xargs`."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", HOOKS)
def test_hook_that_runs_a_string_is_judged(command: str) -> None:
    """Strings that bash runs later, and libraries that it loads, are judged like commands."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", SQL_TEXT)
def test_sql_in_a_string_is_read(command: str) -> None:
    """SQL that the server runs from a string is SQL."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", CARRIERS)
def test_command_inside_another_program_is_judged(command: str) -> None:
    """Programs that carry commands of their own are looked into."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", UNREAD)
def test_what_was_not_read_is_asked_about(command: str) -> None:
    """Values past the limit of a loop, and code from an unknown variable, are not taken for harmless."""
    assessment = analyse(command)

    assert assessment.verdict != "safe"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", CATASTROPHIC)
def test_catastrophe_is_blocked(command: str) -> None:
    """A fully known command that wipes a disk, or changes the whole machine, is blocked."""
    assert analyse(command).verdict == "block"


@pytest.mark.parametrize("command", HARMLESS)
def test_harmless_neighbour_passes(command: str) -> None:
    """The everyday use of the same features passes without a question."""
    assert analyse(command).verdict == "safe", analyse(command).findings
