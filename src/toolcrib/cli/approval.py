"""Whom the command line asks before a tool does something to the world: the person at the terminal."""

from __future__ import annotations

import sys

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.approval.approvers.question import wants_colour
from toolcrib.approval.entries import suggest
from toolcrib.config.environment import environment
from toolcrib.config.load import load_settings


def console_approver() -> ConsoleApprover:
    """Asks on stderr, so that stdout carries nothing but results; refuses where there is no terminal."""
    return ConsoleApprover(
        sys.stdin,
        sys.stderr,
        timeout_seconds=load_settings().approvals.timeout,
        colour=wants_colour(environment()),
        written=suggest,
    )
