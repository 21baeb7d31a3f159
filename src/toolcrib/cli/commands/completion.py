"""Shell completion: `toolcrib completion SHELL`, and the names that the commands offer to the shell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from toolcrib.cli.output import silence
from toolcrib.core.errors import ToolcribError

VARIABLE = "_TOOLCRIB_COMPLETE"
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(name="completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script.

    \b
    Add one of these lines to your shell's startup file:
      ~/.bashrc                   eval "$(toolcrib completion bash)"
      ~/.zshrc                    eval "$(toolcrib completion zsh)"
      ~/.config/fish/config.fish  toolcrib completion fish | source
    """
    root = ctx.find_root().command
    script = SHELLS[shell](root, {}, "toolcrib", VARIABLE)
    # Not the method of the bash class: it runs bash to check the version, and the script may be for another machine.
    sys.stdout.write(ShellComplete.source(script))


def matching_names(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    """The names that start with what was typed; none if they cannot be found, since an error has nowhere to go."""
    try:
        with silence():
            found = list(names())
    except (ToolcribError, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]
