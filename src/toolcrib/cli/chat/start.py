"""Creates what a chat needs: the agent host, and the agent that the options describe."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.agent.prompt import FolderTrust, ProjectFile, find_project_file, trust_questions
from toolcrib.api import adopt_runtime
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.output import one_line, stdout_reserved
from toolcrib.cli.runtime import require_known_toolsets
from toolcrib.config.files import replace_file, writing
from toolcrib.config.settings import Settings
from toolcrib.core.context import Asker
from toolcrib.core.errors import ConfigError
from toolcrib.core.models import Provider
from toolcrib.core.ports import Approver
from toolcrib.registry.default import registry

AskLine = Callable[[str], Awaitable[str | None]]

DEFAULT_MODEL_LINE = (
    "No model is configured yet, so a small one on this machine answers: free and private, good for simple tasks, not "
    "fast, and sometimes wrong. Run `toolcrib setup` when you want a larger one."
)


def open_host(options: ChatOptions, approver: Approver, asker: Asker | None, settings: Settings) -> AgentHost:
    """The host for a person at a terminal, with all tools loaded; what tool files print goes to stderr."""
    host = AgentHost(
        settings=settings,
        entry_point="interactive",
        approver=approver,
        asker=asker,
        yolo=options.yolo,
        workspace=options.cwd,
        registry=registry,
        platform="cli",
        model=options.model,
        provider=options.provider,
    )
    # Tools that call other tools through the package's functions must use the same gate and records.
    adopt_runtime(host.runtime)
    with stdout_reserved():
        host.runtime.load()
    require_known_toolsets(host.runtime)
    return host


def open_agent(host: AgentHost, options: ChatOptions) -> Agent:
    """The agent for the options, new or resumed."""
    return Agent(
        host=host,
        toolsets=options.toolsets,
        disabled_toolsets=options.disabled_toolsets,
        session_id=options.resume,
        max_turns=options.max_turns,
        cwd=options.cwd,
        dry_run=options.dry_run,
        mode=options.mode,
    )


async def ask_to_trust(
    options: ChatOptions,
    settings: Settings,
    ask_line: AskLine,
    commands_of: Callable[[str], ProjectFile | None] = lambda _: None,
) -> None:
    """Ask once whether the project's instructions may instruct the agent; without an answer they stay data.

    The same for the project's slash commands, which `commands_of` finds: without a yes they are left out.
    """
    if options.resume is not None or not settings.agent.project_files:
        return
    folder = os.path.abspath(os.path.expanduser(options.cwd or os.curdir))  # noqa: ASYNC240, PTH100, PTH111
    for one in trust_questions(settings.home, find_project_file(folder), commands_of(folder)):
        file = one.file
        lines = [
            f"{file.name} in {one_line(file.folder)} has {one.has}.",
            *([f"Note that {file.order}."] if file.order else ()),
            f"{one.question} [y/N] ",
        ]
        answer = (await ask_line("\n".join(lines)) or "").strip().lower()
        if answer:
            FolderTrust(settings.home).remember(file, is_trusted=answer in ("y", "yes"))


def default_model_notice(provider: Provider, options: ChatOptions, host: AgentHost) -> str:
    """What to expect of the embedded model if no other was chosen; empty once it was said."""
    model = host.settings.model
    asked_for = options.model or options.provider or model.default or model.provider
    told = host.settings.home.default_model_told_file
    if provider.name != "embedded" or asked_for or options.quiet or told.exists():
        return ""
    with suppress(ConfigError), writing(told) as target:
        replace_file(target, b"")
    return DEFAULT_MODEL_LINE
