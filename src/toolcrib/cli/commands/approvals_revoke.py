"""`toolcrib approvals revoke GRANT`."""

from __future__ import annotations

import click

from toolcrib.approval.grants import Grants
from toolcrib.cli.approval_records import complete_grants
from toolcrib.cli.output import print_line
from toolcrib.config.load import load_settings
from toolcrib.core.errors import UnknownName


class UnknownGrant(UnknownName):
    kind = "grant"


@click.command(name="revoke")
@click.argument("grant", metavar="GRANT", shell_complete=complete_grants)
def command(grant: str) -> None:
    """Take back what you allowed for good.

    GRANT is a line of `toolcrib approvals list`. Sessions that run already keep what they know; new ones ask again.

    \b
    Example:
      toolcrib approvals revoke 'recursive delete (inside the workspace)'
    """
    settings = load_settings()
    if not Grants(settings.home, settings.command_allowlist).revoke(grant):
        raise UnknownGrant(grant, settings.command_allowlist, advice="`toolcrib approvals list` shows all of them")
    print_line(f"Took back {grant!r}; new sessions ask about it again.")
