"""The package map: every folder and module of the package, with one line and its main types, as Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from reference_source import SOURCE, table

PACKAGE = SOURCE / "toolcrib"
MAX_TYPES = 6


def package_map() -> Iterator[str]:
    yield "# Package map\n"
    yield "Where to find what in `src/toolcrib`: each module in one line, with its main types."
    yield "[Contributing](../../CONTRIBUTING.md) says where a new thing goes, and"
    yield "[Architecture](../architecture.md) how the layers fit together.\n"
    for folder in _packages(PACKAGE):
        name = "/".join(folder.relative_to(PACKAGE).parts)
        yield f"## {name or 'toolcrib'}\n"
        yield f"{_summary(folder / '__init__.py')}\n"
        modules = [file for file in sorted(folder.glob("*.py")) if file.name != "__init__.py"]
        if modules:
            rows = [(f"`{file.stem}`", _summary(file), ", ".join(_types(file))) for file in modules]
            yield from table(("module", "holds", "main types"), rows)


def _packages(folder: Path) -> Iterator[Path]:
    yield folder
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield from _packages(inner)


def _summary(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _types(file: Path) -> list[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    names = [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [f"`{name}`" for name in names[:MAX_TYPES]] + (["…"] if len(names) > MAX_TYPES else [])
