"""Texts of documents: what is in them comes out, and hostile ones cost a bounded time and memory."""

from __future__ import annotations

import io
import json
import time
import zipfile

import pytest

from toolcrib.files.file_types import DocumentKind, document_kind
from toolcrib.files.reading import DocumentFailed, DocumentTexts, failure, take_text

LIMIT_SECONDS = 40


def pdf(*pages: str) -> bytes:
    """A small PDF by hand, one line of text a page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in pages:
        stream = b"BT /F1 12 Tf 72 720 Td (" + text.encode("latin-1") + b") Tj ET"
        kids.append(b"%d 0 R" % (len(objects) + 1))
        page = b"<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>"
        objects.append(page % (len(objects) + 2))
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream))
    objects[1] = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (b" ".join(kids), len(kids))
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n%b%b" % (len(objects) + 1, table, trailer)


@pytest.mark.services
def test_the_text_of_a_pdf_comes_page_by_page() -> None:
    """Each page has its number, and a page without text says so."""
    text = take_text("pdf", pdf("Hello page one", "second", "")).text

    assert text.splitlines() == [
        "--- page 1 of 3 ---",
        "Hello page one",
        "--- page 2 of 3 ---",
        "second",
        "--- page 3 of 3 ---",
        "[no text on this page; it may be a picture]",
    ]


def test_a_notebook_shows_cells_and_outputs_without_pictures() -> None:
    """Sources and texts of outputs are there, colours are gone, pictures are only named."""
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {
            "cell_type": "code",
            "source": "plot()",
            "outputs": [
                {"output_type": "stream", "text": ["1\n", "2\n"]},
                {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "AAAA" * 1000}},
                {"output_type": "error", "traceback": ["\x1b[31mNameError\x1b[0m: x"]},
            ],
        },
    ]

    text = take_text("ipynb", json.dumps({"cells": cells, "nbformat": 4}).encode()).text

    assert "--- cell 1 [markdown] ---\n# Title\nwords" in text
    assert "--- cell 2 [code] ---\nplot()" in text
    assert "1\n2\n" in text
    assert "<Figure>\n[image/png]" in text
    assert "NameError: x" in text
    assert "AAAA" not in text
    assert "\x1b" not in text


def test_a_word_document_keeps_headings_and_tables_in_order() -> None:
    """Paragraphs and tables come in the order in which they stand."""
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Report", level=2)
    document.add_paragraph("First.")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    document.add_paragraph("Last.")
    data = io.BytesIO()
    document.save(data)

    text = take_text("docx", data.getvalue()).text

    assert text.splitlines() == ["## Report", "First.", "a | b", "Last."]


def test_a_workbook_shows_values_and_formulas_with_their_rows() -> None:
    """Each sheet is named, rows have their numbers, and a formula that was never computed is shown itself."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Data"
    sheet.append(["name", "amount"])
    sheet.append(["x", 3])
    sheet["B5"] = "=SUM(B2:B3)"
    data = io.BytesIO()
    book.save(data)

    text = take_text("xlsx", data.getvalue()).text

    assert text.splitlines() == ["--- sheet Data ---", "1: name | amount", "2: x | 3", "5:  | =SUM(B2:B3)"]


@pytest.mark.services
def test_slides_show_titles_texts_and_notes() -> None:
    """Each slide is numbered, with what a speaker would say."""
    pptx = pytest.importorskip("pptx")
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Plan"
    slide.placeholders[1].text = "Step one"
    slide.notes_slide.notes_text_frame.text = "say hello"
    data = io.BytesIO()
    show.save(data)

    text = take_text("pptx", data.getvalue()).text

    assert text.splitlines() == ["--- slide 1 ---", "Plan", "Step one", "[notes] say hello"]


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("kind", ["pdf", "ipynb", "docx", "xlsx", "pptx"])
def test_a_damaged_document_is_an_error_in_words(kind: DocumentKind) -> None:
    """Whatever its reader raises, the answer is a sentence."""
    with pytest.raises(DocumentFailed):
        take_text(kind, b"%PDF-1.4 PK\x03\x04 this is no document {")


def bomb(name: str, inner: bytes) -> bytes:
    """A small archive whose one file unpacks to far more."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(
            "[Content_Types].xml",
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
            'wordprocessingml.document.main+xml"/></Types>',
        )
        archive.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
            'Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
            f'Target="{name}"/></Relationships>',
        )
        with archive.open(name, "w", force_zip64=True) as file:
            file.write(inner)
            for _ in range(400):
                file.write(b" " * 1_000_000)
    return data.getvalue()


@pytest.mark.services
def test_an_archive_that_unpacks_to_gigabytes_is_refused() -> None:
    """Its reader is stopped by its own limits, and ours neither waits for ever nor grows."""
    data = bomb("word/document.xml", b"<?xml version='1.0'?><w:document xmlns:w='x'>")
    begun = time.monotonic()

    with pytest.raises(DocumentFailed, match=r"memory|stopped|Error"):
        take_text("docx", data, memory_bytes=300_000_000)

    assert time.monotonic() - begun < LIMIT_SECONDS


@pytest.mark.services
def test_a_document_that_takes_too_long_is_given_up() -> None:
    """Time is bounded from outside too, whatever the reader does."""
    data = pdf(*["x) Tj (" * 50_000] * 20)
    begun = time.monotonic()

    with pytest.raises(DocumentFailed, match=r"longer than 2 seconds|stopped"):
        take_text("pdf", data, seconds=2)

    assert time.monotonic() - begun < LIMIT_SECONDS


def test_a_missing_package_is_named_with_what_to_run() -> None:
    """The error has the extra and the command that installs it."""
    said = failure({"missing": "pypdf"})

    assert "'pypdf'" in str(said)
    assert "pip install 'toolcrib[documents]'" in str(said)


async def test_a_text_is_kept_for_the_next_part() -> None:
    """The same version is not read again, another one is not known."""
    documents = DocumentTexts()

    text = await documents.text("ipynb", b'{"cells": []}', "version 1")

    assert documents.known("version 1") == text
    assert documents.known("version 2") is None


@pytest.mark.parametrize(
    ("path", "head", "kind"),
    [
        ("a.pdf", b"%PDF-1.7", "pdf"),
        ("a.bin", b"%PDF-1.7\n1 0 obj", "pdf"),
        ("a.md", b"%PDF-1.7 is how a PDF begins", None),
        ("a.PDF", b"junk\n%PDF-1.7", "pdf"),
        ("a.pdf", b"words", None),
        ("a.docx", b"PK\x03\x04", "docx"),
        ("a.XLSM", b"PK\x03\x04", "xlsx"),
        ("a.pptx", b"words", None),
        ("a.zip", b"PK\x03\x04", None),
        ("a.ipynb", b' \n{"cells"', "ipynb"),
        ("a.ipynb", b"words", None),
    ],
)
def test_documents_are_told_by_bytes_and_name(path: str, head: bytes, kind: str | None) -> None:
    """A name alone makes no document."""
    assert document_kind(path, head) == kind
