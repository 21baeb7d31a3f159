"""The pages of the built-in tools: the upper part of each is written from the code, the lower part by people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_source import GENERATED, table

from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.registry import discovery, registry

FOLDER = "tools"
HEAD = (
    "<!-- Written by scripts/write_reference.py from the code, down to the next such line; what follows it is written "
    "by hand, and its examples are run by the tests. -->\n"
)
END = "<!-- From here on by hand. -->"
AN_AGENT = "in an agent"
WITH_COMMANDS = "where the commands of the session run"
HERE = "on the machine that runs toolcrib"

FRONT_END = "in a front end with terminals of its own"


@dataclass(frozen=True)
class Facts:
    """What the code does not say in words."""

    effects: str
    where: str


A_PAGE = "in the session's browser: on the machine that runs toolcrib, or where `browser.cdp_url` says"
READS_PAGE = "reaches the host of the page, and what its scripts load"
CHANGES_BOARD = "changes the board, which needs no approval; texts with orders for other agents do"

FACTS = {
    "browser_back": Facts(READS_PAGE, A_PAGE),
    "browser_cdp": Facts(
        f"{READS_PAGE}; cookies are a secret, and commands that change something need approval", A_PAGE
    ),
    "browser_click": Facts(f"{READS_PAGE}; submitting a form, buying and downloading need approval", A_PAGE),
    "browser_console": Facts(f"{READS_PAGE}; an expression needs approval", A_PAGE),
    "browser_dialog": Facts(READS_PAGE, A_PAGE),
    "browser_get_images": Facts(READS_PAGE, A_PAGE),
    "browser_navigate": Facts("reaches the host of the address, and what the page loads", A_PAGE),
    "browser_press": Facts(f"{READS_PAGE}; Enter in a form that sends something needs approval", A_PAGE),
    "browser_scroll": Facts(READS_PAGE, A_PAGE),
    "browser_snapshot": Facts(READS_PAGE, A_PAGE),
    "browser_type": Facts(f"{READS_PAGE}; passwords and uploads need approval", A_PAGE),
    "browser_vision": Facts(READS_PAGE, A_PAGE),
    "clarify": Facts("asks the person", "wherever a person can be asked"),
    "close_terminal": Facts("ends what runs in the terminal, which needs no approval", FRONT_END),
    "computer_use": Facts("none for looking; every input needs approval", "on the X display of this machine"),
    "cronjob": Facts(
        "changes what runs later, except `list`; a script, a command or a file to deliver to, and another folder to "
        "work in, are judged as well",
        HERE,
    ),
    "delegate_task": Facts("none of its own; the calls of helpers are judged one by one", AN_AGENT),
    "discord": Facts("asks Discord; a new thread needs approval", HERE),
    "discord_admin": Facts("asks Discord; whatever changes something there needs approval", HERE),
    "execute_code": Facts(
        "runs the script as `python3 -c`; the calls that it makes are judged one by one",
        "in a sandbox around the folder of the session, or where its commands run (`code_execution.sandbox`)",
    ),
    "feishu_doc_read": Facts("asks Feishu", HERE),
    "feishu_drive_add_comment": Facts("adds a comment that others see, after approval", HERE),
    "feishu_drive_list_comment_replies": Facts("asks Feishu", HERE),
    "feishu_drive_list_comments": Facts("asks Feishu", HERE),
    "feishu_drive_reply_comment": Facts("adds a reply that others see, after approval", HERE),
    "ha_call_service": Facts(
        "changes what is in the home: needs approval, except for lights and other things that are easily undone", HERE
    ),
    "ha_get_state": Facts("asks Home Assistant", HERE),
    "ha_list_entities": Facts("asks Home Assistant", HERE),
    "ha_list_services": Facts("asks Home Assistant", HERE),
    "image_generate": Facts(
        "spends money, unless the service runs on a machine of yours; reads the images that it changes", HERE
    ),
    "kanban_attach": Facts(CHANGES_BOARD, HERE),
    "kanban_attach_url": Facts(f"reaches the host of the address; {CHANGES_BOARD}", HERE),
    "kanban_attachments": Facts("none", HERE),
    "kanban_block": Facts(CHANGES_BOARD, HERE),
    "kanban_comment": Facts(CHANGES_BOARD, HERE),
    "kanban_complete": Facts(CHANGES_BOARD, HERE),
    "kanban_create": Facts(CHANGES_BOARD, HERE),
    "kanban_heartbeat": Facts(CHANGES_BOARD, HERE),
    "kanban_link": Facts(CHANGES_BOARD, HERE),
    "kanban_list": Facts("none", HERE),
    "kanban_show": Facts("none", HERE),
    "kanban_unblock": Facts(CHANGES_BOARD, HERE),
    "memory": Facts("none declared; `memory.write_approval` asks before anything is remembered", AN_AGENT),
    "mixture_of_agents": Facts("sends the question to several models", HERE),
    "patch": Facts("writes or deletes each file that the patch names", WITH_COMMANDS),
    "process": Facts("what is typed into a process is judged as a command", WITH_COMMANDS),
    "project_create": Facts("none of its own; the command that makes the folder is judged", WITH_COMMANDS),
    "project_list": Facts("none", HERE),
    "project_switch": Facts("none of its own; the command that enters the folder is judged", WITH_COMMANDS),
    "read_file": Facts("reads the file", WITH_COMMANDS),
    "read_terminal": Facts("none", FRONT_END),
    "search_files": Facts("reads the folder or file that is searched", WITH_COMMANDS),
    "session_search": Facts("none declared", AN_AGENT),
    "skill_manage": Facts("writes or deletes files of the user's skills", HERE),
    "skill_view": Facts("reads the file of the skill", HERE),
    "skills_list": Facts("reads the folder of the user's skills", HERE),
    "spotify_albums": Facts("asks Spotify", HERE),
    "spotify_devices": Facts("asks Spotify; moving playback needs approval", HERE),
    "spotify_library": Facts("asks Spotify; saving and removing need approval", HERE),
    "spotify_playback": Facts("asks Spotify; whatever changes playback needs approval", HERE),
    "spotify_playlists": Facts("asks Spotify; creating and changing playlists need approval", HERE),
    "spotify_queue": Facts("asks Spotify; adding needs approval", HERE),
    "spotify_search": Facts("asks Spotify", HERE),
    "terminal": Facts("runs the command", "where `terminal.backend` says"),
    "text_to_speech": Facts(
        "sends the text to a service and spends money, unless a program on this machine speaks; writes `output_path`",
        "on the machine that runs toolcrib; `output_path` where commands run",
    ),
    "todo": Facts("none declared", AN_AGENT),
    "tool_call": Facts("those of the tool that is called", "wherever that tool works"),
    "tool_describe": Facts("none", "everywhere"),
    "tool_search": Facts("none", "everywhere"),
    "video_analyze": Facts(
        "reads the video if it is a file, reaches its host otherwise; a vision model gets its frames",
        "addresses and models on this machine; files where commands run",
    ),
    "video_generate": Facts("spends money; reads the images that it starts from", HERE),
    "vision_analyze": Facts(
        "reads the images that are files, reaches the hosts of the others; a vision model gets the images",
        "addresses and models on this machine; files where commands run",
    ),
    "web_extract": Facts("reaches the hosts of the pages", HERE),
    "web_search": Facts("sends the query to a search service; asks the person first, if no key is set", HERE),
    "write_file": Facts("writes the file", WITH_COMMANDS),
    "x_search": Facts("sends the query to xAI, and spends money", HERE),
    "xai_video_edit": Facts("spends money", HERE),
    "xai_video_extend": Facts("spends money", HERE),
}


def tool_pages(reference: Path) -> Iterator[tuple[str, str]]:
    """Every page by its name in the reference; what people wrote is taken from the pages that are there."""
    entries = _entries()
    yield f"{FOLDER}/README.md", "\n".join(_index(entries))
    for entry in entries:
        name = f"{FOLDER}/{entry.name}.md"
        yield name, "\n".join([HEAD, *_from_code(entry), END]) + _by_hand(reference / name)


def _entries() -> list[ToolEntry]:
    discovery.load_builtin_tools()
    entries = sorted((entry for entry in registry.entries() if entry.is_ours), key=lambda entry: entry.name)
    missing = [entry.name for entry in entries if entry.name not in FACTS]
    if missing:
        raise SystemExit(f"scripts/reference_tools.py says nothing about {', '.join(missing)}; add it to FACTS there")
    return entries


def _index(entries: list[ToolEntry]) -> Iterator[str]:
    yield GENERATED + "# Built-in tools\n"
    yield "What a model can be offered without any tool file or plugin. Each page says what a tool takes and gives, and"
    yield "has an example that the tests run. `toolcrib tools explain NAME` shows a tool as it is set up here, and"
    yield "`toolcrib tools run NAME JSON` calls it.\n"
    rows = [(f"[`{one.name}`]({one.name}.md)", f"`{one.toolset}`", _first_sentence(one)) for one in entries]
    yield from table(("tool", "toolset", "what it is for"), rows)


def _first_sentence(entry: ToolEntry) -> str:
    first = _description(entry).split("\n")[0].split(". ")[0].rstrip(".")
    return f"{first}."


def _description(entry: ToolEntry) -> str:
    return str(entry.schema.get("description") or entry.description)


def _from_code(entry: ToolEntry) -> Iterator[str]:
    facts = FACTS[entry.name]
    yield f"# {entry.name}\n"
    yield "\n".join(f"> {line}".rstrip() for line in _quoted(_description(entry))) + "\n"
    rows = [
        ("toolset", f"`{entry.toolset}`"),
        ("effects", facts.effects),
        ("works", facts.where),
        ("result", _limit(entry)),
    ]
    yield from table(("", ""), rows)
    parameters = list(_parameters(entry.parameters, ""))
    if parameters:
        yield from table(("parameter", "type", "default", "meaning"), parameters)


def _quoted(description: str) -> Iterator[str]:
    """The lines of a description; a format that it shows keeps its line breaks."""
    head, newline, rest = description.partition("\n")
    yield head
    if newline:
        yield from ("", "```text", *rest.splitlines(), "```")


def _limit(entry: ToolEntry) -> str:
    limit = entry.max_result_size_chars
    if limit is None:
        return "100000 characters at most, as `tool_output.max_result_chars` says"
    return "bounded by its own limits" if limit == float("inf") else f"{limit} characters at most"


def _parameters(schema: JsonObject, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", [])
    for name, about in schema.get("properties", {}).items():
        default = "required" if name in required else _value(about["default"]) if "default" in about else ""
        yield f"`{prefix}{name}`", _type(about), default, about.get("description", "")
        items = about.get("items", {})
        if items.get("type") == "object":
            yield from _parameters(items, f"{prefix}{name}[].")


def _value(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(about: JsonObject) -> str:
    if "enum" in about:
        return "one of " + ", ".join(f"`{choice}`" for choice in about["enum"])
    if "anyOf" in about:
        return " or ".join(_type(choice) for choice in about["anyOf"])
    name = {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(about["type"], about["type"])
    if name == "array":
        items = about["items"]
        name = "list of objects" if items.get("type") == "object" else "list of texts"
    bounds = (("minimum", "at least"), ("maximum", "at most"), ("maxItems", "at most"))
    return ", ".join([name, *(f"{words} {about[key]}" for key, words in bounds if key in about)])


def _by_hand(page: Path) -> str:
    """What people wrote on a page; only a line break where there is none yet."""
    if not page.exists():
        return "\n"
    _, found, rest = page.read_text(encoding="utf-8").partition(END)
    return rest if found else "\n"
