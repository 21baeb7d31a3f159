"""`toolcrib chat`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import click

from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.output import note
from toolcrib.cli.runtime import complete_toolsets, open_runtime, refuse_unknown_toolsets
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings
from toolcrib.core.context import CancelToken
from toolcrib.core.errors import UsageError
from toolcrib.providers.choose import explain_choice
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.providers.embedded.weights import WeightsStore, open_store


def fetch_weights(
    settings: Settings, *, model: str = "", provider: str = "", check: Callable[[], None] = lambda: None
) -> None:
    """Make sure that the weights are here if the embedded model is the one that answers; Ctrl-C can be gone on from.

    `check` is called before anything is fetched: nobody waits for minutes to be told of a misspelt option.
    """
    choice = explain_choice(settings, model=model, provider=provider)
    if choice.provider != "embedded":
        return
    store = open_store(environment(), settings.home)
    if store.path(find_model(choice.model)) is None:
        check()
        _fetch(store, choice.model)


def _fetch(store: WeightsStore, name: str) -> None:
    cancel = CancelToken()
    model = find_model(name)
    size = f"{model.bytes / 1e6:,.0f} MB"
    note(f"{model.title} ({model.licence}) is fetched once: {size}. Ctrl-C stops; the next start goes on from there.")
    try:
        weights = store.obtain(model, _Bar() if sys.stderr.isatty() else _Lines(), cancel)
    except KeyboardInterrupt:
        cancel.cancel("interrupted")
        raise
    if weights.notice:
        note(weights.notice)


class _Bar:
    """One line that grows, redrawn in place."""

    WIDTH = 30

    def __call__(self, done: int, total: int, what: str) -> None:
        share = done / total if total else 0.0
        filled = int(share * self.WIDTH)
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar}] {share:4.0%} of {total / 1e6:,.0f} MB  {what[:30]:30}{end}")
        sys.stderr.flush()


class _Lines:
    """A line for every tenth, where nobody watches."""

    def __init__(self) -> None:
        self._tenths = -1

    def __call__(self, done: int, total: int, what: str) -> None:
        tenths = done * 10 // total if total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            note(f"{what}: {tenths * 10} % of {total / 1e6:,.0f} MB")


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
def chat(
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
    from toolcrib.cli.chat.session import run_interactive  # noqa: PLC0415 - brings prompt_toolkit and rich

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
