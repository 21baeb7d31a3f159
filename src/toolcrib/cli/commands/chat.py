"""`toolcrib chat`: checks the options, downloads the embedded model if needed, and starts the chat or one question."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.output import note
from toolcrib.cli.runtime import complete_toolsets, open_runtime, require_known_toolsets
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.os_errors import current_folder
from toolcrib.config.settings import Settings
from toolcrib.core.approvals import MODES, Mode
from toolcrib.core.cancel import CancelToken
from toolcrib.core.errors import UsageError
from toolcrib.providers.choose import explain_choice
from toolcrib.providers.embedded.catalog import find_model
from toolcrib.sessions.store import SessionStore

if TYPE_CHECKING:
    from toolcrib.providers.embedded.weights import WeightsStore

NOTHING = "none"
LATEST = "last"


def fetch_weights(
    settings: Settings, *, model: str = "", provider: str = "", check: Callable[[], None] = lambda: None
) -> None:
    """Download the weights of the embedded model if it is in use and they are missing; resumes a partial download.

    Calls `check` before a download, so that nobody waits for minutes to learn of a misspelt option.
    """
    choice = explain_choice(settings, model=model, provider=provider)
    if choice.provider != "embedded":
        return
    # Imports an HTTP client and archives, which no other provider needs.
    from toolcrib.providers.embedded.weights import open_store  # noqa: PLC0415

    store = open_store(environment(), settings.home)
    if store.path(find_model(choice.model)) is None:
        check()
        _fetch(store, choice.model)


def _fetch(store: WeightsStore, name: str) -> None:
    cancel = CancelToken()
    model = find_model(name)
    size = f"{model.bytes / 1e6:,.0f} MB"
    note(
        f"Downloading {model.title} ({model.licence}) once: {size}. Ctrl-C stops; the next start resumes the download."
    )
    try:
        weights = store.obtain(model, _Bar() if sys.stderr.isatty() else _Lines(), cancel)
    except KeyboardInterrupt:
        cancel.cancel("interrupted")
        raise
    if weights.notice:
        note(weights.notice)


class _Bar:
    """A progress bar, redrawn in place."""

    WIDTH = 30

    def __call__(self, done: int, total: int, what: str) -> None:
        share = done / total if total else 0.0
        filled = int(share * self.WIDTH)
        bar = "#" * filled + "-" * (self.WIDTH - filled)
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r[{bar}] {share:4.0%} of {total / 1e6:,.0f} MB  {what[:30]:30}{end}")
        sys.stderr.flush()


class _Lines:
    """A line for every tenth of the download, without a terminal."""

    def __init__(self) -> None:
        self._tenths = -1

    def __call__(self, done: int, total: int, what: str) -> None:
        tenths = done * 10 // total if total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            note(f"{what}: {tenths * 10} % of {total / 1e6:,.0f} MB")


@click.command(name="chat")
@click.argument("prompt", metavar="[PROMPT]", required=False)
@click.option("-q", "--query", metavar="TEXT", help="Ask one question, print the answer and exit.")
@click.option("-m", "--model", metavar="NAME", default="", help="The model; `provider/model` names both.")
@click.option("--provider", metavar="NAME", default="", help="The provider; see `toolcrib model list`.")
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
@click.option(
    "--yolo",
    is_flag=True,
    help="Run dangerous calls without approval. Catastrophic commands and deny rules still apply.",
)
@click.option(
    "--max-turns", metavar="N", type=click.IntRange(min=1), help="At most N requests to the model for a question."
)
@click.option("--cwd", metavar="FOLDER", type=click.Path(), help="Work in this folder instead of the current one.")
@click.option(
    "-r",
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value=LATEST,
    help="Resume this session; without an id, the latest one.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="ask: approve each edit; auto-edit: edit files of the workspace freely; plan: only read, end with a plan.",
)
@click.option("-c", "--continue", "continues", is_flag=True, help="Resume the latest session.")
@click.option("--quiet", is_flag=True, help="Print only the answer, no progress.")
@click.option("--json", "as_json", is_flag=True, help="With -q: print each event as a line of JSON.")
@click.option("--connect", metavar="URL", help="Chat with the agent of a running `toolcrib serve` at this address.")
@click.option("--dry-run", is_flag=True, help="With -q: print the calls the model requests without running them.")
def chat(
    prompt: str | None,
    query: str | None,
    model: str,
    provider: str,
    toolsets: str | None,
    disable_toolsets: str | None,
    yolo: bool,
    max_turns: int | None,
    cwd: str | None,
    resume: str | None,
    continues: bool,
    quiet: bool,
    as_json: bool,
    connect: str | None,
    dry_run: bool,
    mode: Mode | None,
) -> int:
    """Chat with the agent, or ask it one question.

    PROMPT is the first message of the chat; without a terminal it works like -q. Piped input is sent along with the
    question, and @path in the question attaches a file, a folder or an image.

    With -q, the answer goes to stdout and progress to stderr. The exit code is 0 if the agent answered, 1 if the model
    or the last tools failed, 2 for wrong usage, 3 if the budget ran out, 4 if something it needed was denied, and 130
    if it was interrupted.

    \b
    Examples:
      toolcrib chat
      toolcrib chat -q "Use the weather tool for London"
      git diff | toolcrib chat -q "Review this"
      toolcrib "What does @src/app.py do?"
      toolcrib chat --toolsets web,file --resume
      toolcrib chat --connect http://127.0.0.1:8642
    """
    if continues and resume not in (None, LATEST):
        raise UsageError("--continue and --resume ID contradict each other; give one of them")
    prompt, query = _first_message(prompt, query, needs_question=as_json or dry_run)
    options = ChatOptions(
        query=query,
        prompt=prompt or "",
        model=model,
        provider=provider,
        toolsets=None if toolsets is None else _split(toolsets),
        disabled_toolsets=_split(disable_toolsets or ""),
        yolo=True if yolo else None,
        max_turns=max_turns,
        cwd=_folder(cwd),
        resume=LATEST if continues else resume,
        quiet=quiet,
        as_json=as_json,
        dry_run=dry_run,
        mode=mode,
    )
    if connect is not None:
        from toolcrib.cli.chat.remote import chat_with_server  # noqa: PLC0415 - few chats need it, and TLS is heavy

        return chat_with_server(options, load_settings().home, connect)
    return open_chat(options)


def _first_message(prompt: str | None, query: str | None, *, needs_question: bool) -> tuple[str | None, str | None]:
    """What begins a chat, and the question to answer once: at most one of them; raises UsageError."""
    if prompt is not None and query is not None:
        raise UsageError("a PROMPT and -q are two questions; give one of them, as in `toolcrib chat -q TEXT`")
    if prompt is not None and (needs_question or not (sys.stdin.isatty() and sys.stdout.isatty())):
        query, prompt = prompt, None
    if query is None and needs_question:
        raise UsageError("--json and --dry-run need a question, as in `toolcrib chat --json -q TEXT`")
    if query is not None and not query.strip():
        raise UsageError("the question is empty; add one, as in `toolcrib chat -q TEXT`")
    return prompt, query


def open_chat(options: ChatOptions) -> int:
    """Answer one question, or run the chat until the person leaves; returns the exit code."""
    settings = load_settings()
    if options.cwd is None and options.resume is None:
        current_folder()  # raises before anything is started that would work there
    fetch_weights(
        settings,
        model=options.model,
        provider=options.provider,
        check=lambda: _check_names(options, settings),
    )
    if options.query is not None:
        from toolcrib.cli.chat.one_shot import answer_once  # noqa: PLC0415 - imports no prompt_toolkit and no rich

        return asyncio.run(answer_once(options, settings))
    from toolcrib.cli.chat.session import run_interactive  # noqa: PLC0415 - imports prompt_toolkit and rich

    return asyncio.run(run_interactive(options, settings))


def _check_names(options: ChatOptions, settings: Settings) -> None:
    """Raise for a toolset or a session that does not exist."""
    require_known_toolsets(open_runtime(), [*(options.toolsets or ()), *options.disabled_toolsets])
    if options.resume is not None:
        store = SessionStore(settings.home.sessions_file)
        try:
            store.get(options.resume)
        finally:
            store.close()


def _folder(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    folder = Path(cwd).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"no such folder: {str(folder)!r}; name an existing one, as in `toolcrib chat --cwd .`")
    return str(folder)


def _split(names: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in names.split(",") if name.strip())
    return () if found == (NOTHING,) else found
