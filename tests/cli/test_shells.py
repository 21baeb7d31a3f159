"""Completion in the shells that not every machine has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_program import KEYED_TOOL, Program

pytestmark = pytest.mark.services


def run_in_shell(toolcrib: Program, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A shell that finds the program as `toolcrib` on its path."""
    folder = toolcrib.root / "bin"
    folder.mkdir(exist_ok=True)
    launcher = folder / "toolcrib"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m toolcrib "$@"\n')
    launcher.chmod(0o755)
    environment = toolcrib.environment()
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    (Path(environment["HOME"])).mkdir(parents=True, exist_ok=True)
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed; scripts/test-services up")
def test_fish_completes_commands_and_tools(toolcrib: Program):
    """With our script loaded, a real fish offers commands and the tools of this home."""
    toolcrib.write("tools/tides.py", KEYED_TOOL)

    commands = run_in_shell(
        toolcrib, ["fish", "-c", "toolcrib completion fish | source; complete -C 'toolcrib tools l'"]
    )
    tools = run_in_shell(
        toolcrib, ["fish", "-c", "toolcrib completion fish | source; complete -C 'toolcrib tools run ti'"]
    )

    assert {line.split("\t")[0] for line in commands.stdout.splitlines()} == {"list", "lint"}, commands.stderr
    assert [line.split("\t")[0] for line in tools.stdout.splitlines()] == ["tides"], tools.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed; scripts/test-services up")
def test_zsh_completes_commands(toolcrib: Program):
    """With our script loaded, a real zsh calls the program and adds what it answers."""
    # compadd only works inside the line editor; what it is given here is what the person would see.
    script = """
    autoload -U compinit && compinit -u -D
    eval "$(toolcrib completion zsh)"
    compadd() { print -l -- "$@" }
    _describe() { shift; while (( $# )); do [[ $1 == -* ]] || print -l -- "${(@P)1}"; shift; done }
    words=(toolcrib tools l); CURRENT=3
    _toolcrib_completion
    """

    done = run_in_shell(toolcrib, ["zsh", "-f", "-c", script])

    offered = {line.split(":")[0] for line in done.stdout.splitlines()}
    assert {"list", "lint"} <= offered, done.stdout + done.stderr
