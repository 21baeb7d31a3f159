"""The pages about the agent name all that can be typed, heard and returned."""

from __future__ import annotations

import re
from typing import get_args

from tests.docs.docs_blocks import REPOSITORY
from toolcrib.agent.events import EXIT_CODES, AnyEvent
from toolcrib.cli.chat.slash_commands import COMMANDS, KEYS
from toolcrib.config.agent_settings import ModelSettings

GUIDES = REPOSITORY / "docs" / "guides"


def test_the_chat_page_lists_exactly_the_slash_commands_there_are() -> None:
    """A command without a row, and a row without a command, are both found."""
    page = (GUIDES / "chat.md").read_text(encoding="utf-8")
    section = page[page.index("## 2. Slash commands") : page.index("## 3.")]
    listed = {
        name for row in re.findall(r"^\| (`/.*?) \|", section, re.MULTILINE) for name in re.findall(r"`/(\w+)", row)
    }

    assert listed == {command.name for command in COMMANDS}


def test_the_chat_page_lists_exactly_the_events_there_are() -> None:
    """A program that reads `--json` finds each event in the table, with the names of all its fields."""
    page = (GUIDES / "chat.md").read_text(encoding="utf-8")
    section = page[page.index("## 6. For programs") :]
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| .* \| (.*) \|$", section, re.MULTILINE)
    listed = {name: fields for names, fields in rows for name in re.findall(r"`(\w+)`", names) if name != "event"}
    kinds = {kind.__struct_config__.tag: kind.__struct_fields__ for kind in get_args(AnyEvent)}

    assert set(listed) == set(kinds)
    assert {name: [field for field in kinds[name] if f"`{field}`" not in listed[name]] for name in kinds} == {
        name: [] for name in kinds
    }


def test_the_chat_page_explains_each_exit_code_and_each_key() -> None:
    """What a script can be told by `chat -q`, and what /help says of the keys, stands on the page."""
    page = (GUIDES / "chat.md").read_text(encoding="utf-8")

    assert [code for code in EXIT_CODES.values() if f"\n| {code} |" not in page] == []
    assert [keys for keys, _ in KEYS if keys.split(",")[0] not in page] == []


def test_the_model_page_names_every_setting_of_the_model() -> None:
    """A setting that is added gets a place in the guide."""
    page = (GUIDES / "connect-a-model.md").read_text(encoding="utf-8")

    assert [name for name in ModelSettings.__struct_fields__ if f"`model.{name}`" not in page] == []
