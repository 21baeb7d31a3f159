"""The `execute_code` service: decides where a script runs, with which tools and limits, and describes its result."""

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
from toolcrib.code_execution.run import CallerBridge, NotIsolated, ScriptCalls, ScriptOutcome, ScriptRequest, ScriptRun
from toolcrib.config.settings import Settings
from toolcrib.core.context import Services, TerminalPort, ToolContext
from toolcrib.core.environments import EnvironmentSpec, ExecutionTarget
from toolcrib.core.errors import EnvironmentFailed, ToolcribError
from toolcrib.core.types import Effect, JsonObject, ToolResult
from toolcrib.environments.backends import sandbox
from toolcrib.environments.git_guard import GitGuards
from toolcrib.environments.output import BoundedOutput
from toolcrib.environments.specs import guarded_folders
from toolcrib.registry.results import tool_error, tool_result

Mask = Callable[[str], str]
STATUS = {"ended": "error", "timeout": "timeout", "interrupt": "interrupted", "broken": "error", "flood": "error"}
LONGEST_NOISE = 500
VERY_OLD_PYTHON = "Unknown option: -I"


def script_result(
    outcome: ScriptOutcome, *, calls: int, seconds: float, memory_mb: int, note: str, mask: Mask
) -> JsonObject:
    """The result of the tool; a failed script has an `error`."""
    error = _error(outcome, memory_mb)
    result: JsonObject = {"status": STATUS[outcome.stopped] if error else "success"}
    if error:
        result["error"] = mask(error)
    result["output"] = mask(outcome.output.text())
    if outcome.errors.total_bytes:
        result["error_output"] = mask(outcome.errors.text())
    if outcome.exception is not None and outcome.exception.traceback:
        result["traceback"] = mask(outcome.exception.traceback)
    if outcome.done is not None:
        code = outcome.done.code
        result["exit_code"] = code if code >= 0 else 128 - code
    result["tool_calls_made"] = calls
    result["duration_seconds"] = round(seconds, 2)
    if outcome.output.is_cut and outcome.output.saved is not None:
        result["full_output"] = str(outcome.output.saved)
    if notes := _notes(outcome, note):
        result["note"] = notes
    return result


def _error(outcome: ScriptOutcome, memory_mb: int) -> str:
    """Why the script failed; empty if it did not."""
    if outcome.stopped == "timeout":
        return f"the script was ended because it took longer than {outcome.allowed_seconds:.3g} seconds"
    if outcome.stopped == "interrupt":
        return "the script was interrupted and ended"
    if outcome.stopped == "flood":
        return "the script was ended because it kept calling tools it may not call"
    if outcome.stopped == "broken":
        return "the script was ended because it broke the channel to its tools"
    if outcome.done is None:
        return _never_finished(outcome)
    if outcome.done.too_much == "processes":
        return "the script was ended because it started too many processes"
    if outcome.done.too_much == "memory":
        return f"the script was ended because it and its processes used more than {memory_mb} MB of memory"
    if outcome.exception is not None:
        return _of_exception(outcome.exception, memory_mb)
    return _of_code(outcome.done.code)


def _of_exception(exception: ExceptionFrame, memory_mb: int) -> str:
    message = f"{exception.type}: {exception.message}".removesuffix(": ")
    if exception.type == "MemoryError" and memory_mb:
        return f"{message}; a script may use {memory_mb} MB of memory"
    return message


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
        return "no Python was found in the environment; install python3 there, or set code_execution.python"
    if OLD_PYTHON in noise or VERY_OLD_PYTHON in noise:
        version = noise.partition(OLD_PYTHON)[2].split() or ["2"]
        return (
            f"Python {version[0]} is too old to run scripts; install 3.7 or later there, or set code_execution.python"
        )
    if ended is not None and ended.reason == "no_folder":
        return f"{ended.note}; change to an existing folder with the terminal tool"
    if ended is not None and ended.reason == "lost":
        return "the environment was lost before the script ended"
    if noise:
        return f"the interpreter could not run the script: {noise[-LONGEST_NOISE:]}"
    return "the script ended together with its interpreter; its exit code is unknown"


