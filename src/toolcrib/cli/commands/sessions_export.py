"""`toolcrib sessions export`: sessions as JSONL, ShareGPT trajectories or Markdown."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from toolcrib.cli.commands.sessions import complete_sessions, find_session, open_session_store
from toolcrib.cli.output import note, plural
from toolcrib.config.files import make_folder
from toolcrib.core.errors import ConfigError, UsageError
from toolcrib.sessions.export import (
    ALL_STATES,
    Transcript,
    as_markdown,
    as_openai,
    as_sharegpt,
    masked,
    read_transcript,
)
from toolcrib.sessions.records import Session
from toolcrib.sessions.store import SessionStore

MARKDOWN = "markdown"
EVERY_SESSION = 1_000_000


def _line(convert: Callable[[Transcript], object]) -> Callable[[Transcript], str]:
    return lambda transcript: json.dumps(convert(transcript), ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "jsonl": _line(as_openai),
    "sharegpt": _line(as_sharegpt),
    MARKDOWN: as_markdown,
}


@click.command(name="export")
@click.argument("session_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_sessions)
@click.option("--all", "everything", is_flag=True, help="All sessions except those of subagents and tools.")
@click.option(
    "-f",
    "--format",
    "chosen",
    type=click.Choice(list(FORMATS)),
    default="jsonl",
    show_default=True,
    help="OpenAI messages, ShareGPT trajectories, or Markdown for people.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file, or for Markdown an existing folder.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--every-message", is_flag=True, help="Include messages that were undone or replaced by a summary.")
def export_sessions(
    session_ids: tuple[str, ...],
    everything: bool,
    chosen: str,
    output: Path | None,
    force: bool,
    every_message: bool,
) -> None:
    """Export sessions as JSONL, trajectories or Markdown.

    Writes to stdout without --output. Masks keys, passwords and other secrets that toolcrib knows or recognises.

    jsonl: one session per line, with session_id and messages in the format of OpenAI's chat API. sharegpt: one session
    per line, with turns from system, human, gpt and tool; calls, results and reasoning are in <tool_call>,
    <tool_response> and <think>. markdown: one document per session, with collapsed tool calls.

    \b
    Examples:
      toolcrib sessions export last -f markdown
      toolcrib sessions export --all -f sharegpt -o trajectories.jsonl
    """
    states = ALL_STATES if every_message else ("live",)
    with open_session_store() as store:
        sessions = _chosen(store, session_ids, everything=everything)
        texts = (FORMATS[chosen](masked(read_transcript(store, one.id, states=states))) for one in sessions)
        if output is None:
            for number, text in enumerate(texts):
                sys.stdout.write(f"\n---\n\n{text}" if number and chosen == MARKDOWN else text)
            return
        if output.is_dir() and chosen == MARKDOWN:
            for session, text in zip(sessions, texts, strict=True):
                write_export(output / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session.id)}.md", text, force=force)
        else:
            separator = "\n---\n\n" if chosen == MARKDOWN else ""
            write_export(output, separator.join(texts), force=force)
    note(f"Wrote {plural(len(sessions), 'session')} to {str(output)!r}.")


def _chosen(store: SessionStore, ids: Sequence[str], *, everything: bool) -> list[Session]:
    if everything and ids:
        raise UsageError("give either ids or --all; run `toolcrib sessions export --help`")
    if everything:
        return store.list(limit=EVERY_SESSION)[::-1] if store.database.exists else []
    if not ids:
        raise UsageError(
            "no session given; use `toolcrib sessions export last`, an id from `toolcrib sessions list`, or --all"
        )
    found = [find_session(store, wanted) for wanted in ids]
    return list({session.id: session for session in found}.values())


def write_export(path: Path, text: str, *, force: bool) -> None:
    """Write the file atomically, readable only by its owner: a session is private."""
    if path.is_dir():
        raise UsageError(
            f"{str(path)!r} is a folder; name a file, or use `--format markdown`, which writes a file for each session"
        )
    if path.is_file() and not force:
        raise UsageError(f"{str(path)!r} exists; name another file, or add `--force`")
    # A lone surrogate cannot be encoded as UTF-8; escaped, it is still JSON.
    content = text.encode("utf-8", "backslashreplace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe must not be replaced by a file
        else:
            _put_in_place(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(path)!r} ({error.strerror or error}); name another file, as in `--output export.jsonl`"
        ) from error


def _put_in_place(target: Path, content: bytes) -> None:
    make_folder(target.parent)
    with ExitStack() as on_failure:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        on_failure.callback(Path(temporary).unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        Path(temporary).replace(target)
        on_failure.pop_all()
