"""Build tools: reads the recipes and scripts that this command line itself wrote before it runs them."""

from __future__ import annotations

import json
import re

from toolcrib.approval.shell.handlers.interpreters import scripting_language
from toolcrib.approval.shell.handlers.wrappers import run_project_command
from toolcrib.approval.shell.model import ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.python_code import judge_python
from toolcrib.approval.shell.rules.base import SPECS, CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.script_code import judge_script_code

MAKE = name_set("make gmake bmake")
FILES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(MAKE, ("GNUmakefile", "makefile", "Makefile")),
    "just": ("justfile", "Justfile", ".justfile"),
    **dict.fromkeys(("task", "go-task"), ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml")),
    "rake": ("Rakefile", "rakefile", "Rakefile.rb"),
    **dict.fromkeys(("gradle", "gradlew"), ("build.gradle", "build.gradle.kts", "settings.gradle")),
    **dict.fromkeys(("invoke", "inv"), ("tasks.py",)),
    "fab": ("fabfile.py",),
    "nox": ("noxfile.py",),
    "gulp": ("gulpfile.js", "gulpfile.mjs"),
    "grunt": ("Gruntfile.js",),
    "ant": ("build.xml",),
    "tox": ("tox.ini",),
}
LANGUAGES = {"rake": "ruby", "gradle": "groovy", "gradlew": "groovy", "gulp": "node", "grunt": "node"}
FILE_OPTIONS = ("-f", "--file", "--makefile", "--justfile", "--taskfile", "--rakefile", "-b", "--build-file")
DIRECTORY_OPTIONS = ("-C", "--directory", "-d", "--dir", "--working-directory", "-p", "--project-dir")
LIFECYCLE = name_set("test start stop restart")
ON_INSTALL = ("preinstall", "install", "postinstall", "prepare")
INSTALLS = name_set("install i ci add")
MAX_LINES = 200
MAX_VALUE = 400
MAKE_ASSIGNMENT = re.compile(r"(?:export\s+|override\s+)?(\w+)\s*(?::{0,3}|\?)=\s*(.*)$")
MAKE_SHELL = re.compile(r"\$\(shell\s+(.+)\)")
MAKE_OUTPUT = re.compile(r"!=\s*(.+)|:?=\s*`(.+)`")
MAKE_VARIABLE = re.compile(r"\$(?:\$|[({](\w+)[)}]|[@<^*?+%]|[({][@<^*?+%][DF]?[)}])")
MAKE_VARIABLES = {"CC": "cc", "CXX": "c++", "AR": "ar", "LD": "ld", "MAKE": "make", "RM": "rm -f", "SHELL": "/bin/sh"}


