"""Code that a command only prepares, and the ways by which an earlier command changes what a later one means."""

from __future__ import annotations

import pytest

from tests.approval.shell.shell_definitions import (
    CODE_FILES,
    HARMLESS,
    LISTS,
    PREPARED,
    RUN_AT_ONCE,
    SURROUNDINGS,
    WAY_BACK,
)
from toolcrib.approval.analyse import analyse


@pytest.mark.parametrize("command", PREPARED)
def test_code_for_a_later_command_is_asked_about_when_it_is_defined(command: str) -> None:
    """A function, alias or hook outlives its command line, so a dangerous one is asked about at once."""
    assessment = analyse(command)

    assert assessment.verdict == "ask"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", RUN_AT_ONCE)
def test_catastrophe_that_is_defined_and_run_is_blocked(command: str) -> None:
    """A catastrophe behind a name, a copy or a list is blocked where the same line runs it."""
    assert analyse(command).verdict == "block"


@pytest.mark.parametrize("command", WAY_BACK)
def test_directory_that_was_left_is_remembered(command: str) -> None:
    """`$OLDPWD`, `cd -`, `~-` and `popd` lead back to the directory that the shell would go to."""
    assert analyse(command, cwd="/home/anna/shop", home="/home/anna").verdict == "block"


@pytest.mark.parametrize("command", SURROUNDINGS)
def test_variable_behind_a_wrapper_counts_like_one_in_front(command: str) -> None:
    """Variables that make a program load other code are seen behind `env` and `sudo` too."""
    assert analyse(command).verdict == "ask"


@pytest.mark.parametrize("command", LISTS)
def test_list_that_nobody_has_read_is_asked_about(command: str) -> None:
    """What is done to an unknown list of things, or to the rest of a long one, is not taken for harmless."""
    assert analyse(command).verdict == "ask"


@pytest.mark.parametrize("command", CODE_FILES)
def test_code_in_a_file_option_is_followed(command: str) -> None:
    """A script that comes over the input, or that the line has written, is code like any other."""
    assessment = analyse(command)

    assert assessment.verdict == "ask"
    assert not assessment.not_understood


@pytest.mark.parametrize("command", HARMLESS)
def test_harmless_neighbour_passes(command: str) -> None:
    """The everyday use of the same features passes without a question."""
    assert analyse(command).verdict == "safe", analyse(command).findings
