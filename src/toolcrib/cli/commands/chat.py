"""`toolcrib chat`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.state import complete_toolsets, open_runtime, refuse_unknown_toolsets
from toolcrib.cli.weights import fetch_weights
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UsageError

NOTHING = "none"
LATEST = "last"


@click.command(name="chat")
@click.option("-q", "--query", metavar="TEXT", help="Ask this one question, print the answer and end.")
@click.option("-m", "--model", metavar="NAME", default="", help="The model that answers; `provider/model` names both.")
@click.option("--provider", metavar="NAME", default="", help="Where the model is; see `toolcrib model list`.")
@click.option(
    "-t",
    "--toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Offer only these toolsets, separated by commas; `none` offers no tools.",
)
@click.option(
    "--disable-toolsets",
    metavar="NAMES",
    shell_complete=complete_toolsets,
    help="Never offer these toolsets, separated by commas.",
)
@click.option("--yolo", is_flag=True, help="Ask nobody before dangerous calls; what is always denied stays denied.")
@click.option("--max-turns", metavar="N", type=click.IntRange(min=1), help="The most requests for one question.")
@click.option("--cwd", metavar="FOLDER", type=click.Path(), help="Work in this folder instead of the current one.")
@click.option(
    "-r",
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=LATEST,
    help="Go on with this session; without an id, with the latest one.",
)
@click.option("--quiet", is_flag=True, help="Print the answer alone, without progress.")
@click.option("--json", "as_json", is_flag=True, help="With -q: print every event as a line of JSON.")
@click.option("--dry-run", is_flag=True, help="With -q: print the calls that would be made, and make none.")
def command(
    query: str | None,
    model: str,
    provider: str,
    toolsets: str | None,
    disable_toolsets: str | None,
    yolo: bool,
    max_turns: int | None,
    cwd: str | None,
    resume: str | None,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
) -> int:
    """Ask the agent a question, which it answers with the help of tools.

    With -q the answer goes to stdout and progress to stderr. The exit code is 0 when it was answered, 1 when the model
    or the last tools failed, 2 for wrong usage, 3 when the budget was used up, 4 when what it needed was denied, and
    130 when it was interrupted.

    \b
    Examples:
      toolcrib chat
      toolcrib chat -q "Use the weather tool for London"
      toolcrib chat --toolsets web,file --resume
    """
    if query is None and (as_json or dry_run):
        raise UsageError("--json and --dry-run need a question; add one, as in `toolcrib chat --json -q TEXT`")
    if query is not None and not query.strip():
        raise UsageError("the question is empty; write one, as in `toolcrib chat -q TEXT`")
    options = ChatOptions(
        query=query,
        model=model,
        provider=provider,
        toolsets=None if toolsets is None else _split(toolsets),
        disabled_toolsets=_split(disable_toolsets or ""),
        yolo=True if yolo else None,
        max_turns=max_turns,
        cwd=_folder(cwd),
        resume=resume,
        quiet=quiet,
        as_json=as_json,
        dry_run=dry_run,
    )
    return open_chat(options)


def open_chat(options: ChatOptions) -> int:
    """Run one question, or the chat until the person leaves; returns the exit code."""
    settings = load_settings()
    fetch_weights(
        settings,
        model=options.model,
        provider=options.provider,
        check=lambda: refuse_unknown_toolsets(open_runtime(), [*(options.toolsets or ()), *options.disabled_toolsets]),
    )
    if options.query is not None:
        from toolcrib.cli.chat.one_shot import answer_once  # noqa: PLC0415 - spares one question the whole chat

        return asyncio.run(answer_once(options, settings))
    from toolcrib.cli.chat.interactive import run_interactive  # noqa: PLC0415 - brings prompt_toolkit and rich

    return asyncio.run(run_interactive(options, settings))


def _folder(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    folder = Path(cwd).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {str(folder)!r}; name one that exists, as in `toolcrib chat --cwd .`")
    return str(folder)


def _split(names: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in names.split(",") if name.strip())
    return () if found == (NOTHING,) else found
