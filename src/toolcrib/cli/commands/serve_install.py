"""`toolcrib serve install`: starts the server at login, with systemd or launchd."""

from __future__ import annotations

import plistlib
import sys
from pathlib import Path

import click

from toolcrib.cli.output import note
from toolcrib.config.files import replace_file
from toolcrib.config.load import load_settings
from toolcrib.config.paths import Home
from toolcrib.core.errors import UsageError

LABEL = "toolcrib.serve"
UNIT = "toolcrib.service"
STOP_SECONDS = 30
"""How long runs may take to end when the server is stopped."""
READABLE = 0o644


@click.command(name="install")
@click.option(
    "--manager",
    type=click.Choice(["systemd", "launchd"]),
    help="What starts the server; default: launchd on macOS, systemd elsewhere.",
)
@click.option("--print", "only_print", is_flag=True, help="Only print the file.")
def install(manager: str | None, only_print: bool) -> None:
    """Start the server when you log in.

    Writes a systemd user unit (`~/.config/systemd/user`) or a launchd agent (`~/Library/LaunchAgents`), and
    prints the command that starts it. The server uses this Python and this home; its settings come from the config.

    \b
    Examples:
      toolcrib serve install
      toolcrib serve install --print
    """
    manager = manager or ("launchd" if sys.platform == "darwin" else "systemd")
    home, python = load_settings().home, sys.executable
    content = systemd_unit(python, home) if manager == "systemd" else launchd_agent(python, home)
    if only_print:
        click.echo(content, nl=False)
        return
    folder = ".config/systemd/user" if manager == "systemd" else "Library/LaunchAgents"
    file = Path.home() / folder / (UNIT if manager == "systemd" else f"{LABEL}.plist")
    if file.exists() and file.read_text(encoding="utf-8") != content:
        raise UsageError(f"{str(file)!r} exists and differs; move it away, then install again")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content.encode(), mode=READABLE)
    start = f"systemctl --user enable --now {UNIT}" if manager == "systemd" else f"launchctl load -w {file}"
    note(f"Wrote {file}; run `{start}` to start the server now and at every login.")


def systemd_unit(python: str, home: Home) -> str:
    """The unit. Killing the server leaves the background processes of its tools, which it takes over again."""
    return f"""[Unit]
Description=toolcrib, the agent over HTTP
After=network-online.target

[Service]
ExecStart={_quoted(python).replace("$", "$$")} -m toolcrib serve
Environment={_quoted(f"TOOLCRIB_HOME={home.root}")}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
KillMode=process
TimeoutStopSec={STOP_SECONDS}
UMask=0077

[Install]
WantedBy=default.target
"""


def launchd_agent(python: str, home: Home) -> str:
    """The agent, as a property list."""
    log = str(home.log_file.with_name("serve.log"))
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [python, "-m", "toolcrib", "serve"],
            "EnvironmentVariables": {"TOOLCRIB_HOME": str(home.root)},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_SECONDS,
            "StandardErrorPath": log,
            "Umask": 0o077,
        }
    ).decode()


def _quoted(text: str) -> str:
    """A word of a unit file; in a command, `$` must be doubled, too."""
    if "\n" in text:
        raise UsageError(f"{text!r} contains a line break, which a unit file cannot; use another path")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
