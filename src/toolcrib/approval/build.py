"""Builds a gate from the settings, once: later changes to the config files do not affect it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from toolcrib.approval.audit_log import ApprovalLog
from toolcrib.approval.calls import CommandReading
from toolcrib.approval.gate import ApprovalGate
from toolcrib.approval.grants import Grants
from toolcrib.approval.options import GateOptions
from toolcrib.approval.paths import SensitivePaths
from toolcrib.approval.policy import Policy, ProvenanceMode
from toolcrib.approval.user_rules import parse_rule
from toolcrib.config.tool_call_mark import is_in_tool_call
from toolcrib.core.types import ShellSession

if TYPE_CHECKING:
    from toolcrib.approval.shell.syntax import Script


def build_gate(options: GateOptions) -> ApprovalGate:
    """The gate of one runtime."""
    home = options.settings.home
    return ApprovalGate(
        build_policy(options),
        grants=Grants(home, () if is_in_tool_call() else options.settings.command_allowlist),
        log=ApprovalLog(home.approvals_file),
        read=read_on_first_use,
        approver=options.approver,
        timeout_seconds=options.settings.approvals.timeout,
        fire=options.fire,
        provenance=options.provenance,
    )


def read_on_first_use(
    command: str | Script,
    *,
    cwd: str,
    home: str,
    own: tuple[str, ...] = (),
    here: bool = False,
    session: ShellSession | None = None,
) -> CommandReading:
    """Read a command line; the first call loads the analyser."""
    from toolcrib.approval.command_reader import read_command  # noqa: PLC0415 - many sessions never run a command

    return read_command(command, cwd=cwd, home=home, own=own, here=here, session=session)


def build_policy(options: GateOptions) -> Policy:
    """The policy for these settings and this entry point."""
    approvals = options.settings.approvals
    answer = getattr(approvals.policies, options.entry_point)
    if options.entry_point == "library" and options.approver is not None and answer == "deny":
        # A program that passes an approver wants it to be asked.
        answer = "ask"
    # A tool call could have written the settings that it starts toolcrib with, so they can only be stricter.
    is_trusted = not is_in_tool_call()
    rules = [parse_rule(text) for text in approvals.rules]
    return Policy(
        sensitive=SensitivePaths(
            str(options.settings.home.root), _program_folders(), server_address(options.settings.serve.port)
        ),
        workspace=options.workspace,
        workspace_follows_cwd=options.workspace_follows_cwd,
        home=_user_home(),
        mode="manual" if approvals.mode == "off" and not is_trusted else approvals.mode,
        entry_point=options.entry_point,
        answer="deny" if answer == "allow" and not is_trusted else answer,
        attended=options.approver is not None,
        yolo=options.yolo and is_trusted,
        rules=tuple(rule for rule in rules if is_trusted or rule.action != "allow"),
        deny=tuple(approvals.deny),
        backend=options.backend,
        isolated=options.isolated,
        provenance=_provenance_mode(approvals.provenance, answer, attended=options.approver is not None),
        provenance_limit=approvals.provenance_limit,
        started_at=time.time(),
    )


def server_address(port: int) -> str:
    return f"//localhost:{port}" if port else ""


def _provenance_mode(setting: str, answer: str, *, attended: bool) -> ProvenanceMode:
    """By default, provenance decides where nobody can be asked, and only informs the person elsewhere."""
    if setting == "off":
        return "off"
    return "decide" if setting == "on" or answer == "deny" or not attended else "show"


def _program_folders() -> tuple[str, ...]:
    """The absolute folders of PATH, except those of the system, which are protected anyway."""
    system = ("/usr/", "/bin", "/sbin", "/snap/", "/nix/")
    folders = (each.rstrip("/") for each in os.get_exec_path())
    return tuple(dict.fromkeys(each for each in folders if each.startswith("/") and not each.startswith(system)))


def _user_home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return "/"
