"""The settings of `toolcrib acp`.

Annotations are real objects here, as in `settings.py`.
"""

from typing import Literal

from toolcrib.config.section import PositiveFloat, Section


class AcpSettings(Section, frozen=True, kw_only=True):
    """How `toolcrib acp` works inside an editor."""

    files: Literal["editor", "own"] = "editor"
    """`editor`: read and edit text files through the editor if it offers that, so that unsaved changes count; `own`:
    always use the files on disk."""
    terminal: Literal["editor", "own"] = "own"
    """`editor`: run commands in the editor's terminals if it offers them, with the editor's environment and without a
    lasting shell session; `own`: run them where `terminal.backend` says, and show the output in the editor."""
    mcp_trust: Literal["ask", "read_only", "all"] = "read_only"
    """How far to trust MCP servers that the editor passes, as in `mcp_servers.NAME.trust`."""
    approval_timeout: PositiveFloat = 3600
    """How many seconds a call waits for your approval in the editor; then it is denied."""
