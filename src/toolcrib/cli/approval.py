"""Whom the command line asks before a tool does something to the world: the person at the terminal."""

from __future__ import annotations

import sys

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question import wants_colour
from toolcrib.approval.grants import suggest
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings
from toolcrib.config.settings import Settings


def console_approver(settings: Settings | None = None) -> ConsoleApprover:
    """Asks on stderr, so that stdout carries nothing but results; refuses where there is no terminal."""
    return ConsoleApprover(
        sys.stdin,
        sys.stderr,
        timeout_seconds=(settings or load_settings()).approvals.timeout,
        colour=wants_colour(environment()),
        written=suggest,
    )
