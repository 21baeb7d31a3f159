"""The tools that a very small model always gets, described in simple words, with examples to imitate.

Its choice among many tools with full descriptions is close to chance; among these five it is mostly right.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

from toolcrib.core.types import JsonObject

ANSWER = "answer"
"""What the model calls if it needs no tool."""
STEM_CHARS = 6
_QUOTED = re.compile(r"""`[^`\n]+`|"[^"\n]+"|(?<!\w)'[^'\n]+'(?!\w)""")
_FILE_NAME = re.compile(r"[\w./-]*\w\.[a-z]\w{0,4}\b")
_COMMON_WORDS = "the a an of to is are it its this that there here in on with please me my i you can could would and"
_COMMON = frozenset(f"{_COMMON_WORDS} for be do does".split())
_SYNONYMS = {
    "biggest": "largest",
    "directory": "folder",
    "directories": "folder",
    "substitute": "replace",
    "swap": "replace",
    "contents": "content",
    "display": "show",
    "print": "show",
    "count": "many",
    "create": "make",
    "store": "save",
    "hello": "hi",
    "hey": "hi",
    "thank": "thanks",
}


class EverydayTool(msgspec.Struct, frozen=True, kw_only=True):
    """How one tool is described to a small model."""

    description: str
    parameters: Mapping[str, str]
    """What the model has to give, with a description of each; all of them are required."""
    fixed: Mapping[str, str] = MappingProxyType({})
    """Arguments with only one useful value."""

    def function(self, name: str) -> JsonObject:
        """The definition of the tool, in OpenAI's format."""
        properties: JsonObject = {key: {"const": value} for key, value in self.fixed.items()}
        properties |= {key: {"type": "string", "description": text} for key, text in self.parameters.items()}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        return {"name": name, "description": self.description, "parameters": schema}


EVERYDAY_TOOLS: Mapping[str, EverydayTool] = MappingProxyType(
    {
        "terminal": EverydayTool(
            description="Run a shell command: list, count, sort, move, copy or delete files, make folders, run "
            "programs, get facts about this computer",
            parameters={"command": "the command line for bash"},
        ),
        "read_file": EverydayTool(
            description="Show what is written in a text file",
            parameters={"path": "the file"},
        ),
        "write_file": EverydayTool(
            description="Write a text to a file",
            parameters={"path": "the file", "content": "the text"},
        ),
        "patch": EverydayTool(
            description="Replace words in a file",
            parameters={"path": "the file", "old_string": "the words to replace", "new_string": "the new words"},
            fixed={"mode": "replace"},
        ),
        "search_files": EverydayTool(
            description="Find the files that contain a word",
            parameters={"pattern": "the word"},
        ),
    }
)

_COMMANDS = (
    ("run whoami", "whoami"),
    ("run the command `ls /tmp`", "ls /tmp"),
    ("execute: git status", "git status"),
    ("Which files are here?", "ls"),
    ("What is in this directory?", "ls"),
    ("List all files with their sizes", "ls -lh"),
    ("Which is the largest file in this folder?", "find . -type f -printf '%s %p\\n' | sort -rn | head -n 1"),
    ("Which is the smallest file?", "find . -type f -printf '%s %p\\n' | sort -n | head -n 1"),
    ("Which file is the newest?", "ls -t | head -n 1"),
    ("How big is photo.jpg?", "du -h photo.jpg"),
    ("How large is this folder?", "du -sh ."),
    ("How many lines are in a.txt?", "wc -l a.txt"),
    ("How many words does a.txt have?", "wc -w a.txt"),
    ("How many files are in this folder?", "ls | wc -l"),
    ("Find all Python files", "find . -name '*.py'"),
    ("Show the first lines of a.txt", "head a.txt"),
    ("Show the last 3 lines of a.txt", "tail -n 3 a.txt"),
    ("Sort the lines of a.txt", "sort a.txt"),
    ("Make a new folder called src", "mkdir src"),
    ("Move a.txt to b.txt", "mv a.txt b.txt"),
    ("Rename old.md to new.md", "mv old.md new.md"),
    ("Copy a.txt to b.txt", "cp a.txt b.txt"),
    ("Delete the file a.txt", "rm a.txt"),
    ("Create an empty file called a.txt", "touch a.txt"),
    ("How much memory does this computer have?", "free -h"),
    ("How full is the disk? How much space is left on it?", "df -h ."),
    ("What time is it? What day is today?", "date"),
    ("Which version of Linux is this? Which kernel?", "uname -a"),
    ("Which processor does this machine have?", "lscpu | head -n 20"),
    ("Which user am I?", "whoami"),
    ("In which folder are we? Show the current directory", "pwd"),
    ("What is the name of this computer?", "hostname"),
    ("Is python installed? Which version?", "python3 --version"),
    ("Which processes are running?", "ps aux | head -n 20"),
    ("Run the script main.py", "python3 main.py"),
    ("Calculate 17 * 23", "echo $((17 * 23))"),
)
Example = tuple[str, str, Mapping[str, str]]
"""A question, the tool that helps, and its arguments."""
EXAMPLES: tuple[Example, ...] = (
    *((question, "terminal", {"command": command}) for question, command in _COMMANDS),
    ("Show a.txt", "read_file", {"path": "a.txt"}),
    ("Read the file src/main.c", "read_file", {"path": "src/main.c"}),
    ("What does letter.txt say?", "read_file", {"path": "letter.txt"}),
    ("Print the contents of config.yaml", "read_file", {"path": "config.yaml"}),
    ("According to list.csv, who is the oldest?", "read_file", {"path": "list.csv"}),
    ("What is the price of tea? Look in prices.md", "read_file", {"path": "prices.md"}),
    ("When does the train leave? It is in times.txt", "read_file", {"path": "times.txt"}),
    ("Summarise report.txt", "read_file", {"path": "report.txt"}),
    ("Write 'good morning' to hello.txt", "write_file", {"path": "hello.txt", "content": "good morning"}),
    (
        "Save the text water the plants in garden.txt",
        "write_file",
        {"path": "garden.txt", "content": "water the plants"},
    ),
    (
        "Write a note in note.md that says: the train leaves at six",
        "write_file",
        {"path": "note.md", "content": "the train leaves at six"},
    ),
    ("Create a file test.txt with the text abc", "write_file", {"path": "test.txt", "content": "abc"}),
    ("Change cat to dog in a.txt", "patch", {"path": "a.txt", "old_string": "cat", "new_string": "dog"}),
    (
        "Replace the word north with south in map.md",
        "patch",
        {"path": "map.md", "old_string": "north", "new_string": "south"},
    ),
    ("Which file contains the word banana?", "search_files", {"pattern": "banana"}),
    ("Search for cherry in all files", "search_files", {"pattern": "cherry"}),
    ("Where is the function main defined?", "search_files", {"pattern": "main"}),
    ("Hi, how are you?", ANSWER, {}),
    ("Thanks, that is great!", ANSWER, {}),
    ("What is the capital of France?", ANSWER, {}),
    ("Tell me a joke", ANSWER, {}),
    ("Who are you? What can you do?", ANSWER, {}),
    ("Explain what a list is in Python", ANSWER, {}),
)
"""Patterns that a small model imitates."""


def in_small_words(tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The everyday tools among these, as a small model is offered them."""
    offered = {tool["function"]["name"]: tool for tool in tools}
    return [
        offered[name] | {"function": everyday.function(name)}
        for name, everyday in EVERYDAY_TOOLS.items()
        if name in offered
    ]


def named_tools(question: str, tools: Sequence[JsonObject]) -> list[JsonObject]:
    """The tools that the question names: "use the weather tool", "with the terminal", "read_file"."""
    text = question.lower()
    return [tool for tool in tools if _is_named(tool["function"]["name"].lower(), text)]


def _is_named(name: str, text: str) -> bool:
    if "_" in name and re.search(rf"\b{re.escape(name)}\b", text):
        return True
    spoken = re.escape(name.replace("_", " "))
    words = [re.escape(word) for word in re.split(r"[_\W]+", name) if len(word) > 2]
    asked = rf"\b(?:use|using|with|via|call|through)\s+(?:the\s+|a\s+|your\s+)?{spoken}\b"
    as_tool = rf"\b(?:{'|'.join([spoken, *words])})[\s-]+tool\b"
    return re.search(f"{asked}|{as_tool}", text) is not None


def nearest_examples(question: str, names: Collection[str], most: int) -> list[tuple[str, str]]:
    """The questions most like this one, for these tools, each with the reply in JSON; the most similar comes last."""
    ranked = [one for _, one in _ranked(question) if one[1] in names]
    return [(asked, _reply(name, arguments)) for asked, name, arguments in ranked[-most:]]


def is_small_talk(question: str) -> bool:
    """Whether the question is most like one that needs no tool."""
    score, nearest = _ranked(question)[-1]
    return score > 0 and nearest[1] == ANSWER


def _ranked(question: str) -> list[tuple[float, Example]]:
    """All examples by likeness, the most similar last; a rare word in common counts more than a frequent one."""
    words = [_words(asked) for asked, _, _ in EXAMPLES]
    spread = Counter(word for found in words for word in found)
    asked = _words(question)
    scores = [sum(1 / spread[word] for word in asked & found) / len(found) ** 0.5 for found in words]
    return sorted(zip(scores, EXAMPLES, strict=True), key=lambda one: one[0])


def _reply(name: str, arguments: Mapping[str, str]) -> str:
    if name == ANSWER:
        return json.dumps({"name": ANSWER})
    return json.dumps({"name": name, "arguments": {**EVERYDAY_TOOLS[name].fixed, **arguments}})


def _words(text: str) -> set[str]:
    """The stems of the words, with one word for all file names and one for what is quoted."""
    named = _FILE_NAME.sub(" filename ", _QUOTED.sub(" quotation ", text.lower()))
    words = {_SYNONYMS.get(word, word) for word in re.findall(r"[a-z]+", named)} - _COMMON
    return {word if word == "filename" else word.removesuffix("s")[:STEM_CHARS] for word in words}
