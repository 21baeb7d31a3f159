"""The layout of the installed package."""

from __future__ import annotations

from pathlib import Path

import toolcrib

SOURCE = Path(toolcrib.__file__).parent


def test_every_folder_with_python_files_is_a_package() -> None:
    """A folder without `__init__.py` is a namespace package: it imports from a checkout, but is easily left out."""
    folders = {file.parent for file in SOURCE.rglob("*.py")}

    missing = sorted(str(folder.relative_to(SOURCE)) for folder in folders if not (folder / "__init__.py").exists())

    assert missing == []
