"""Everything in `examples/` runs and prints what `examples/expected/` says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.docs.docs_blocks import REPOSITORY, Block, Reader

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_prints_what_its_expected_file_says(example: Path, tmp_path: Path) -> None:
    """An example is a program of its own: it ends well and its output is known to the letter."""
    expected = (example.parent / "expected" / f"{example.stem}.txt").read_text(encoding="utf-8")

    printed = Reader(tmp_path).run(Block("python", "", 1), ["python", "-W", "error", str(example)])

    assert printed == expected


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_says_in_one_line_what_it_shows(example: Path) -> None:
    """The docstring of an example is one sentence."""
    docstring = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))

    assert docstring is not None
    assert docstring.endswith(".")
    assert "\n" not in docstring


def test_no_expected_output_is_left_over() -> None:
    """Each file in `examples/expected/` belongs to an example, and there are some."""
    expected = {path.stem for path in (REPOSITORY / "examples" / "expected").iterdir()}

    assert expected == {example.stem for example in EXAMPLES}
    assert len(EXAMPLES) >= 4
