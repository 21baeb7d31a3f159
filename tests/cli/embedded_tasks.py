"""What a newcomer asks the embedded model first, with how to tell that it was done: two sets in different words."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, CallFinished
from toolcrib.agent.host import AgentHost

DAYS_TOOL = '''
from datetime import date
from toolcrib import tool

@tool(toolset="dates", effects=())
def days_between(start: str, end: str) -> dict[str, int]:
    """Count the days between two dates.

    Args:
        start: The first date, as YYYY-MM-DD.
        end: The second date, as YYYY-MM-DD.
    """
    return {"days": abs((date.fromisoformat(end) - date.fromisoformat(start)).days)}
'''
FILES = {
    "notes.txt": "The meeting is on Thursday at ten.\nBring the blue folder.\n",
    "poem.txt": "one\ntwo\nthree\nfour\nfive\nsix\nseven\n",
    "recipe.md": "# Toast\n\nBread, butter and marmalade.\n",
    "colors.txt": "the door is red\nthe roof is grey\n",
    "numbers.csv": "name,price\napple,3\npear,5\nplum,9\n",
    "data/video.bin": "x" * 90_000,
    "archive.log": "line of a log file\n" * 4_000,
}


@dataclass
class Attempt:
    """What came of one question."""

    folder: Path
    answer: str = ""
    outputs: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """All that a person sees: small models' outputs are printed with the answer."""
        return "\n".join([*self.outputs, self.answer])

    def file(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.is_file() else ""

    def take(self, event: AnyEvent) -> None:
        if isinstance(event, CallFinished):
            self.tools.append(event.name)
            if event.status == "ok":
                self.outputs.append(event.text)


Check = Callable[[Attempt], bool]
Tasks = tuple[tuple[str, Check], ...]


def says(*words: str) -> Check:
    """The answer in words contains one of these."""
    return lambda attempt: any(word.lower() in attempt.answer.lower() for word in words)


def shows(*words: str) -> Check:
    """The person sees all of these."""
    return lambda attempt: all(word.lower() in attempt.shown.lower() for word in words)


def writes(name: str, *words: str) -> Check:
    """The file contains all of these."""
    return lambda attempt: all(word.lower() in attempt.file(name).lower() for word in words)


def _is_changed(attempt: Attempt) -> bool:
    return "blue" in attempt.file("colors.txt") and "red" not in attempt.file("colors.txt")


def _says_hello(attempt: Attempt) -> bool:
    return "terminal" in attempt.tools and "hello world" in "".join(attempt.outputs)


def _only_talks(attempt: Attempt) -> bool:
    return not attempt.tools and len(attempt.answer) > 1


FIRST: Tasks = (
    ("Which file is the largest here?", says("archive.log", "video.bin")),
    ("How many days are between 2024-02-10 and 2024-03-05? Use the days_between tool.", says("24")),
    ("Run ls", shows("notes.txt", "recipe.md")),
    ("Read notes.txt", shows("Thursday", "blue folder")),
    ("Write a note to todo.txt that says: buy milk", writes("todo.txt", "buy milk")),
    ("What is in this folder?", shows("notes.txt", "recipe.md")),
    ("How many lines does poem.txt have?", says("7", "seven")),
    ("Which file contains the word marmalade?", says("recipe.md")),
    ("Change red to blue in colors.txt", _is_changed),
    ("Create a folder named build", lambda attempt: (attempt.folder / "build").is_dir()),
    ("Which Linux kernel runs here?", shows(platform.release())),
    ("Run the command `echo hello world`", _says_hello),
    ("What is the date today?", shows(str(date.today().year))),
    ("When is the meeting? It is in notes.txt", says("thursday")),
    ("Hello! Who are you?", _only_talks),
)
SECOND: Tasks = (
    ("what's the biggest file in this directory?", says("archive.log", "video.bin")),
    ("Use the days between tool: from 2025-01-01 to 2025-01-31", says("30")),
    ("run pwd", lambda attempt: attempt.folder.name in attempt.shown),
    ("Show me the contents of recipe.md", shows("butter")),
    ("Save the text 'call Anna at noon' in a file called reminder.txt", writes("reminder.txt", "call Anna at noon")),
    ("list the files here", shows("notes.txt", "recipe.md")),
    ("count the lines in poem.txt", says("7", "seven")),
    ("Search the files for the word butter", shows("recipe.md")),
    ("Replace the word grey with black in colors.txt", writes("colors.txt", "the roof is black")),
    ("make a directory called output", lambda attempt: (attempt.folder / "output").is_dir()),
    ("How much free disk space is there?", lambda attempt: "terminal" in attempt.tools and "%" in attempt.shown),
    ("Execute: python3 -c 'print(6*7)'", lambda attempt: "42" in "".join(attempt.outputs)),
    ("What does a plum cost according to numbers.csv?", says("9")),
    ("Rename notes.txt to meeting.txt", writes("meeting.txt", "Thursday")),
    ("Thanks, that was helpful!", _only_talks),
)


async def attempt_tasks(host: AgentHost, tasks: Tasks, folder: Path) -> list[tuple[str, bool, Attempt]]:
    """Ask each question in a session and a folder of its own; says whether it was done."""
    results = []
    for number, (question, is_done) in enumerate(tasks):
        work = folder / f"task-{number}"
        for name, text in FILES.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        attempt = Attempt(work)
        async with Agent(host=host, cwd=str(work)) as agent:
            result = await agent.run(question, on_event=attempt.take)
        attempt.answer = result.answer or result.problem
        results.append((question, is_done(attempt), attempt))
    return results
