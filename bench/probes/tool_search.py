"""Prints, as JSON, what searching and offering 10,000 tools costs, in CPU milliseconds."""

import json
import time
from collections.abc import Callable

from toolcrib import get_tool_definitions, handle_function_call, registry

TOOLS, ROUNDS = 10_000, 7
VERBS = ("create", "list", "update", "delete", "search", "export", "import", "archive", "share", "restore")
NOUNS = (
    "invoice",
    "customer",
    "issue",
    "branch",
    "calendar event",
    "contact",
    "ticket",
    "document",
    "report",
    "message",
)


def register(number: int) -> None:
    verb, noun = VERBS[number % 10], NOUNS[number // 10 % 10]
    registry.register(
        name=f"service{number // 100}_{verb}_{noun.replace(' ', '_')}_{number}",
        toolset=f"service{number // 100}",
        schema={
            "description": f"{verb.capitalize()} one {noun} of service {number // 100} and return all its fields.",
            "parameters": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"The id of the {noun}"},
                    "fields": {"type": "array", "items": {"type": "string"}, "description": "The fields to return"},
                    "dry_run": {"type": "boolean", "description": "Check the call, and change nothing"},
                },
                "required": ["id"],
            },
        },
        handler=lambda args, **_: "{}",
        effects=(),
    )


def cpu_milliseconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def search() -> None:
    answer = json.loads(handle_function_call("tool_search", {"query": "archive a calendar event"}))
    assert "archive_calendar_event" in answer["matches"][0]["name"]


def define() -> None:
    assert any(tool["function"]["name"] == "tool_search" for tool in get_tool_definitions(quiet_mode=True))


def main() -> None:
    for number in range(TOOLS):
        register(number)
    first_definitions = cpu_milliseconds(define)
    first_search = cpu_milliseconds(search)
    searches = [cpu_milliseconds(search) for _ in range(ROUNDS)]
    again = []
    for number in range(ROUNDS):
        register(TOOLS + number)
        again.append(cpu_milliseconds(define))
    figures = {
        "first_definitions": first_definitions,
        "first_search": first_search,
        "repeated_search": sorted(searches)[ROUNDS // 2],
        "definitions_after_new_tool": sorted(again)[ROUNDS // 2],
        "search_after_new_tool": cpu_milliseconds(search),
    }
    print(json.dumps(figures))


main()
