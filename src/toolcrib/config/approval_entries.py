"""Entries of the approval lists: written as a line of text or as a mapping, and stored as the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ACTIONS = ("allow", "ask", "deny")
TOOL = "tool:"
"""The prefix of a tool name in a rule about that tool."""
WHERE, AND = "where", "and"
CONDITIONS = ("equals", "matches", "in", "from")
ORIGINS = ("person", "trusted", "untrusted", "nowhere")
RULE_FORM = "`allow|ask|deny PROGRAM [SUB-COMMAND] [--FLAGS] [in workspace|PATH]`, for example `deny git push --force`"
CONDITION_FORM = (
    "`allow|ask|deny tool:NAME where /ARGUMENT equals|matches|in|from VALUE [and …]`, for example "
    "`allow tool:send_mail where /to matches *@corp.example and /to from person`"
)


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
    if WHERE in words:
        at = words.index(WHERE)
        _check_conditions(words[:at], words[at + 1 :])
        return f"{rule_text(' '.join(words[:at]))} {WHERE} {' '.join(words[at + 1 :])}"
    # `in` without a program, or at the end, is a mistake that would become a rule about everything.
    if len(words) < 2 or words[0] not in ACTIONS or words[1] == "in" or words[-1] == "in":
        raise ValueError(f"a rule like {RULE_FORM}")
    return " ".join(words)


def conditions_of(words: Sequence[str]) -> list[tuple[str, str, str]]:
    """The conditions after `where`: an argument, a comparison and a value each."""
    parts: list[list[str]] = [[]]
    for word in words:
        # A value may contain "and"; a new condition starts with a pointer.
        if word.startswith("/") and len(parts[-1]) >= 3 and parts[-1][-1] == AND:
            parts[-1].pop()
            parts.append([])
        parts[-1].append(word)
    return [(part[0], part[1] if len(part) > 1 else "", " ".join(part[2:])) for part in parts if part]


def _check_conditions(rule: Sequence[str], words: Sequence[str]) -> None:
    conditions = conditions_of(words)
    is_valid = len(rule) == 2 and rule[1].startswith(TOOL) and bool(conditions)
    for pointer, comparison, value in conditions:
        is_valid = is_valid and pointer.startswith("/") and comparison in CONDITIONS and bool(value)
        is_valid = is_valid and (comparison != "from" or value in ORIGINS)
    if not is_valid:
        raise ValueError(f"a rule like {CONDITION_FORM}")


def restricted_tools(rules: Sequence[str]) -> tuple[str, ...]:
    """The names, with wildcards, of the tools that ask and deny rules cover."""
    words = [rule.split() for rule in rules]
    return tuple(
        program.removeprefix(TOOL) for action, program, *_ in words if action != "allow" and program.startswith(TOOL)
    )


def _rule_of_mapping(item: dict[Any, Any]) -> str | None:
    actions = [key for key in item if key in ACTIONS]
    if len(actions) != 1 or any(key not in (*ACTIONS, "flags", "in", WHERE) for key in item):
        return None
    if item.get(WHERE) is not None:
        return _rule_with_conditions(actions[0], item)
    flags, place = item.get("flags") or [], item.get("in") or ""
    flags = flags.split() if isinstance(flags, str) else flags
    if not isinstance(flags, list) or not all(isinstance(flag, str) and flag.startswith("-") for flag in flags):
        return None
    return " ".join([actions[0], str(item[actions[0]] or ""), *flags, *(["in", str(place)] if place else [])])


def _rule_with_conditions(action: str, item: dict[Any, Any]) -> str | None:
    """`{allow: tool:x, where: {/to: {from: person, in: [a@x, b@x]}}}` as a line."""
    where = item[WHERE]
    if not isinstance(where, dict) or not all(isinstance(conditions, dict) for conditions in where.values()):
        return None
    parts = []
    for pointer, conditions in where.items():
        for comparison, value in conditions.items():
            text = ", ".join(str(one) for one in value) if isinstance(value, list) else str(value)
            parts.append(f"{pointer} {comparison} {text}")
    return f"{action} {item[action] or ''} {WHERE} {f' {AND} '.join(parts)}"
