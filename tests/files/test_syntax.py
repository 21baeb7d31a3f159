"""Syntax checks of texts by our own parsers."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.files.syntax import PYTHON, problem_in, with_language_suffix

GOOD = [
    ("a.py", "x = 1\n"),
    ("a.py", ""),
    ("a.py", "x = '\\d'\nassert (x, 'always')\nx is 1\n"),
    ("a.json", '{"a": [1, 2.5, null]}'),
    ("a.json", "9" * 10_000),
    ("tsconfig.json", "{ // a comment\n}"),
    ("web/tsconfig.build.json", "{ /* a comment */ }"),
    (".vscode/settings.json", "{ // a comment\n}"),
    ("a.jsonl", '{"a": 1}\n\n[2]\n'),
    ("a.yaml", "a: !unknown {b: 1}\n---\n- second document\n"),
    ("a.yml", "&a [*a]\n"),
    ("a.toml", "a = 1\r\n[b]\r\n"),
    ("a.txt", "{ def"),
    ("Makefile", "{ def"),
]
BAD = [
    ("a.py", "def f(:\n    pass\n", f"{PYTHON}: invalid syntax (line 1)"),
    ("a.pyi", "x =\n", "(line 1)"),
    ("a.py", "return 1\n", "outside function"),
    ("a.py", "x = 1\0", "null byte"),
    ("a.json", '{"a": 1,}', "JSON: "),
    ("a.json", "{ // no\n}", "JSON: "),
    ("settings.json", "{ // no\n}", "JSON: "),
    ("a.jsonl", '{"a": 1}\n{"a": \n', "(line 2"),
    ("a.yaml", "a: [1\nb: 2\n", "YAML: "),
    ("a.yaml", "ok: 1\n---\na: b: c\n", "(line 3"),
    ("a.toml", "a = \n", "TOML: "),
    ("a.JSON", "{", "JSON: "),
]


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_nothing_is_said_about_good_or_unknown_texts(path: str, text: str) -> None:
    """Right texts, and texts of kinds that are not known, give no problem."""
    assert problem_in(path, text) == ""


@pytest.mark.parametrize(("path", "text", "says"), BAD)
def test_a_broken_text_is_named_with_its_line(path: str, text: str, says: str) -> None:
    """The problem is one sentence with the place."""
    assert says in problem_in(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.json", "[" * 100_000), ("a.py", "(" * 5_000), ("a.py", "-" * 100_000 + "1"), ("a.yaml", "[" * 5_000)],
)
def test_deep_nesting_is_survived(path: str, text: str) -> None:
    """A text that is nested too deeply for a parser is a problem, no crash."""
    assert problem_in(path, text)


@given(st.sampled_from(["a.py", "a.json", "a.jsonl", "a.yaml", "a.toml"]), st.text(max_size=80))
def test_any_text_gets_an_answer(path: str, text: str) -> None:
    """No text makes a check fail, and no check warns about what it reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(problem_in(path, text), str)


@pytest.mark.parametrize(
    ("path", "first_line", "name"),
    [
        ("run", "#!/usr/bin/env python3", "run.py"),
        ("run", "#!/usr/bin/python3 -I", "run.py"),
        ("run", "#!/usr/bin/env -S node --test", "run.js"),
        ("bin/run", "#!/bin/sh -e", "bin/run.sh"),
        ("run", "#! /bin/bash", "run.bash"),
        ("run", "#!/usr/bin/python2", "run"),
        ("run", "#!/usr/bin/env fish", "run"),
        ("run", "python3", "run"),
        ("run.txt", "#!/bin/sh", "run.txt"),
    ],
)
def test_a_script_without_an_ending_is_known_by_its_first_line(path: str, first_line: str, name: str) -> None:
    """Only where it says which language it is in."""
    assert with_language_suffix(path, f"{first_line}\nx\n") == name
