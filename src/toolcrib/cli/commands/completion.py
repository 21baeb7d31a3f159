"""`toolcrib completion SHELL`."""

from __future__ import annotations

import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

VARIABLE = "_TOOLCRIB_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(name="completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(list(SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that lets a shell complete toolcrib's commands.

    \b
    Put one of these lines into the file that your shell reads at start:
      ~/.bashrc                   eval "$(toolcrib completion bash)"
      ~/.zshrc                    eval "$(toolcrib completion zsh)"
      ~/.config/fish/config.fish  toolcrib completion fish | source
    """
    root = ctx.find_root().command
    script = SHELLS[shell](root, {}, "toolcrib", VARIABLE)
    # The base class's: that of bash starts a bash to look at its version, and this may be written to a file elsewhere.
    sys.stdout.write(ShellComplete.source(script))
