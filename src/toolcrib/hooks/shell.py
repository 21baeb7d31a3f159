"""Shell hooks: commands from the config that run on events, with the event as JSON on their standard input.

Nothing waits for them, except for `pre_tool_call`: there, the exit code 2 blocks the call with what the command wrote
to stderr, and a JSON object on its stdout is the hook's answer. What a failure means is the hook's own policy.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.config.environment import child_environment, environment
from toolcrib.config.hook_settings import ShellHookSettings
from toolcrib.core.errors import ToolcribError
from toolcrib.core.lazy import asyncio
from toolcrib.core.types import JsonObject, Source
from toolcrib.hooks.manager import HookManager

logger = logging.getLogger(__name__)

BLOCKED = 2
MAX_AT_ONCE = 8
"""How many observing commands run at the same time; an event beyond that is dropped, and logged."""
MAX_ANSWER_CHARS = 20_000


class ShellHookFailed(ToolcribError):
    """A hook's command failed or took too long."""


class ShellHook:
    """One command. Called with the event's keywords."""

    def __init__(self, name: str, settings: ShellHookSettings, slots: threading.Semaphore) -> None:
        self.name = name
        self.settings = settings
        self._slots = slots

    async def ask(self, **keywords: Any) -> JsonObject | None:
        """The answer to `pre_tool_call`."""
        return await asyncio.to_thread(self._verdict, keywords) if self._concerns(keywords) else None

    def notify(self, **keywords: Any) -> None:
        """Run the command on any other event; nothing waits for it."""
        if not self._concerns(keywords):
            return
        if not self._slots.acquire(blocking=False):
            logger.warning("the shell hook %r was skipped: %d others are running", self.name, MAX_AT_ONCE)
            return
        threading.Thread(target=self._observe, args=(keywords,), name=f"hook-{self.name}", daemon=True).start()

    def _concerns(self, keywords: Mapping[str, Any]) -> bool:
        return not self.settings.tools or keywords.get("tool_name") in self.settings.tools

    def _observe(self, keywords: dict[str, Any]) -> None:
        try:
            self._run(keywords)
        except ShellHookFailed as error:
            logger.warning("%s", error)
        finally:
            self._slots.release()

    def _verdict(self, keywords: dict[str, Any]) -> JsonObject | None:
        try:
            said = self._run(keywords)
        except ShellHookFailed as error:
            if self.settings.on_failure == "allow":
                logger.warning("%s; the call continues", error)
                return None
            raise
        return said

    def _run(self, keywords: dict[str, Any]) -> JsonObject | None:
        """The command's answer; raises ShellHookFailed."""
        settings = self.settings
        event = {"event": settings.event, **keywords}
        environ = child_environment(environment(), extra={"TOOLCRIB_HOOK_EVENT": settings.event})
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", settings.command] if sys.platform != "win32" else settings.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,
                shell=sys.platform == "win32",
            )
        except OSError as error:
            raise ShellHookFailed(f"the shell hook {self.name!r} cannot start: {error.strerror}") from error
        try:
            out, err = process.communicate(_encoded(event), timeout=settings.timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise ShellHookFailed(f"the shell hook {self.name!r} took more than {settings.timeout:g} seconds") from None
        if process.returncode == BLOCKED:
            why = err.decode("utf-8", "replace").strip()[:MAX_ANSWER_CHARS]
            return {"action": "block", "message": why or f"the shell hook {self.name!r} blocked this call"}
        if process.returncode != 0:
            said = err.decode("utf-8", "replace").strip()[-300:]
            raise ShellHookFailed(f"the shell hook {self.name!r} failed with exit code {process.returncode}: {said}")
        return _answer(out)


def register_shell_hooks(hooks: HookManager, settings: Mapping[str, ShellHookSettings]) -> None:
    """Run these commands on their events."""
    slots = threading.Semaphore(MAX_AT_ONCE)
    for name, one in settings.items():
        if one.command.strip():
            hook = ShellHook(name, one, slots)
            callback = hook.ask if one.event == "pre_tool_call" else hook.notify
            hooks.register(one.event, callback, source=Source(kind="code", name=f"shell_hooks.{name}"))


def _encoded(event: dict[str, Any]) -> bytes:
    """What is no JSON, such as an object of a program, becomes its text."""
    plain = msgspec.to_builtins(event, enc_hook=str, str_keys=True)
    return json.dumps(plain, default=str).encode("utf-8", "replace")


def _answer(out: bytes) -> JsonObject | None:
    text = out.decode("utf-8", "replace").strip()[:MAX_ANSWER_CHARS]
    if not text.startswith("{"):
        return None
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the command with everything it started."""
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()
