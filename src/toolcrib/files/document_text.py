"""Extracts the text of a document, in a separate process because a document may attack its parser.

Run as `python -I document_text.py KIND MEMORY_BYTES CPU_SECONDS MAX_CHARS` with the document on standard input. Prints
one line of JSON ({"note": …} or {"error": …} or {"missing": package}), then the text. Imports nothing of toolcrib.
"""

from __future__ import annotations

import itertools
import json
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def main() -> int:
    kind, *numbers = sys.argv[1:]
    memory, seconds, max_chars = map(int, numbers)
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(limit, (most, most))
    sys.setrecursionlimit(3_000)
    try:
        text, note = _limited(READERS[kind](sys.stdin.buffer), max_chars)
    except ImportError as error:
        return _answer({"missing": error.name or str(error)})
    except _Unreadable as error:
        return _answer({"error": str(error)})
    except MemoryError:
        return _answer({"error": "it needs too much memory"})
    except Exception as error:  # noqa: BLE001 - a reader of hostile documents may raise anything
        return _answer({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    return _answer({"note": note}, text)


class _Unreadable(Exception):
    """A document without text, for a known reason."""


def _answer(head: dict[str, str], text: str = "") -> int:
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + text.encode(errors="replace"))
    sys.stdout.buffer.flush()
    return 0


def _limited(pieces: Iterator[str], max_chars: int) -> tuple[str, str]:
    kept: list[str] = []
    left = max_chars
    for piece in pieces:
        kept.append(piece[:left])
        left -= len(piece) + 1
        if left <= 0:
            return "\n".join(kept), f"only the first {max_chars} characters of its text are included"
    return "\n".join(kept), ""


def read_pdf(file: BinaryIO) -> Iterator[str]:
    import pypdf  # noqa: PLC0415 - an extra, and each run needs one reader only

    reader = pypdf.PdfReader(file)
    if reader.is_encrypted and not reader.decrypt(""):
        raise _Unreadable("it is locked by a password")
    total = len(reader.pages)
    for number, page in enumerate(reader.pages, 1):
        yield f"--- page {number} of {total} ---"
        text = page.extract_text().strip()
        yield text or "[no text on this page; it may be a picture]"


def read_notebook(file: BinaryIO) -> Iterator[str]:
    notebook = json.loads(file.read().decode("utf-8-sig"))
    cells = notebook.get("cells")
    if cells is None:
        sheets = notebook.get("worksheets")
        if sheets is None:
            raise _Unreadable("it has no cells")
        cells = [cell for sheet in sheets for cell in sheet.get("cells", [])]
    for number, cell in enumerate(cells, 1):
        yield f"--- cell {number} [{cell.get('cell_type', 'unknown')}] ---"
        yield _joined(cell.get("source", cell.get("input", "")))
        for output in cell.get("outputs", []):
            yield f"--- output of cell {number} ---"
            yield _output(output)


def _output(output: dict[str, Any]) -> str:
    if "traceback" in output:
        return _ANSI.sub("", "\n".join(output["traceback"]))
    if "text" in output:
        return _ANSI.sub("", _joined(output["text"]))
    data = output.get("data", {})
    shown = [_joined(data[kind]) for kind in ("text/markdown", "text/plain") if kind in data][:1]
    shown += [f"[{kind}]" for kind in data if not kind.startswith("text/")]
    return "\n".join(shown)


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text)


def read_docx(file: BinaryIO) -> Iterator[str]:
    import docx.table  # noqa: PLC0415 - as above

    for part in docx.Document(file).iter_inner_content():
        if isinstance(part, docx.table.Table):
            yield from (" | ".join(cell.text.replace("\n", " ") for cell in row.cells) for row in part.rows)
            continue
        style = (part.style.name or "") if part.style is not None else ""
        heading = re.fullmatch(r"Heading (\d)", style)
        yield ("#" * int(heading[1]) + " " if heading else "") + part.text


def read_xlsx(file: BinaryIO) -> Iterator[str]:
    import openpyxl  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    values = openpyxl.load_workbook(file, read_only=True, data_only=True)
    file.seek(0)
    formulas = openpyxl.load_workbook(file, read_only=True)
    for sheet in values.worksheets:
        yield f"--- sheet {sheet.title} ---"
        twin = formulas[sheet.title]
        for one in (sheet, twin):
            # Don't trust the size that a file claims.
            one.reset_dimensions()
        rows = itertools.zip_longest(sheet.iter_rows(values_only=True), twin.iter_rows(values_only=True), fillvalue=())
        for number, (row, source) in enumerate(rows, 1):
            cells = [_cell(*pair) for pair in itertools.zip_longest(row, source)]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                yield f"{number}: " + " | ".join(cells)


def _cell(value: Any, formula: Any) -> str:
    if value is None:
        value = formula
    return "" if value is None else str(value).replace("\n", " ")


def read_pptx(file: BinaryIO) -> Iterator[str]:
    import pptx  # noqa: PLC0415 - as above

    for number, slide in enumerate(pptx.Presentation(file).slides, 1):
        yield f"--- slide {number} ---"
        for shape in slide.shapes:
            yield from _shape_texts(shape)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            if notes:
                yield f"[notes] {notes}"


def _shape_texts(shape: Any) -> Iterator[str]:
    if getattr(shape, "shapes", None) is not None:
        for inner in shape.shapes:
            yield from _shape_texts(inner)
    elif shape.has_text_frame and shape.text_frame.text.strip():
        yield shape.text_frame.text.replace("\v", "\n")
    elif getattr(shape, "has_table", False):
        for row in shape.table.rows:
            yield " | ".join(cell.text.replace("\n", " ") for cell in row.cells)


READERS = {"pdf": read_pdf, "ipynb": read_notebook, "docx": read_docx, "xlsx": read_xlsx, "pptx": read_pptx}

if __name__ == "__main__":
    sys.exit(main())
