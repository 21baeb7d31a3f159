"""What bash and shfmt make of shell text. Neither runs anything: bash is only asked for its syntax check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BASH = shutil.which("bash") or ""
SHFMT = shutil.which("shfmt", path=str(Path(sys.executable).parent)) or shutil.which("shfmt") or ""
DECLARING = ("declare", "export", "local", "readonly", "typeset", "nameref")


def bash_accepts(text: str) -> bool:
    """Whether `bash -n` takes the text for valid syntax."""
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-O", "extglob", "-n"],
        input=text.encode(errors="surrogateescape"),
        capture_output=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/nonexistent"},
        check=False,
    )
    # A bad `[[ … ]]` is only complained about.
    complaints = (b"syntax error", b"conditional", b"unexpected token")
    return done.returncode == 0 and not any(each in done.stderr for each in complaints)


def shfmt_commands(text: str) -> list[tuple[str, ...]] | None:
    """The words of every simple command in the text, in its order; None when shfmt cannot read it."""
    source = text.encode()
    done = subprocess.run([SHFMT, "-ln", "bash", "--to-json"], input=source, capture_output=True, check=False)
    if done.returncode:
        return None
    found = sorted(_calls(json.loads(done.stdout), source))
    return [words for _, words in found]


def _calls(node: Any, source: bytes) -> Iterator[tuple[int, tuple[str, ...]]]:
    if isinstance(node, list):
        for each in node:
            yield from _calls(each, source)
    if not isinstance(node, dict):
        return
    if node.get("Type") == "CallExpr" and node.get("Args"):
        yield node["Args"][0]["Pos"]["Offset"], tuple(_text(word, source) for word in node["Args"])
    if node.get("Type") == "DeclClause":
        words = (node["Variant"]["Value"], *(_text(each, source) for each in node.get("Args", [])))
        yield node["Variant"]["Pos"]["Offset"], words
    for each in node.values():
        yield from _calls(each, source)


def _text(node: Any, source: bytes) -> str:
    text = source[node["Pos"]["Offset"] : node["End"]["Offset"]].decode(errors="replace")
    return text.replace("\\\n", "")
