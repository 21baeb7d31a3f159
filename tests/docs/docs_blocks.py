"""Reads the fenced blocks of a page and does with them what a reader would do, in a folder and home of their own."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_SECONDS = 60
_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+)(?:: (?P<value>[^\n]*?))? -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_GAP = re.compile(r" {2,}")


class PageError(AssertionError):
    """A block that does not do what the page says."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block, with the mark in the comment above it: `file`, `append`, `shown only` or nothing."""

    language: str
    body: str
    line: int
    mark: str = ""
    value: str = ""


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [_block(text, found) for found in _FENCE.finditer(text)]


def rewritten(text: str, folder: Path) -> str:
    """The page with the outputs that its blocks have today; outputs that still fit stay as they are written."""
    reader = Reader(folder)

    def with_outputs(found: re.Match[str]) -> str:
        start, end = found.start("body") - found.start(), found.end("body") - found.start()
        return found[0][:start] + reader.refreshed(_block(text, found)) + found[0][end:]

    return _FENCE.sub(with_outputs, text)


def _block(text: str, found: re.Match[str]) -> Block:
    line = text.count("\n", 0, found.start("language")) + 1
    return Block(found["language"], found["body"], line, found["mark"] or "", found["value"] or "")


class Reader:
    """Somebody who follows a page from top to bottom: saves its files, runs its programs, types its commands."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "user"
        self.workplace = folder / "workplace"
        programs = folder / "bin"
        for made in (self.user, self.workplace, programs):
            made.mkdir(parents=True)
        _program(programs / "toolcrib", f'exec "{sys.executable}" -m toolcrib "$@"')
        _program(programs / "python", f'exec "{sys.executable}" "$@"')
        self._printed: str | None = None
        self.environment = {
            "HOME": str(self.user),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONIOENCODING": "utf-8",
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "120",
            # What goes to stdout and what goes to stderr comes in the order in which it was said, as on a terminal.
            "PYTHONUNBUFFERED": "1",
        }

    def follow(self, blocks: list[Block]) -> None:
        """Raises PageError, naming the line, at the first block that does not do what the page says."""
        for block in blocks:
            for what, expected, printed in self.outputs(block):
                if not fits(expected, printed):
                    difference = "\n".join(difflib.ndiff(expected.splitlines(), printed.splitlines()))
                    raise PageError(f"line {block.line}: {what}\n{difference}")

    def refreshed(self, block: Block) -> str:
        """The body of a block, with the outputs of today in place of those that no longer fit."""
        body = ""
        for what, expected, printed in self.outputs(block):
            # A console block names the command above its output; a text block is output alone.
            body += f"{what}\n" if block.language == "console" else ""
            body += expected if fits(expected, printed) else f"{printed.rstrip()}\n"
        return body or block.body

    def outputs(self, block: Block) -> Iterator[tuple[str, str, str]]:
        """Do what a block says: for each output in it what gave it, the output as written, and as it is."""
        if block.mark == "shown only":
            return
        if block.mark in ("file", "append"):
            self.save(block)
        elif block.language == "python":
            self._printed = self.run(block, [sys.executable, "-W", "error", "-c", block.body])
        elif block.language == "console":
            for command, expected in commands_of(block):
                yield f"$ {command}", expected, self.type(command)
        elif block.language == "text" and self._printed is not None:
            yield "what the program above prints", block.body, self._printed
            self._printed = None
        else:
            raise PageError(f"line {block.line}: nobody knows what to do with this {block.language!r} block")

    def save(self, block: Block) -> None:
        path = self.user / block.value[2:] if block.value.startswith("~/") else self.workplace / block.value
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.mark == "append" else "w", encoding="utf-8") as file:
            file.write(block.body)

    def run(self, block: Block, command: list[str]) -> str:
        done = self._finished(command)
        if done.returncode != 0:
            raise PageError(f"line {block.line}: the program failed\n{done.stdout}")
        return done.stdout

    def type(self, command: str) -> str:
        # Pages show the home of somebody called "you".
        return self._finished(["bash", "-c", command]).stdout.replace(str(self.user), "/home/you")

    def _finished(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.workplace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=COMMAND_SECONDS,
            check=False,
        )


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """The commands behind `$ ` of a console block, each with the output that stands below it."""
    command, expected = "", ""
    for line in block.body.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line[2:].strip(), ""
        else:
            expected += line
    if command:
        yield command, expected


def fits(expected: str, printed: str) -> bool:
    """Equal, where `…` in the page stands for any text, and columns may be wider than in the page."""
    expected, printed = (_GAP.sub("  ", text.rstrip()) for text in (expected, printed))
    pattern = ".*?".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
