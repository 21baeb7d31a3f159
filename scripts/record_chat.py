"""Record the pictures in docs/images: real chats in a real pseudo-terminal, with a scripted model.

Run it with `make recording` after a change to what the chat shows.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyte
from pyte.screens import Char

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
COLUMNS = 92
LIMIT_SECONDS = 60.0
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.43, 19, 18


class Scene(NamedTuple):
    """One picture: what the model does, what is there, and what is typed when."""

    name: str
    title: str
    steps: list[dict[str, Any]]
    typed: tuple[tuple[str, str], ...]
    """What must be on the screen, as a pattern, and what is typed then; the last one ends the scene."""
    lines: int = 28
    cut: str = ""
    """Leave out everything above the first line that contains this."""


FILES = {
    "prices.py": "def gross(net, rate):\n    return net * rate\n",
    "test_prices.py": 'from prices import gross\n\nassert gross(10, 0.2) == 12.0, "gross is wrong"\nprint("ok")\n',
    "build/old.txt": "old\n",
    "notes.txt": "Ask about the rate.\n",
    "Makefile": "clean:\n\trm -rf build *.txt\n",
    ".gitignore": "build/\n",
    ".git/HEAD": "ref: refs/heads/main\n",
}
TEST: dict[str, Any] = {"call": "terminal", "arguments": {"command": "python3 test_prices.py"}}
PATCH: dict[str, Any] = {
    "call": "patch",
    "arguments": {
        "mode": "replace",
        "path": "prices.py",
        "old_string": "return net * rate",
        "new_string": "return round(net * (1 + rate), 2)",
    },
}
CLEAN: dict[str, Any] = {"call": "terminal", "arguments": {"command": "python3 test_prices.py && rm -rf build"}}
FIXED = {"say": "**Fixed.** `gross` multiplied by the rate alone; it now adds the tax and rounds. The test passes."}


def plan(*statuses: str) -> dict[str, Any]:
    names = ("run the test", "fix gross", "run the test again")
    items = [{"id": name, "content": name, "status": status} for name, status in zip(names, statuses, strict=True)]
    return {"call": "todo", "arguments": {"todos": items}}


SCENES = (
    Scene(
        "chat",
        "toolcrib chat: the agent runs a test, edits a file and asks before it deletes a folder",
        [{"say": "I'll look at the failing test first.", **TEST}, PATCH, CLEAN, FIXED],
        (
            ("❯|>", "Fix the failing test, then clean the build folder\r"),
            (r"\[n\] No(.|\n)*\n> ", "s"),
            (r"The test\s+passes(.|\n)*❯", ""),
        ),
        lines=44,
    ),
    Scene(
        "approval",
        "toolcrib chat asks before a command deletes a folder; the arrow keys chose an answer",
        [CLEAN],
        (("❯|>", "Clean the build folder\r"), (r"\[n\] No(.|\n)*\n> ", "\x1b[B\x1b[B"), (r"> \[s\]", "")),
        cut="asks to run",
    ),
    Scene(
        "diff",
        "toolcrib chat shows a failed command with the end of its output, and an edit as a diff",
        [TEST, PATCH, TEST, FIXED],
        (("❯|>", "Fix the failing test\r"), (r"The test\s+passes(.|\n)*❯", "")),
        cut="Fix the failing test",
    ),
    Scene(
        "plan",
        "toolcrib chat shows the agent's plan as a checklist, and in short while it works",
        [
            plan("in_progress", "pending", "pending"),
            TEST,
            plan("completed", "in_progress", "pending"),
            {"call": "terminal", "arguments": {"command": "sleep 30"}},
        ],
        (
            ("❯|>", "Fix the failing test\r"),
            (r"☑ run the test +\n +▶ fix gross(.|\n)*sleep 30(.|\n)*☑ run the test   ▶ fix gross", ""),
        ),
        cut="Fix the failing test",
    ),
    Scene(
        "undo",
        "toolcrib chat undoes what make clean deleted, which no word of the command names",
        [{"call": "terminal", "arguments": {"command": "make clean"}}, {"say": "The folder is clean."}],
        (
            ("❯|>", "Clean up\r"),
            (r"The folder is clean(.|\n)*❯", "/undo\r"),
            (r"Restore the files(.|\n)*Keep the files", "y\r"),
            (r"were restored(.|\n)*❯", ""),
        ),
        cut="Clean up",
    ),
)

BUTTONS = ("#e06c75", "#e5c07b", "#98c379")
COLOURS = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b",
    "yellow": "#e5c07b", "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#d8dee9",
    "brightblack": "#7f8794", "brightred": "#e06c75", "brightgreen": "#98c379", "brightyellow": "#e5c07b",
    "brightblue": "#61afef", "brightmagenta": "#c678dd", "brightcyan": "#56b6c2", "brightwhite": "#ffffff",
}  # fmt: skip


def main() -> None:
    for scene in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            picture = _svg(_play(Path(folder), scene), scene).replace(folder, "~")
        IMAGES.mkdir(parents=True, exist_ok=True)
        (IMAGES / f"{scene.name}.svg").write_text(picture)
        print(f"wrote docs/images/{scene.name}.svg")


def _play(folder: Path, scene: Scene) -> pyte.Screen:
    """Play the scene in a terminal of its own; the screen as it is at the end."""
    home, work = folder / "home", folder / "shop"
    (home / "tools").mkdir(parents=True)
    (home / "script.json").write_text(json.dumps(scene.steps))
    (home / "config.yaml").write_text(f"model: scripted\nproviders:\n  scripted:\n    base_url: {home}/script.json\n")
    for name, text in FILES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    screen = pyte.Screen(COLUMNS, scene.lines)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", scene.lines, COLUMNS, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TOOLCRIB_HOME": str(home),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    chat = subprocess.Popen(
        [sys.executable, "-m", "toolcrib", "chat"],
        cwd=work,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        for awaited, typed in scene.typed:
            _read_until(awaited, ours, stream, screen)
            os.write(ours, typed.encode())
    finally:
        chat.kill()
        chat.wait()
    return screen


def _read_until(awaited: str, terminal: int, stream: pyte.ByteStream, screen: pyte.Screen) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not re.search(awaited, "\n".join(screen.display)):
        if time.monotonic() > deadline:
            sys.exit(f"{awaited!r} never appeared; the screen shows:\n" + "\n".join(screen.display))
        if select.select([terminal], [], [], 0.1)[0]:
            data = os.read(terminal, 65536)
            if b"\x1b[6n" in data:
                # The chat asks where its cursor is, as it would ask any terminal.
                os.write(terminal, f"\x1b[{screen.cursor.y + 1};{screen.cursor.x + 1}R".encode())
            stream.feed(data)


def _svg(screen: pyte.Screen, scene: Scene) -> str:
    rows = list(range(screen.lines))
    if scene.cut:
        rows = rows[next(row for row in rows if scene.cut in screen.display[row]) :]
    while rows and not screen.display[rows[-1]].strip():
        rows.pop()
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, len(rows) * LINE_HEIGHT + 2 * MARGIN + 22
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        f"<title>{html.escape(scene.title)}</title>",
        '<rect width="100%" height="100%" rx="8" fill="#1e222a"/>',
        *(
            f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{c}"/>'
            for n, c in enumerate(("#e06c75", "#e5c07b", "#98c379"))
        ),
        '<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14" xml:space="preserve">',
    ]
    for at, row in enumerate(rows):
        y = MARGIN + 22 + at * LINE_HEIGHT + 14
        lines.append(f'<text y="{y}">' + "".join(_spans(screen.buffer[row])) + "</text>")
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _spans(row: dict[int, Char]) -> list[str]:
    """The cells of a row, joined where they look the same."""
    spans: list[tuple[int, str, str]] = []
    for column in range(COLUMNS):
        cell = row[column]
        style = f'fill="{_colour(cell)}"' + (' font-weight="bold"' if cell.bold else "")
        if spans and spans[-1][2] == style:
            spans[-1] = (spans[-1][0], spans[-1][1] + cell.data, style)
        else:
            spans.append((column, cell.data, style))
    return [
        f'<tspan x="{MARGIN + column * CELL_WIDTH:.1f}" {style}>{html.escape(text.rstrip())}</tspan>'
        for column, text, style in spans
        if text.strip()
    ]


def _colour(cell: Char) -> str:
    return COLOURS.get(cell.fg) or f"#{cell.fg}"


if __name__ == "__main__":
    main()
