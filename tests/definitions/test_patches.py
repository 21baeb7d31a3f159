"""Definitions never speak of tools that the model does not have."""

import pytest

import toolcrib.tools.browser  # noqa: F401 - registers the tools
from toolcrib.definitions.build import patched
from toolcrib.registry.default import registry

CODE = {
    "name": "execute_code",
    "description": "Run a script.\n- web_search(query): search\n- read_file(path): read\n"
    "Available: web_search, read_file, patch",
    "parameters": {"type": "object", "properties": {}},
}
BROWSER = {
    "name": "browser_navigate",
    "description": "Open a page. For simple lookups, prefer web_search or web_extract. Returns a snapshot.",
}


def test_execute_code_speaks_only_of_tools_that_are_offered():
    """The description lists exactly the callable tools of this session."""
    text = patched(CODE, {"execute_code", "read_file"})["description"]
    assert "read_file" in text
    assert "web_search" not in text
    assert "patch" not in text
    assert text.endswith("Tools the script can call: read_file.")


def test_execute_code_without_any_tool_says_none():
    """No tool, no name of one."""
    text = patched(CODE, {"execute_code"})["description"]
    assert text.endswith("Tools the script can call: none.")
    assert not any(name in text for name in ("web_search", "read_file", "patch"))


def test_execute_code_lists_whatever_a_script_can_call_and_nothing_else():
    """Every tool of the session, except scripts themselves, the search, and what belongs to the conversation."""
    never = {"execute_code", "clarify", "todo", "memory", "session_search", "delegate_task", "tool_search", "tool_call"}
    text = patched(CODE, {"read_file", "mcp_files_list", "a_plugins_tool", *never})["description"]
    assert text.endswith("Tools the script can call: a_plugins_tool, mcp_files_list, read_file.")


def test_a_name_inside_another_word_is_left_alone():
    """`patch` is a tool, `dispatch` is a word."""
    function = {"name": "execute_code", "description": "We dispatch scripts; patches welcome."}
    assert "We dispatch scripts; patches welcome." in patched(function, set())["description"]


@pytest.mark.parametrize(
    ("offered", "advice"),
    [
        (set(), ""),
        ({"web_search"}, " For simple lookups, prefer web_search."),
        ({"web_extract"}, " For simple lookups, prefer web_extract."),
        ({"web_search", "web_extract"}, " For simple lookups, prefer web_search or web_extract."),
    ],
)
def test_browser_navigate_recommends_only_what_exists(offered, advice):
    """The advice names those of the two tools that are there, and goes without either; the rest stays."""
    assert patched(BROWSER, offered)["description"] == f"Open a page.{advice} Returns a snapshot."


@pytest.mark.parametrize("offered", [set(), {"web_search"}, {"web_extract"}])
def test_the_real_browser_navigate_recommends_only_what_exists(offered):
    """Its own description is one that can be patched."""
    entry = registry.get_entry("browser_navigate")
    text = patched({"name": "browser_navigate", "description": entry.schema["description"]}, offered)["description"]
    assert {name for name in ("web_search", "web_extract") if name in text} == offered


def test_patching_changes_neither_its_input_nor_other_tools():
    """A patched function is a new value; all other tools pass as they are."""
    before = dict(CODE)
    patched(CODE, set())
    assert before == CODE
    other = {"name": "other", "description": "prefer web_search"}
    assert patched(other, set()) is other


def test_a_tool_without_a_description_can_be_patched():
    """A missing description is an empty one."""
    assert patched({"name": "browser_navigate"}, set())["description"] == ""
