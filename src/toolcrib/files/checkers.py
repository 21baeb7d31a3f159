"""Checks of texts by parsers that are installed in the place: shell, JavaScript, Ruby, PHP, Go. None runs code."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import re

from toolcrib.core.environments import Environment
from toolcrib.core.errors import ToolcribError

CHECK_SECONDS = 10.0
MAX_SAID_BYTES = 16 * 1024
MAX_LINES = 6
MISSING = 127
_NO_VERDICT = (9, 124, 125, 126, 137)
"""An old node does not know an option; it took too long; it cannot be started."""

_PROGRAMS: dict[str, tuple[tuple[str, ...], ...]] = {
    ".sh": (("bash", "-n"),),
    ".bash": (("bash", "-n"),),
    ".mjs": (("node", "--check", "--input-type=module", "-"),),
    ".cjs": (("node", "--check", "--input-type=commonjs", "-"),),
    # Which of the two a .js file is depends on the folder that it lies in.
    ".js": (("node", "--check", "--input-type=commonjs", "-"), ("node", "--check", "--input-type=module", "-")),
    ".rb": (("ruby", "-c"),),
    ".php": (("php", "-l"),),
    ".go": (("gofmt", "-e", "-l"),),
}
_RUN = """
command -v "$1" > /dev/null 2>&1 || exit 127
if command -v timeout > /dev/null 2>&1; then exec timeout "$0" "$@"; fi
exec "$@"
"""
_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|fish|csh|tcsh|python\d?|perl|expect|nu)\b")
_NOISE = re.compile(r"^(?:\s*at .*|Node\.js v.*|\s*|Errors parsing .*|No syntax errors detected.*|Syntax OK)$")
_WHERE = re.compile(r"^(?:\[stdin\]:|-:|bash: line |<standard input>:)(?=\d)")


def has_checker(path: str) -> bool:
    return posixpath.splitext(path)[1].lower() in _PROGRAMS


async def problem_found(path: str, text: str, environment: Environment) -> str:
    """What an installed parser says about the text; empty when it is content, or none is known for such files.

    The text goes in by standard input, so that texts can be checked that are not in any file.
    """
    suffix = posixpath.splitext(path)[1].lower()
    if suffix in (".sh", ".bash") and _OTHER_SHELL.match(text):
        return ""
    said: list[str] = []
    for argv in _PROGRAMS.get(suffix, ()):
        try:
            code, output = await _run(argv, text.encode("utf-8", "replace"), environment)
        except (ToolcribError, OSError, TimeoutError) as error:
            return f"not checked: {argv[0]} gave no answer ({error or 'it took too long'})"
        if code == MISSING:
            return f"not checked: {argv[0]} is not installed there"
        if code in _NO_VERDICT:
            return f"not checked: {argv[0]} could not do it"
        if code == 0:
            return ""
        said.append(f"{argv[0]}: {_shortened(output)}")
    # Where a text may be one of two things, the words of the likelier one are given.
    is_module = len(said) > 1 and re.search(r"^(?:import|export)\b", text, re.MULTILINE)
    return (said[-1] if is_module else said[0]) if said else ""


async def _run(argv: tuple[str, ...], data: bytes, environment: Environment) -> tuple[int, str]:
    said = bytearray()

    def keep(output: bytes) -> None:
        said.extend(output[: MAX_SAID_BYTES - len(said)])

    async with asyncio.timeout(CHECK_SECONDS):
        process = await environment.spawn(["sh", "-c", _RUN, f"{CHECK_SECONDS:g}", *argv], on_output=keep)
        try:
            # One that has seen enough, or is not there, does not read to the end.
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                await process.write(data)
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                await process.close_input()
            code = await process.wait()
        finally:
            await process.abandon()
    return code, said.decode(errors="replace")


def _shortened(output: str) -> str:
    lines = [_WHERE.sub("line ", line).rstrip() for line in output.splitlines() if not _NOISE.match(line)]
    return "\n".join(lines[:MAX_LINES]) or "it reports an error"
