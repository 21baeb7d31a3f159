"""Definitions never speak of tools that the model does not have."""

import pytest

from toolcrib.definitions.build import patched

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


@pytest.mark.parametrize(("offered", "kept"), [(set(), False), ({"web_search"}, True), ({"web_extract"}, True)])
def test_browser_navigate_recommends_only_what_exists(offered, kept):
    """The advice goes when neither of the two tools is there; the rest stays."""
    text = patched(BROWSER, offered)["description"]
    assert ("prefer web_search or web_extract" in text) is kept
    assert text.startswith("Open a page.")
    assert text.endswith("Returns a snapshot.")


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
