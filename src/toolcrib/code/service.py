"""Runs the scripts of `execute_code`: where, with which tools, within which bounds.

What the gate is asked. A script is an `exec` effect: `python3 -c CODE`, which the gate reads as it reads a command of
the terminal. In the sandbox for scripts that effect is also *isolated*: what would harm this machine (other processes,
the system, code that cannot be read) ends there, so only what can harm the session's own folder or leave by a tool is
asked about. A call of a tool from inside is judged by itself, like every call. Where no sandbox can be had, the script
is judged as a command that runs on this machine with the user's rights.

What was agreed to for a sandbox never runs outside of one: if it turns out that it cannot be opened, or is weaker than
usual, the call goes through the whole pipeline again, with the effects that it really has.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from toolcrib.code.answer import answer
from toolcrib.code.callable_tools import EXECUTE_CODE, script_tools
from toolcrib.code.calls import ScriptCalls
from toolcrib.code.git_guard import GitGuards
from toolcrib.code.interpreter import WaitingInterpreters
from toolcrib.code.listening import CallerSide
from toolcrib.code.place import MEGABYTE, ScriptPlace, covering_secrets, in_slot, inside, interpreter_order, sandboxed
from toolcrib.code.run import NotIsolated, ScriptOrder, ScriptOutcome, ScriptRun
from toolcrib.config.settings import Settings
from toolcrib.core.context import ToolContext
from toolcrib.core.environments import EnvironmentSpec, ExecutionTarget
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.core.types import Effect, JsonObject, ToolResult
from toolcrib.environments.backends import sandbox
from toolcrib.environments.output import BoundedOutput
from toolcrib.registry.results import tool_error, tool_result

if TYPE_CHECKING:
    from toolcrib.core.services import Services, TerminalPort

TRY_AGAIN_SECONDS = 60.0
MAX_SAVED = 64 * MEGABYTE
OWN_FOLDER = str(Path(__file__).resolve().parent.parent.parent)
"""What makes us importable, where it is on the path."""

Walls = Literal["strong", "weak", "none"]
"""How well the sandbox around a folder holds, as far as is known."""


class Code:
    """What the `execute_code` tool asks. One for each Runtime; may be used from any loop or thread."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._lock = threading.Lock()
        self._walls: dict[str, tuple[Walls, float]] = {}
        """By workspace, what was found out when a sandbox around it was opened, and when."""
        self._why_none = ""
        self._is_probed = self._is_usable = False
        self._in_use: set[EnvironmentSpec] = set()
        self._waiting = WaitingInterpreters()
        self._git = GitGuards()

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """The script as a command, in the place where it would run."""
        where = self._terminal.execution_target(ctx)
        place, command = self._place(where), f"python3 -c {shlex.quote(_source(args))}"
        if place.alone:
            return (Effect("exec", command, str(place.folder), isolated=place.isolated),)
        return (where.effect("exec", command),)

    async def run(self, args: JsonObject, ctx: ToolContext, enabled_tools: Sequence[str] | None = None) -> str:
        """Run a script to its end, and say what it printed and how it ended."""
        if enabled_tools is not None:
            named = frozenset(enabled_tools) | {EXECUTE_CODE}
            ctx = replace(ctx, allowed_tools=named if ctx.allowed_tools is None else named & ctx.allowed_tools)
        where = self._terminal.execution_target(ctx)
        try:
            place = self._place(where)
            if ctx.effects is not None and _deeds(ctx.effects) != _deeds(self.effects(args, ctx)):
                return tool_error("where the script would run has just changed; call it again")
            with self._slot(place) as own:
                return await self._run_in(own, where, args, ctx)
        except EnvironmentFailed as error:
            if not self._lower(where, error):
                return tool_error(str(error))
            return await self._again(args, ctx)
        except ToolcribError as error:
            return tool_error(str(error))

    async def _run_in(self, place: ScriptPlace, where: ExecutionTarget, args: JsonObject, ctx: ToolContext) -> str:
        settings, started = self._settings.code_execution, time.monotonic()
        definitions = self._services.tool_catalog.definitions(ctx)
        functions = {tool["function"]["name"]: tool["function"] for tool in definitions}
        tools = script_tools(functions)
        order = ScriptOrder(
            interpreter=interpreter_order(settings, where, place),
            start={
                "code": _source(args),
                "tools": [(name, _parameters(functions[name])) for name in tools],
                "strict": settings.mode == "strict",
                "memory_bytes": settings.memory_mb * MEGABYTE,
                "max_processes": settings.max_processes,
                "hidden_folder": OWN_FOLDER if where.is_here else "",
            },
            alone=place.alone,
            isolated=place.isolated,
            timeout_seconds=settings.timeout,
            deadline=ctx.deadline,
            max_error_bytes=settings.max_error_bytes,
        )
        caller = CallerSide(ctx, self._terminal.mask)
        run = ScriptRun(order, self._output(), caller, self._waiting)
        calls = ScriptCalls(ctx, frozenset(tools), settings.max_tool_calls, run.send)
        project = Path(place.spec.cwd)
        if place.alone:
            self._git.enter(project)
        try:
            outcome = await self._serve(run, calls, caller, place, ctx)
        finally:
            taken_back = self._git.leave(project) if place.alone else ""
        return tool_result(
            answer(
                outcome,
                calls=calls.made,
                seconds=time.monotonic() - started,
                memory_mb=settings.memory_mb,
                note="; ".join(filter(None, (place.note, taken_back))),
                mask=self._terminal.mask,
            )
        )

    async def _serve(
        self, run: ScriptRun, calls: ScriptCalls, caller: CallerSide, place: ScriptPlace, ctx: ToolContext
    ) -> ScriptOutcome:
        """Let it run where its place lives, and serve its calls here."""
        running = asyncio.ensure_future(self._terminal.work_in(place.spec, run.in_place))
        running.add_done_callback(lambda _: caller.finish())
        try:
            async for call in caller.calls():
                calls.begin(call)
                if calls.is_flood:
                    run.give_up()
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            run.interrupt()
            if not run.has_begun:
                # Its place is still being opened, which may take long.
                running.cancel()
            outcome = await asyncio.shield(running)
            if ctx.cancelled:
                return outcome
            raise
        finally:
            await calls.close()

    async def _again(self, args: JsonObject, ctx: ToolContext) -> str:
        result: ToolResult = await self._services.call(ctx, EXECUTE_CODE, args)
        return result.text

    # Where

    @property
    def _terminal(self) -> TerminalPort:
        return self._services.terminal

    def _place(self, where: ExecutionTarget) -> ScriptPlace:
        """Where a script of this session would run; raises EnvironmentFailed where it cannot have what it must have."""
        settings = self._settings.code_execution
        if where.spec.backend != "local" or settings.sandbox == "off":
            return inside(where)
        walls = self._walls_around(where.spec.cwd)
        if walls != "none":
            return sandboxed(where, settings, isolated=walls == "strong")
        if settings.sandbox == "on":
            raise EnvironmentFailed(f"scripts may run in a sandbox only, and there is none: {self._why_none}")
        return inside(where)

    def _walls_around(self, workspace: str) -> Walls:
        with self._lock:
            if not self._is_probed:
                # Once: whether this machine can do it at all does not change while we run.
                self._is_probed = True
                options = sandbox.SandboxOptions(workspace=Path(workspace), use=self._settings.terminal.sandbox.use)
                status = self._terminal.run(sandbox.probe(options))
                self._is_usable = status.usable
                self._why_none = f"{status.detail}; {status.remedy}"
            return "none" if not self._is_usable else self._known_walls(workspace)

    def _known_walls(self, workspace: str) -> Walls:
        walls, since = self._walls.get(workspace, ("strong", 0.0))
        # What failed once may have been a busy machine.
        return "strong" if time.monotonic() - since > TRY_AGAIN_SECONDS else walls

    def _lower(self, where: ExecutionTarget, error: EnvironmentFailed) -> bool:
        """Note that the sandbox around a folder holds less than was thought; False where that changes nothing."""
        workspace = where.spec.cwd
        with self._lock:
            known = self._known_walls(workspace)
            if where.spec.backend != "local" or known == "none" or self._settings.code_execution.sandbox == "off":
                return False
            lowered: Walls = "weak" if isinstance(error, NotIsolated) and known == "strong" else "none"
            self._walls[workspace] = lowered, time.monotonic()
            if lowered == "none":
                self._why_none = str(error)
            return True

    @contextmanager
    def _slot(self, place: ScriptPlace) -> Iterator[ScriptPlace]:
        """The place for one script; scripts that run at the same time never share a sandbox."""
        if not place.alone:
            yield place
            return
        place = covering_secrets(place)
        with self._lock:
            slot = 0
            while (own := in_slot(place, slot)).spec in self._in_use:
                slot += 1
            self._in_use.add(own.spec)
        try:
            yield own
        finally:
            with self._lock:
                self._in_use.discard(own.spec)

    def _output(self) -> BoundedOutput:
        limit = self._settings.code_execution.max_output_bytes
        name = f"script-{os.urandom(6).hex()}.txt"
        return BoundedOutput(limit, save_to=self._settings.home.results_dir / name, max_saved=MAX_SAVED)


def _source(args: JsonObject) -> str:
    """The script, without the mark that some editors begin a file with."""
    code: str = args["code"]
    return code.removeprefix("\ufeff")


def _deeds(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """The effects, without folders of other machines: they are known only once the place is open."""
    return tuple(replace(effect, cwd="") if effect.backend else effect for effect in effects)


def _parameters(function: JsonObject) -> list[str]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return list(properties) if isinstance(properties, dict) else []
