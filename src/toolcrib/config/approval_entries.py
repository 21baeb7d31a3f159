"""Entries of the approval lists: written as a line of text or as a mapping, and stored as the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ACTIONS = ("allow", "ask", "deny")
TOOL = "tool:"
"""The prefix of a tool name in a rule about that tool."""
RULE_FORM = "`allow|ask|deny PROGRAM [SUB-COMMAND] [--FLAGS] [in workspace|PATH]`, for example `deny git push --force`"


def grant_text(item: Any) -> str:
    """`{rule: recursive delete, scope: inside the workspace}` as `recursive delete (inside the workspace)`."""
    if isinstance(item, str) and item.strip():
        return item
    if not isinstance(item, dict) or not isinstance(item.get("rule"), str) or not item["rule"].strip():
        raise ValueError("text, or a mapping with `rule` and `scope`")
    unknown = sorted(str(key) for key in item if key not in ("rule", "scope"))
    scope = item.get("scope") or ""
    if unknown or not isinstance(scope, str):
        raise ValueError("text, or a mapping with only `rule` and `scope`")
    return f"{item['rule']} ({scope})" if scope else item["rule"]


def rule_text(item: Any) -> str:
    """`{deny: git push, flags: [--force], in: workspace}` as `deny git push --force in workspace`."""
    text = _rule_of_mapping(item) if isinstance(item, dict) else item
    words = text.split() if isinstance(text, str) else []
    # `in` without a program, or at the end, is a mistake that would become a rule about everything.
    if len(words) < 2 or words[0] not in ACTIONS or words[1] == "in" or words[-1] == "in":
        raise ValueError(f"a rule like {RULE_FORM}")
    return " ".join(words)


def restricted_tools(rules: Sequence[str]) -> tuple[str, ...]:
    """The names, with wildcards, of tools that rules have asked about or denied."""
    words = [rule.split() for rule in rules]
    return tuple(
        program.removeprefix(TOOL) for action, program, *_ in words if action != "allow" and program.startswith(TOOL)
    )


def _rule_of_mapping(item: dict[Any, Any]) -> str | None:
    actions = [key for key in item if key in ACTIONS]
    if len(actions) != 1 or any(key not in (*ACTIONS, "flags", "in") for key in item):
        return None
    flags, place = item.get("flags") or [], item.get("in") or ""
    flags = flags.split() if isinstance(flags, str) else flags
    if not isinstance(flags, list) or not all(isinstance(flag, str) and flag.startswith("-") for flag in flags):
        return None
    return " ".join([actions[0], str(item[actions[0]] or ""), *flags, *(["in", str(place)] if place else [])])