def _notes(outcome: ScriptOutcome, note: str) -> str:
    notes = [note] if note else []
    left = (outcome.done.left if outcome.done is not None else 0) or len(outcome.orphans)
    if left:
        notes.append(f"processes that the script left running were ended ({left}); use the terminal tool for such work")
    return "; ".join(notes)


TRY_AGAIN_SECONDS = 60.0
MAX_SAVED = 64 * MEGABYTE
OWN_FOLDER = str(Path(__file__).resolve().parent.parent.parent)
"""The folder that makes toolcrib importable, if it is on the path."""

SandboxStrength = Literal["strong", "weak", "none"]
"""How strong the sandbox around a folder is, as far as known."""


class CodeExecutionService:
    """Runs the scripts of `execute_code`. One per Runtime; may be used from any loop or thread."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._lock = threading.Lock()
        self._strengths: dict[str, tuple[SandboxStrength, float]] = {}
        """By workspace: the strength that opening a sandbox revealed, and when."""
        self._why_none = ""
        self._is_probed = self._is_usable = False
        self._in_use: set[EnvironmentSpec] = set()
        self._interpreters = InterpreterPool()
        self._git = GitGuards("the script's")

    def effects(self, args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
        """The script as a command, in the environment where it would run."""
        where = self._terminal.execution_target(ctx)
        target, command = self._target(where), f"python3 -c {shlex.quote(_source(args))}"
        if target.alone:
            return (Effect("exec", command, str(target.folder), isolated=target.isolated),)
        return (where.effect("exec", command),)

    async def run(self, args: JsonObject, ctx: ToolContext, enabled_tools: Sequence[str] | None = None) -> str:
        """Run a script to its end; returns its output and outcome."""
        if enabled_tools is not None:
            named = frozenset(enabled_tools) | {EXECUTE_CODE}
            ctx = replace(ctx, allowed_tools=named if ctx.allowed_tools is None else named & ctx.allowed_tools)
        where = self._terminal.execution_target(ctx)
        try:
            target = self._target(where)
            if ctx.effects is not None and _comparable(ctx.effects) != _comparable(self.effects(args, ctx)):
                return tool_error("the environment of the script has just changed; call the tool again")
            with self._slot(target) as own:
                return await self._run_in(own, where, args, ctx)
        except EnvironmentFailed as error:
            if not self._lower(where, error):
                return tool_error(str(error))
            return await self._again(args, ctx)
        except ToolcribError as error:
            return tool_error(str(error))

    async def _run_in(
        self, target: ScriptEnvironment, where: ExecutionTarget, args: JsonObject, ctx: ToolContext
    ) -> str:
        settings, started = self._settings.code_execution, time.monotonic()
        definitions = self._services.tool_catalog.definitions(ctx)
        functions = {tool["function"]["name"]: tool["function"] for tool in definitions}
        tools = script_tools(functions)
        request = ScriptRequest(
            interpreter=interpreter_request(settings, where, target),
            start={
                "code": _source(args),
                "tools": [(name, _parameters(functions[name])) for name in tools],
                "strict": settings.mode == "strict",
                "memory_bytes": settings.memory_mb * MEGABYTE,
                "max_processes": settings.max_processes,
                "hidden_folder": OWN_FOLDER if where.is_here else "",
            },
            alone=target.alone,
            isolated=target.isolated,
            timeout_seconds=settings.timeout,
            deadline=ctx.deadline,
            max_error_bytes=settings.max_error_bytes,
        )
        caller = CallerBridge(ctx, self._terminal.mask)
        run = ScriptRun(request, self._output(), caller, self._interpreters)
        calls = ScriptCalls(ctx, frozenset(tools), settings.max_tool_calls, run.send)
        guarded = (
            (Path(target.spec.cwd),)
            if target.alone
            else await asyncio.to_thread(guarded_folders, target.spec, self._settings.terminal)
        )
        for folder in guarded:
            await asyncio.to_thread(self._git.enter, folder)
        try:
            outcome = await self._serve(run, calls, caller, target, ctx)
        finally:
            # Not in a thread: a cancelled call must not leave before it is done.
            restored = "; ".join(filter(None, [self._git.leave(folder) for folder in guarded]))
        return tool_result(
            script_result(
                outcome,
                calls=calls.made,
                seconds=time.monotonic() - started,
                memory_mb=settings.memory_mb,
                note="; ".join(filter(None, (target.note, restored))),
                mask=self._terminal.mask,
            )
        )

    async def _serve(
        self, run: ScriptRun, calls: ScriptCalls, caller: CallerBridge, target: ScriptEnvironment, ctx: ToolContext
    ) -> ScriptOutcome:
        """Run it on the loop of its environment, and serve its calls here."""
        running = asyncio.ensure_future(self._terminal.work_in(target.spec, run.run_in))
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
                # Its environment is still opening, which may take long.
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

    def _target(self, where: ExecutionTarget) -> ScriptEnvironment:
        """Where a script of this session runs; raises EnvironmentFailed if a required sandbox is unavailable."""
        settings = self._settings.code_execution
        if where.spec.backend != "local" or settings.sandbox == "off":
            return session_environment(where)
        strength = self._strength_around(where.spec.cwd)
        if strength != "none":
            return sandbox_environment(where, settings, isolated=strength == "strong")
        if settings.sandbox == "on":
            raise EnvironmentFailed(f"scripts may only run in a sandbox, and none is available: {self._why_none}")
        return session_environment(where)

    def _strength_around(self, workspace: str) -> SandboxStrength:
        with self._lock:
            if not self._is_probed:
                # Once: whether this machine supports sandboxes does not change while we run.
                self._is_probed = True
                options = sandbox.SandboxOptions(workspace=Path(workspace), use=self._settings.terminal.sandbox.use)
                status = self._terminal.run(sandbox.probe(options))
                self._is_usable = status.usable
                self._why_none = f"{status.detail}; {status.remedy}"
            return "none" if not self._is_usable else self._known_strength(workspace)

    def _known_strength(self, workspace: str) -> SandboxStrength:
        strength, since = self._strengths.get(workspace, ("strong", 0.0))
        # A single failure may have been caused by a busy machine.
        return "strong" if time.monotonic() - since > TRY_AGAIN_SECONDS else strength

    def _lower(self, where: ExecutionTarget, error: EnvironmentFailed) -> bool:
        """Note that the sandbox around a folder is weaker than assumed; False if that changes nothing."""
        workspace = where.spec.cwd
        with self._lock:
            known = self._known_strength(workspace)
            if where.spec.backend != "local" or known == "none" or self._settings.code_execution.sandbox == "off":
                return False
            lowered: SandboxStrength = "weak" if isinstance(error, NotIsolated) and known == "strong" else "none"
            self._strengths[workspace] = lowered, time.monotonic()
            if lowered == "none":
                self._why_none = str(error)
            return True

    @contextmanager
    def _slot(self, target: ScriptEnvironment) -> Iterator[ScriptEnvironment]:
        """The environment for one script; concurrent scripts never share a sandbox."""
        if not target.alone:
            yield target
            return
        target = without_secrets(target)
        with self._lock:
            slot = 0
            while (own := in_slot(target, slot)).spec in self._in_use:
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
    """The script without a byte request mark."""
    code: str = args["code"]
    return code.removeprefix("\ufeff")


def _comparable(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    """The effects without folders of other machines, which are only known once the environment is open."""
    return tuple(replace(effect, cwd="") if effect.backend else effect for effect in effects)


def _parameters(function: JsonObject) -> list[str]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return list(properties) if isinstance(properties, dict) else []