def build(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge recipes that a build tool reads from its input, from `--eval`, or from a file that was just written."""
    arguments = parse_arguments(call.words, frozenset((*FILE_OPTIONS, *DIRECTORY_OPTIONS, "--eval")))
    for value in arguments.values("--eval"):
        run_recipes(runner, value.text, call, site)
    named = arguments.values(*FILE_OPTIONS)
    if call.stdin is not None and any(each.text in ("-", "/dev/stdin") for each in named):
        read_build_file(runner, call.stdin, call, site)
    directory = arguments.value(*DIRECTORY_OPTIONS)
    names = named or [ExpandedWord(name) for name in FILES[call.program]]
    for name in names if call.state.files or call.state.descriptors else []:
        inside = directory is not None and not name.text.startswith("/")
        path = f"{directory.text}/{name.text}" if directory is not None and inside else name.text
        data = call.state.written(resolve(path, call.state))
        if data is not None:
            read_build_file(runner, data, call, site)
    return None


def read_build_file(runner: Runner, data: StreamData, call: CommandCall, site: CommandLocation) -> None:
    if data.text is None:
        if data.origin & Origin.NETWORK:
            runner.report("remote_code", f"runs what {call.program} reads from a file that came from the network", site)
        elif data.origin != Origin.FILE:
            runner.report("unknown_code", f"runs what {call.program} reads from a file that was just written", site)
    elif call.program in LANGUAGES:
        judge_script_code(runner, LANGUAGES[call.program], data.text, call, site)
        for command in re.findall(r"(?<![\w/])sh[\s(]+[\"']([^\"'\n]+)", data.text[:20_000]):
            runner.run_text(command, call.state.copy(), None, site)
    elif call.program in ("invoke", "inv", "fab", "nox"):
        judge_python(runner, data.text, call, site)
    elif call.program in MAKE or call.program == "just":
        run_recipes(runner, data.text, call, site)
    elif call.program in ("task", "go-task"):
        runner.spend(len(data.text) // 500)
        for command in re.findall(r"^[ \t]*(?:- +(?:cmd: *)?|cmd: *|sh: *)([^\s>|].*)$", data.text, re.MULTILINE):
            runner.run_text(command.strip("'\""), call.state.copy(), None, site)
    else:
        runner.report("unknown_code", f"runs what {call.program} reads from a file that was just written", site)


def run_recipes(runner: Runner, text: str, call: CommandCall, site: CommandLocation) -> None:
    """Judge the recipe lines of a makefile or justfile, each of which a shell runs."""
    lines = text.replace("\\\n", " ").splitlines()
    if len(lines) > MAX_LINES:
        runner.report("unknown_code", "runs recipes that are too long to analyse", site)
    runner.spend(len(lines) // 10 + len(text) // 500)
    variables = dict(MAKE_VARIABLES)
    for line in lines[:MAX_LINES]:
        variable = MAKE_ASSIGNMENT.match(line)
        if variable:
            variables[variable.group(1)] = expand(variable.group(2), variables)[:MAX_VALUE]
        indented = line.startswith(("\t", " "))
        recipe = line if indented else line.partition(";")[2] if ":" in line else ""
        # Up to the last parenthesis: after it, every search for the end of a call would scan the whole line.
        called = MAKE_SHELL.search(line, 0, line.rfind(")") + 1)
        taken = MAKE_OUTPUT.search(line)
        for code in (recipe, *("".join(found.groups("")) for found in (called, taken) if found)):
            expanded = expand(code, variables) if call.program in MAKE else code
            if expanded.strip(" \t@-+"):
                runner.run_text(expanded.strip().lstrip("@-+"), call.state.copy(), None, site)


def expand(text: str, variables: dict[str, str]) -> str:
    """The text with make's own variables expanded; the shell sees the others as environment variables."""

    def value(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name = match.group(1)
        return variables.get(name, "${" + name + "}") if name else "${MAKE_TARGET}"

    return MAKE_VARIABLE.sub(value, text)


def packages(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge scripts of a package.json that this command line wrote or changed, when npm and the like run them."""
    arguments = parse_arguments(call.words, SPECS["npm"].values | {"--cwd", "--dir"})
    operands = [each.text for each in arguments.operands]
    if operands[:2] == ["pkg", "set"]:
        for setting in operands[2:]:
            name, _, code = setting.partition("=")
            if name.startswith("scripts."):
                call.state.aliases["npm " + name[8:]] = code
                runner.run_text(code.strip("\"'"), call.state.copy(), None, site)
        return None
    if operands[:1] == ["set-script"] and len(operands) > 2:
        call.state.aliases["npm " + operands[1]] = operands[2]
        runner.run_text(operands[2], call.state.copy(), None, site)
        return None
    if call.state.files or call.state.aliases:
        directory = arguments.value("--prefix", "-C", "--cwd", "--dir")
        run_package_scripts(runner, operands, directory.text + "/" if directory is not None else "", call, site)
    return (scripting_language if call.program == "bun" else run_project_command)(runner, call, site)


def run_package_scripts(
    runner: Runner, operands: list[str], directory: str, call: CommandCall, site: CommandLocation
) -> None:
    verb = operands[0] if operands else "install"
    name = operands[1] if verb in ("run", "run-script", "rum") and len(operands) > 1 else verb
    name = "test" if verb in ("t", "tst") else name
    data = call.state.written(resolve(directory + "package.json", call.state))
    scripts = {key[4:]: code for key, code in call.state.aliases.items() if key.startswith("npm ")}
    runs = verb in LIFECYCLE or name != verb or call.program in ("yarn", "pnpm", "bun")
    if data is not None and data.text is not None:
        runner.spend(len(data.text) // 500)
        scripts = {**scripts_of(data.text), **scripts}
    elif data is not None and (data.origin & Origin.NETWORK or (runs and verb not in INSTALLS)):
        runner.report("unknown_code", "runs scripts from a package.json that was just written", site)
    for each in ON_INSTALL if verb in INSTALLS else ("pre" + name, name, "post" + name):
        if each in scripts:
            runner.run_text(scripts[each], call.state.copy(), None, site)


def scripts_of(text: str) -> dict[str, str]:
    """The scripts in a package.json; empty for text that npm could not read either."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    scripts = content.get("scripts") if isinstance(content, dict) else None
    return {name: code for name, code in scripts.items() if isinstance(code, str)} if isinstance(scripts, dict) else {}


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(FILES, build),
    **dict.fromkeys(("npm", "yarn", "pnpm", "bun"), packages),
}
