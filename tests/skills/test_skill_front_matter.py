"""The head of a SKILL.md: read quickly, and the same as a YAML parser reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolcrib.core.errors import ConfigError
from toolcrib.skills.skill import parse_front_matter, split_front_matter, summary_fields

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
ODD = """\
name: a|description: b c|  more|description: 'it''s'|description: "a\\nb"|description: >|# x|name: 12|name: true
description: a # b|description: a: b|name: [x]|x: {name: y}|description:|name:|\tname: x|description: ~|name : a
- name: z|description: &a b|name: *a|description: -x|description: a'b|name: 0x1F|description: .5|description: "open
<<: {name: q}|metadata:|  name: inner|  description: >|    folded|description: "x" y|description: 'a|name: "b" # c
description: 2024-01-02|description: on|name: a\tb|description: ' a '|description: a, b|name: !!str x|description: @x"""
ODD_LINES = st.lists(st.sampled_from(ODD.replace("\n", "|").split("|")), max_size=8)


@given(name=TEXTS, description=TEXTS, body=st.text(max_size=60))
def test_what_is_written_is_read_again(name: str, description: str, body: str) -> None:
    """Any name and description in quotes come back as they were, and the body is what follows the head."""
    body = body.replace("\r", "")
    text = f"---\nname: {json.dumps(name)}\ndescription: {json.dumps(description)}\n---\n{body}"
    parts = split_front_matter(text)
    assert parts.front is not None
    assert parts.body == body
    assert text.split("\n")[parts.body_line - 1 :] == body.split("\n")
    assert summary_fields(parts.front) == {"name": name.strip(), "description": description.strip()}
    if (name + description).isascii():
        assert parse_front_matter(parts.front).data == {"name": name, "description": description}


@given(lines=ODD_LINES)
@example(lines=["description: a: b", "name: x"])
def test_the_quick_reader_agrees_with_yaml(lines: list[str]) -> None:
    """Where the head is valid YAML, name and description are what YAML says they are; else it is still read."""
    front = "\n".join(lines)
    found = summary_fields(front)
    try:
        data = parse_front_matter(front).data
    except ConfigError:
        assert set(found) <= {"name", "description"}
        return
    data = data if isinstance(data, dict) else {}
    for key in ("name", "description"):
        value = data.get(key)
        if isinstance(value, str):
            assert found.get(key, "") == value.strip()


@given(text=st.text(max_size=300) | st.builds("---\n{}\n---\n{}".format, st.text(max_size=100), st.text(max_size=50)))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever a file holds, there is an answer."""
    parts = split_front_matter(text)
    if parts.front is not None:
        assert all(isinstance(value, str) for value in summary_fields(parts.front).values())


@pytest.mark.parametrize(
    ("text", "front"),
    [
        ("---\nname: a\n---\nb", "name: a"),
        ("---  \r\nname: a\r\n---\r\nb", "name: a"),
        ("\ufeff---\nname: a\n---", "name: a"),
        ("---\n---\nb", ""),
        ("--- \nname: a\nb", None),
        ("name: a\n---\nb", None),
        ("----\nname: a\n----\n", None),
        ("", None),
    ],
)
def test_where_the_head_begins_and_ends(text: str, front: str | None) -> None:
    """Two lines of three dashes, the first of them at the very start."""
    assert split_front_matter(text).front == front


def test_plain_skills_are_read_without_a_yaml_parser() -> None:
    """The prompt of a session with plain skills does not pay for importing one."""
    code = (
        "import sys; from toolcrib.config.settings import Settings; from toolcrib.config.paths import Home\n"
        "from pathlib import Path; from toolcrib.skills.catalog import skills_index\n"
        "from toolcrib.config.load import load_settings; loaded = sys.modules\n"
        "text = skills_index(load_settings(Home(Path(sys.argv[1]))), '')\n"
        "assert 'writing-skills' in text; print('ruamel.yaml' in loaded, 'toolcrib.approval.analyse' in loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code, "/nonexistent"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
