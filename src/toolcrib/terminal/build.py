"""Puts the terminal of a runtime together. Loaded with the first command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolcrib.approval.deferred_gate import DeferredGate
from toolcrib.config.environment import environment
from toolcrib.config.redact import redact
from toolcrib.config.settings import Settings
from toolcrib.core.ports import Gate, SecretAsker
from toolcrib.core.types import JsonObject
from toolcrib.hooks.manager import HookManager
from toolcrib.service_loop import ServiceLoop
from toolcrib.terminal.call import TerminalCall
from toolcrib.terminal.service import TerminalOptions, TerminalService


def build_terminal(settings: Settings, workspace: str, gate: Gate, hooks: HookManager) -> TerminalService:
    """The environments and background processes of one runtime, with a loop of their own."""
    options = TerminalOptions(
        settings=settings,
        workspace=Path(workspace or "/"),
        environ=environment,
        mask=redact if settings.security.redact_secrets else str,
        transform=lambda: _transform(hooks, settings.terminal.backend),
        secret_asker=lambda: _secret_asker(gate),
    )
    return TerminalService(options, ServiceLoop())


def _secret_asker(gate: Gate) -> SecretAsker | None:
    """Whom the gate asks, if he can be told a secret."""
    approver = gate.options.approver if isinstance(gate, DeferredGate) else None
    return approver if isinstance(approver, SecretAsker) else None


def _transform(hooks: HookManager, backend: str) -> Callable[[TerminalCall, JsonObject], str] | None:
    if not hooks.has("transform_terminal_output"):
        return None

    def transform(call: TerminalCall, answer: JsonObject) -> str:
        output: str = answer["output"]
        answers = hooks.invoke(
            "transform_terminal_output",
            command=call.command,
            output=output,
            returncode=answer["exit_code"],
            task_id=call.task_id,
            env_type=backend,
        )
        return next((text for text in answers if isinstance(text, str)), output)

    return transform
