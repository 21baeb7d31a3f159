"""What the model is told about a script that has run."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from toolcrib.code_execution import EXECUTE_CODE, script_tools
from toolcrib.code_execution.channel import ExceptionFrame
from toolcrib.code_execution.interpreter import (
    MEGABYTE,
    NO_PYTHON,
    OLD_PYTHON,
    InterpreterPool,
    ScriptEnvironment,
    in_slot,
    interpreter_request,
    sandbox_environment,
    session_environment,
    without_secrets,
)
from toolcrib.code_execution.protected_files import GitGuards
from toolcrib.code_execution.run import CallerBridge, NotIsolated, ScriptCalls, ScriptOutcome, ScriptRequest, ScriptRun
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.environments import EnvironmentSpec
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.core.types import Effect, JsonObject, ToolResult
from toolcrib.environments.backends import sandbox
from toolcrib.environments.output import BoundedOutput
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.terminal.service import TerminalService
from toolcrib.terminal.whereabouts import Whereabouts

Mask = Callable[[str], str]
STATUS = {"ended": "error", "timeout": "timeout", "interrupt": "interrupted", "broken": "error", "flood": "error"}
LONGEST_NOISE = 500
VERY_OLD_PYTHON = "Unknown option: -I"


def script_result(
    outcome: ScriptOutcome, *, calls: int, seconds: float, memory_mb: int, note: str, mask: Mask
) -> JsonObject:
    """The result of the tool; a script that failed has an `error`."""
    error = _error(outcome, memory_mb)
    told: JsonObject = {"status": STATUS[outcome.stopped] if error else "success"}
    if error:
        told["error"] = mask(error)
    told["output"] = mask(outcome.output.text())
    if outcome.errors.total_bytes:
        told["error_output"] = mask(outcome.errors.text())
    if outcome.exception is not None and outcome.exception.traceback:
        told["traceback"] = mask(outcome.exception.traceback)
    if outcome.done is not None:
        code = outcome.done.code
        told["exit_code"] = code if code >= 0 else 128 - code
    told["tool_calls_made"] = calls
    told["duration_seconds"] = round(seconds, 2)
    if outcome.output.is_cut and outcome.output.saved is not None:
        told["full_output"] = str(outcome.output.saved)
    if notes := _notes(outcome, note):
        told["note"] = notes
    return told


def _error(outcome: ScriptOutcome, memory_mb: int) -> str:
    """Why the script did not do its work; empty when it did."""
    if outcome.stopped == "timeout":
        return f"the script was ended because it took longer than {outcome.allowed_seconds:.3g} seconds"
    if outcome.stopped == "interrupt":
        return "the script was interrupted and ended"
    if outcome.stopped == "flood":
        return "the script was ended because it went on calling tools that it may not call"
    if outcome.stopped == "broken":
        return "the script broke the channel to its tools, and was ended"
    if outcome.done is None:
        return _never_finished(outcome)
    if outcome.done.too_much == "processes":
        return "the script was ended because it started too many processes"
    if outcome.done.too_much == "memory":
        return f"the script was ended because it and what it started used more than {memory_mb} MB of memory"
    if outcome.exception is not None:
        return _of_exception(outcome.exception, memory_mb)
    return _of_code(outcome.done.code)


def _of_exception(exception: ExceptionFrame, memory_mb: int) -> str:
    said = f"{exception.type}: {exception.message}".removesuffix(": ")
    if exception.type == "MemoryError" and memory_mb:
        return f"{said}; a script may use {memory_mb} MB of memory"
    return said


def _of_code(code: int) -> str:
    if code >= 0:
        return f"the script exited with code {code}" if code else ""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the script was ended by {name}"


def _never_finished(outcome: ScriptOutcome) -> str:
    noise, ended = outcome.noise, outcome.ended
    if NO_PYTHON in noise:
        return "no Python was found where scripts run; install python3 there, or set code_execution.python"
    if OLD_PYTHON in noise or VERY_OLD_PYTHON in noise:
        version = noise.partition(OLD_PYTHON)[2].split() or ["2"]
        return (
            f"Python {version[0]} is too old to run scripts; install 3.7 or later there, or set code_execution.python"
        )
    if ended is not None and ended.reason == "no_folder":
        return f"{ended.note}; go to a folder that exists with the terminal tool"
    if ended is not None and ended.reason == "lost":
        return "the place where the script ran went away before it ended"
    if noise:
        return f"the interpreter could not run the script; it said: {noise[-LONGEST_NOISE:]}"
    return "the script ended together with its interpreter, so that nothing more is known about its end"


def _notes(outcome: ScriptOutcome, note: str) -> str:
    notes = [note] if note else []
    left = (outcome.done.left if outcome.done is not None else 0) or len(outcome.left)
    if left:
        notes.append(f"what the script left running was ended ({left}); use the terminal tool for such work")
    return "; ".join(notes)


TRY_AGAIN_SECONDS = 60.0
MAX_SAVED = 64 * MEGABYTE
OWN_FOLDER = str(Path(__file__).resolve().parent.parent.parent)
"""What makes us importable, where it is on the path."""

SandboxStrength = Literal["strong", "weak", "none"]
"""How well the sandbox around a folder holds, as far as is known."""


def build(settings: Settings, services: Services) -> CodeExecutionService:
    return CodeExecutionService(settings, services)


class CodeExecutionService:
    """What the `execute_code` tool asks. One for each Runtime; may be used from any loop or thread."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._lock = threading.Lock()
        self._walls: dict[str, tuple[SandboxStrength, float]] = {}
        """By workspace, what was found out when a sandbox around it was opened, and when."""
        self._why_none = ""
        self._is_probed = self._is_usable = False
        self._in_use: set[EnvironmentSpec] = set()
        self._waiting = InterpreterPool()
        self._git = GitGuards()

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """The script as a command, in the place where it would run."""
        where = self._terminal.whereabouts(ctx)
        place, command = self._place(where), f"python3 -c {shlex.quote(_source(args))}"
        if place.alone:
            return (Effect("exec", command, str(place.folder), isolated=place.isolated),)
        return (where.effect("exec", command),)

    async def run(self, args: JsonObject, ctx: ToolContext, enabled_tools: Sequence[str] | None = None) -> str:
        """Run a script to its end, and say what it printed and how it ended."""
        if enabled_tools is not None:
            named = frozenset(enabled_tools) | {EXECUTE_CODE}
            ctx = replace(ctx, allowed_tools=named if ctx.allowed_tools is None else named & ctx.allowed_tools)
        where = self._terminal.whereabouts(ctx)
        try:
            place = self._place(where)
            if ctx.effects is not None and _comparable(ctx.effects) != _comparable(self.effects(args, ctx)):
                return tool_error("where the script would run has just changed; call it again")
            with self._slot(place) as own:
                return await self._run_in(own, where, args, ctx)
        except EnvironmentFailed as error:
            if not self._lower(where, error):
                return tool_error(str(error))
            return await self._again(args, ctx)
        except ToolcribError as error:
            return tool_error(str(error))

    async def _run_in(self, place: ScriptEnvironment, where: Whereabouts, args: JsonObject, ctx: ToolContext) -> str:
        settings, started = self._settings.code_execution, time.monotonic()
        definitions = self._services.get("tool_catalog").definitions(ctx)
        functions = {tool["function"]["name"]: tool["function"] for tool in definitions}
        tools = script_tools(functions)
        order = ScriptRequest(
            interpreter=interpreter_request(settings, where, place),
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
        caller = CallerBridge(ctx, self._terminal.options.mask)
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
            script_result(
                outcome,
                calls=calls.made,
                seconds=time.monotonic() - started,
                memory_mb=settings.memory_mb,
                note="; ".join(filter(None, (place.note, taken_back))),
                mask=self._terminal.options.mask,
            )
        )

    async def _serve(
        self, run: ScriptRun, calls: ScriptCalls, caller: CallerBridge, place: ScriptEnvironment, ctx: ToolContext
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
    def _terminal(self) -> TerminalService:
        found: TerminalService = self._services.get("terminal")
        return found

    def _place(self, where: Whereabouts) -> ScriptEnvironment:
        """Where a script of this session would run; raises EnvironmentFailed where it cannot have what it must have."""
        settings = self._settings.code_execution
        if where.spec.backend != "local" or settings.sandbox == "off":
            return session_environment(where)
        walls = self._walls_around(where.spec.cwd)
        if walls != "none":
            return sandbox_environment(where, settings, isolated=walls == "strong")
        if settings.sandbox == "on":
            raise EnvironmentFailed(f"scripts may run in a sandbox only, and there is none: {self._why_none}")
        return session_environment(where)

    def _walls_around(self, workspace: str) -> SandboxStrength:
        with self._lock:
            if not self._is_probed:
                # Once: whether this machine can do it at all does not change while we run.
                self._is_probed = True
                options = sandbox.SandboxOptions(workspace=Path(workspace), use=self._settings.terminal.sandbox.use)
                status = self._terminal.run(sandbox.probe(options))
                self._is_usable = status.usable
                self._why_none = f"{status.detail}; {status.remedy}"
            return "none" if not self._is_usable else self._known_walls(workspace)

    def _known_walls(self, workspace: str) -> SandboxStrength:
        walls, since = self._walls.get(workspace, ("strong", 0.0))
        # What failed once may have been a busy machine.
        return "strong" if time.monotonic() - since > TRY_AGAIN_SECONDS else walls

    def _lower(self, where: Whereabouts, error: EnvironmentFailed) -> bool:
        """Note that the sandbox around a folder holds less than was thought; False where that changes nothing."""
        workspace = where.spec.cwd
        with self._lock:
            known = self._known_walls(workspace)
            if where.spec.backend != "local" or known == "none" or self._settings.code_execution.sandbox == "off":
                return False
            lowered: SandboxStrength = "weak" if isinstance(error, NotIsolated) and known == "strong" else "none"
            self._walls[workspace] = lowered, time.monotonic()
            if lowered == "none":
                self._why_none = str(error)
            return True

    @contextmanager
    def _slot(self, place: ScriptEnvironment) -> Iterator[ScriptEnvironment]:
        """The place for one script; scripts that run at the same time never share a sandbox."""
        if not place.alone:
            yield place
            return
        place = without_secrets(place)
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


def _comparable(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """The effects, without folders of other machines: they are known only once the place is open."""
    return tuple(replace(effect, cwd="") if effect.backend else effect for effect in effects)


def _parameters(function: JsonObject) -> list[str]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return list(properties) if isinstance(properties, dict) else []
