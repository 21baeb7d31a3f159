"""The slash commands that an editor offers: toolcrib's own, those of plugins, and the user's Markdown files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from acp.schema import AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate, UnstructuredCommandInput
from msgspec import Struct

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.agent.prompt_commands import PromptCommands, call_plugin_command, filled_in, plugin_command_summary
from toolcrib.plugins.context import Declaration
from toolcrib.undo.history import UndoResult

SUMMARY_CHARS = 100
_COMMAND = re.compile(r"/([A-Za-z][\w-]*)(?:\s+(.*))?$", re.DOTALL)


class CommandAnswer(Struct, frozen=True):
    """What a command gives: a text for the person, or a question for the agent."""

    text: str = ""
    question: str = ""


class EditorCommand(Struct, frozen=True, kw_only=True):
    """One slash command."""

    name: str
    summary: str
    run: Callable[[Agent, str], Awaitable[CommandAnswer]]
    hint: str = ""
    """What may follow the name."""


class EditorCommands:
    """The commands of one session."""

    def __init__(self, host: AgentHost, cwd: str, *, has_plugins: bool = True) -> None:
        self._plugins = host.runtime.loaded_plugins if has_plugins else []
        self._own = PromptCommands(host.settings.home, cwd)

    def current(self) -> dict[str, EditorCommand]:
        """All commands by name; neither a file nor a plugin can replace one of ours."""
        declared = [one for plugin in self._plugins for one in plugin.declarations]
        plugins = [_of_plugin(one) for one in declared if one.kind == "command" and one.name]
        files = [
            EditorCommand(name=one.name, summary=one.summary, hint=one.arguments, run=_asking(one.body))
            for one in self._own.current().values()
        ]
        return {one.name: one for one in (*files, *plugins, *COMMANDS)}

    def update(self) -> AvailableCommandsUpdate:
        """What the editor offers after a slash."""
        return AvailableCommandsUpdate(
            session_update="available_commands_update",
            available_commands=[
                AvailableCommand(
                    name=one.name,
                    description=" ".join(one.summary.split())[:SUMMARY_CHARS] or one.name,
                    input=AvailableCommandInput(root=UnstructuredCommandInput(hint=one.hint)) if one.hint else None,
                )
                for one in self.current().values()
            ],
        )

    def find(self, text: str) -> tuple[EditorCommand, str] | None:
        """The command that a prompt calls, and what follows it; None if it is no command."""
        found = _COMMAND.match(text.strip())
        command = self.current().get(found[1].lower()) if found else None
        return (command, (found[2] or "").strip()) if found and command is not None else None


async def compress(agent: Agent, topic: str) -> CommandAnswer:
    done = await agent.compress(topic)
    if done is None:
        return CommandAnswer("The conversation is too short to be summarised.")
    return CommandAnswer(
        f"A summary replaced {done.messages} messages: {done.tokens_before:,} tokens became {done.tokens_after:,}."
    )


async def undo(agent: Agent, _: str) -> CommandAnswer:
    asked = [one for one in agent.host.store.messages(agent.session_id) if one.message.role == "user"]
    if not asked:
        return CommandAnswer("There is nothing to undo.")
    done = await asyncio.to_thread(agent.host.file_history.undo_turn, agent.session_id, asked[-1].turn_id)
    agent.undo()
    return CommandAnswer(f"The last question is undone; the agent no longer knows it.\n{_files(done)}")


async def redo(agent: Agent, _: str) -> CommandAnswer:
    done = await asyncio.to_thread(agent.host.file_history.redo, agent.session_id)
    return CommandAnswer(_files(done) if done.files else "There is nothing to redo.")


async def show_usage(agent: Agent, _: str) -> CommandAnswer:
    usage = agent.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return CommandAnswer(
        f"Input: {usage.input_tokens:,} tokens, output: {usage.output_tokens:,} tokens, cost: {cost}. "
        f"The conversation takes {agent.context_share:.0%} of the model's context."
    )


async def show_tools(agent: Agent, _: str) -> CommandAnswer:
    names = await asyncio.to_thread(lambda: agent.tools)
    return CommandAnswer(f"{len(names)} tools: {', '.join(f'`{name}`' for name in names)}")


COMMANDS = (
    EditorCommand(name="compress", summary="Summarise the older part of the conversation", hint="topic", run=compress),
    EditorCommand(name="undo", summary="Undo the last question and the files that it changed", run=undo),
    EditorCommand(name="redo", summary="Restore what /undo took back from the files", run=redo),
    EditorCommand(name="usage", summary="Show the tokens and the cost of this session", run=show_usage),
    EditorCommand(name="tools", summary="List the tools that the agent can use", run=show_tools),
)


def _files(done: UndoResult) -> str:
    lines = [f"- {one.path}: {one.reason if one.what == 'refused' else one.what}" for one in done.files]
    return "\n".join(lines) or "No files were changed."


def _asking(body: str) -> Callable[[Agent, str], Awaitable[CommandAnswer]]:
    async def run(_: Agent, rest: str) -> CommandAnswer:
        return CommandAnswer(question=filled_in(body, rest))

    return run


def _of_plugin(one: Declaration) -> EditorCommand:
    async def run(_: Agent, rest: str) -> CommandAnswer:
        answer, problem = await call_plugin_command(one, rest)
        return CommandAnswer(problem or answer)

    return EditorCommand(
        name=one.name.lstrip("/").lower(),
        summary=plugin_command_summary(one),
        hint=str(one.options.get("args_hint") or ""),
        run=run,
    )
