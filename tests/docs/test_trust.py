"""The trust page says what is measured."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.docs_blocks import REPOSITORY

PAGE = REPOSITORY / "docs" / "trust.md"
SCRIPT = REPOSITORY / "bench" / "approval.py"
MEASURED = re.compile(r"<!-- measured: .*? -->\n(.*)<!-- end of what was measured -->", re.DOTALL)
pytestmark = pytest.mark.services


def _measure(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--no-peer", "--write", "--page", str(page)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)


def _measured(page: Path) -> str:
    found = MEASURED.search(page.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def _judgements(page: Path) -> tuple[list[str], str]:
    """What does not depend on the machine: the shares that toolcrib reached, and its misses."""
    text = _measured(page)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [line.split(" | ") for line in rows if "%" in line or line.startswith("| harmless blocked")]
    return [f"{row[0]}: {row[1]}, {row[3]}" for row in cells], text[text.index("toolcrib judges") :]


@pytest.fixture(scope="module")
def measured_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("trust") / "trust.md"
    shutil.copy(PAGE, page)
    done = _measure(page)
    assert done.stderr == ""
    return page


def test_the_page_shows_the_judgements_of_today(measured_page: Path) -> None:
    """The shares and the misses on the page are those of the code; `make bench` mends it."""
    shares, misses = _judgements(PAGE)

    assert len(shares) == 5
    assert (shares, misses) == _judgements(measured_page)


def test_writing_leaves_the_text_around_the_figures_alone(measured_page: Path) -> None:
    """What the gate promises is written by people; a measurement changes only what it measured."""
    assert MEASURED.sub("", measured_page.read_text(encoding="utf-8")) == MEASURED.sub(
        "", PAGE.read_text(encoding="utf-8")
    )


def test_a_page_without_a_place_for_figures_is_refused(tmp_path: Path) -> None:
    """Nothing is written to a page that lacks the two marks, and the message names them."""
    page = tmp_path / "other.md"
    page.write_text("# Other\n", encoding="utf-8")

    done = _measure(page)

    assert done.returncode == 1
    assert "end of what was measured" in done.stderr
    assert page.read_text(encoding="utf-8") == "# Other\n"
