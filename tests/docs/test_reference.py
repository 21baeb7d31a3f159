"""The reference agrees with the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.docs_blocks import REPOSITORY

REFERENCE = REPOSITORY / "docs" / "reference"
SCRIPT = REPOSITORY / "scripts" / "write_reference.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)


def _pages(folder: Path) -> dict[Path, str]:
    return {page.relative_to(folder): page.read_text(encoding="utf-8") for page in folder.rglob("*.md")}


@pytest.mark.services
def test_the_reference_is_what_the_code_says() -> None:
    """No page of the reference has drifted; `make docs` mends it."""
    done = _run("--check")

    assert done.returncode == 0, done.stderr


@pytest.mark.services
def test_a_page_that_drifted_is_named_with_what_to_type(tmp_path: Path) -> None:
    """The check fails for a changed page, a missing one and one too many, and says how to mend it."""
    pages = tmp_path / "reference"
    shutil.copytree(REFERENCE, pages)
    (pages / "hooks.md").write_text("# Hooks\n", encoding="utf-8")
    (pages / "errors.md").unlink()
    (pages / "old.md").write_text("# Old\n", encoding="utf-8")
    tool = pages / "tools" / "read_file.md"
    tool.write_text(tool.read_text(encoding="utf-8").replace("| `path` | text |", "| `path` | whole number |"))

    done = _run("--check", "--folder", str(pages))

    assert done.returncode == 1
    named = re.findall(r"docs/reference/([a-z_/-]+\.md)", done.stderr)
    assert named == ["errors.md", "hooks.md", "old.md", "tools/read_file.md"]
    assert "make docs" in done.stderr


@pytest.mark.services
def test_writing_twice_gives_the_same_pages(tmp_path: Path) -> None:
    """The pages depend on the code alone: no dates, no paths, no order of the day."""
    assert _run("--folder", str(tmp_path)).returncode == 0

    written = _pages(tmp_path)

    assert written == _pages(REFERENCE)
    assert not any(str(REPOSITORY) in text for text in written.values())


def test_every_switch_in_the_environment_is_documented() -> None:
    """A variable of our own that the code reads stands in the reference."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    named = set(re.findall(r"\bTOOLCRIB_[A-Z_]+\b", code))
    named |= {f"TOOLCRIB_{name}" for name in re.findall(r"_switch\(environ, \"([A-Z_]+)\"\)", code)}

    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")

    assert len(named) >= 3
    assert {name for name in named if f"`{name}`" not in page} == set()


def test_every_result_that_is_not_ok_is_explained() -> None:
    """The page on results names each error type that the pipeline gives."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "src/toolcrib/dispatch").glob("*.py"))
    given = set(re.findall(r'"(?:error|blocked|cancelled|timeout)", "([a-z_]+)"', code))

    page = (REPOSITORY / "docs/concepts/results-and-budgets.md").read_text(encoding="utf-8")

    assert len(given) >= 5
    assert {name for name in given if f"`{name}`" not in page} == set()


def test_the_architecture_page_names_every_package_in_its_layer() -> None:
    """The table has the packages of the import rules, in their order, from top to bottom."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    rules = next(one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    enforced = [{name.strip().removeprefix("toolcrib.") for name in row.split("|")} for row in rules["layers"]]
    elsewhere = {"__main__", "testing", "version"}
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = page.partition("## Layers")[2].partition("|---|---|")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", rows)

    assert named == sorted(named, key=lambda name: next(n for n, row in enumerate(enforced) if name in row))
    assert set(named) == set[str]().union(*enforced) - elsewhere
