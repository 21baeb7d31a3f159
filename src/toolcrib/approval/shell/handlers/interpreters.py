"""Interpreters (shells, Python and others): judges the code passed to them and reports code from elsewhere."""

from __future__ import annotations

import re

from toolcrib.approval.shell.judge import STANDARD_INPUT, judge_write
from toolcrib.approval.shell.model import ANYTHING, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import Arguments, parse_arguments
from toolcrib.approval.shell.paths import place, reached, resolve
from toolcrib.approval.shell.python_code import UNPACKS_OVER, judge_python
from toolcrib.approval.shell.rules.base import SPECS, CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.script_code import judge_script_code
from toolcrib.approval.shell.state import ShellState
from toolcrib.core.own_commands import OWN_PROGRAMS

SHELLS = [
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "mksh",
    "ash",
    "fish",
    "rbash",
    "yash",
    "csh",
    "tcsh",
    "oksh",
    "pdksh",
    "posh",
    "elvish",
    "nu",
    "xonsh",
    "hush",
    "lksh",
    "iex",
    "Invoke-Expression",
]
SHELL_VALUES = frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file", "--init-command", "-C_"})
INLINE: dict[str, tuple[str, ...]] = {
    "perl": ("-e", "-E"),
    "ruby": ("-e",),
    "node": ("-e", "--eval", "-p", "--print", "-pe"),
    "deno": (),
    "php": ("-r", "-B", "-R", "-E"),
    "lua": ("-e",),
    "tclsh": (),
    "wish": (),
    "expect": ("-c",),
    "osascript": ("-e",),
    "Rscript": ("-e",),
    "R": ("-e",),
    "groovy": ("-e",),
    "scala": ("-e",),
    "julia": ("-e",),
    "elixir": ("-e",),
    "erl": ("-eval",),
    "pwsh": ("-c", "-Command", "-command", "-EncodedCommand", "-enc", "-e"),
    "powershell": ("-c", "-Command", "-command", "-EncodedCommand", "-enc", "-e"),
    "guile": ("-c",),
    "emacs": ("--eval", "-eval"),
    "gdb": ("-ex", "-iex", "--eval-command", "--init-eval-command"),
    "lldb": ("-o", "-O", "-k", "--one-line", "--one-line-before-file", "--one-line-on-crash"),
    "ghc": ("-e",),
    "sage": ("-c",),
    "maxima": ("--batch-string",),
    "crystal": ("eval",),
    "nim": ("--eval",),
    "janet": ("-e",),
    "bb": ("-e",),
    "clj": ("-e", "-M"),
    "gst": (),
    "jrunscript": ("-e",),
    "kotlin": ("-e",),
    "raku": ("-e",),
    "octave": ("--eval",),
    "racket": ("-e",),
    "sbcl": ("--eval",),
    "ocaml": ("-e",),
    "ghci": ("-e",),
    "swift": ("-e",),
    "clojure": ("-e",),
    "gnuplot": ("-e",),
    "jshell": (),
    "pry": ("-e",),
}
SAME = {
    "perl5": "perl",
    "nodejs": "node",
    "bun": "node",
    "tsx": "node",
    "ts-node": "node",
    "luajit": "lua",
    "jruby": "ruby",
    "irb": "ruby",
}


def shell(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge `sh -c 'code'`, `sh file` and `… | sh`."""
    words = call.words
    inner = call.state.copy()
    number, inline, from_input = 0, False, False
    while number < len(words):
        text = words[number].text
        if text == "--":
            number += 1
            break
        if text in SHELL_VALUES:
            number += 2
        elif re.fullmatch(r"[-+][A-Za-z]+", text) and text[0] in "-+":
            inline = inline or ("c" in text and text[0] == "-")
            from_input = from_input or ("s" in text and text[0] == "-")
            number += (
                2 if text[-1] in "oO" and text != "-O" and len(text) > 1 and text[0] == "-" and "c" not in text else 1
            )
        elif text.startswith("--command"):
            inline = True
            number += 1
        elif text.startswith(("--", "+")) or text == "-":
            number += 1
        else:
            break
    rest = words[number:]
    if inline and rest:
        inner.positional = rest[2:]
        if rest[1:]:
            inner.variables["0"] = [rest[1]]
        return inline_code(runner, rest[0], inner, call, site)
    if rest and not from_input and rest[0].text not in STANDARD_INPUT:
        inner.positional = rest[1:]
        return script_file(runner, rest[0], inner, call, site)
    inner.positional = rest
    return piped_code(runner, inner, call, site)


def inline_code(
    runner: Runner, code: ExpandedWord, state: ShellState, call: CommandCall, site: CommandLocation
) -> StreamData:
    if not code.known and code.origin & (Origin.NETWORK | Origin.DECODED):
        runner.report("remote_code", "runs code that was fetched or decoded", site)
        return ANYTHING
    return runner.run_text(code.text, state, call.stdin, site)


def script_file(
    runner: Runner, script: ExpandedWord, state: ShellState, call: CommandCall, site: CommandLocation
) -> StreamData:
    data = call.state.written(resolve(script, call.state), script.text)
    if data is not None and data.text is not None:
        return runner.run_text(data.text, state, call.stdin, site)
    if data is not None or script.origin:
        report_foreign(runner, data or StreamData(None, script.origin), site)
    if data is None and re.match(r"/dev/(?:tcp|udp)/|https?://", script.text):
        runner.report("remote_code", "runs code from the network", site)
    return ANYTHING


def piped_code(runner: Runner, state: ShellState, call: CommandCall, site: CommandLocation) -> StreamData:
    stdin = call.stdin
    if stdin is None:
        return StreamData(None, Origin.PROGRAM | Origin.SHELL)
    if stdin.text is not None:
        return runner.run_text(stdin.text, state, None, site)
    report_foreign(runner, stdin, site)
    return StreamData(None, Origin.PROGRAM | Origin.SHELL)


def report_foreign(runner: Runner, data: StreamData, site: CommandLocation) -> None:
    """Report data that runs as code although the analyser cannot see it."""
    if data.origin & Origin.NETWORK:
        runner.report("remote_code", "runs code from the network", site)
    elif data.origin & Origin.DECODED:
        runner.report("remote_code", "runs decoded or decompressed data as code", site)
    elif not data.origin & Origin.SETUP and (data.origin & Origin.PROGRAM or not data.origin & Origin.FILE):
        runner.report("unknown_code", "runs the output of another program as code", site)


def python(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge `python -c`, a heredoc or pipe into Python, and a module that is run."""
    arguments = parse_arguments(call.words, SPECS["python"].values, stop_early=True)
    code = arguments.value("-c")
    for number, word in enumerate(call.words):
        if re.fullmatch(r"-[A-Za-z]*c", word.text) and number + 1 < len(call.words):
            code = call.words[number + 1]
            break
        if not word.text.startswith("-") or word.text.startswith("-m"):
            break
    if call.words[:1] and call.words[0].text == "-m":
        # What follows belongs to the module.
        code = None
    if code is not None:
        if not code.known and code.origin & (Origin.NETWORK | Origin.DECODED):
            runner.report("remote_code", "runs code that was fetched or decoded", site)
            return ANYTHING
        judge_python(runner, code.text, call, site)
        return StreamData(None, Origin.PROGRAM)
    module = arguments.value("-m")
    if module is not None:
        at = next(i for i, word in enumerate(call.words) if word is module or word.text.endswith(module.text))
        inner = [module, *call.words[at + 1 :]]
        if module.text in PROGRAM_MODULES:
            runner.invoke(inner, call.state, call.stdin, site)
        elif module.text == "toolcrib.compat":
            runner.invoke([ExpandedWord("python3"), *inner[1:]], call.state, call.stdin, site)
        elif module.text.partition(".")[0] in OWN_PROGRAMS:
            runner.invoke([ExpandedWord("toolcrib"), *inner[1:]], call.state, call.stdin, site)
        python_module(runner, module.text, call.words[at + 1 :], call, site)
        return StreamData(None, Origin.PROGRAM)
    if arguments.operands and arguments.operands[0].text not in ("-", *STANDARD_INPUT):
        return python_file(runner, arguments.operands[0], call, site)
    if call.stdin is None:
        return ANYTHING
    judge_source_of_python(runner, call, site)
    return StreamData(None, Origin.PROGRAM)


PROGRAM_MODULES = name_set("pip pipx uv poetry twine flit hatch mkdocs ansible invoke")
"""Programs that are also run as modules."""
RUNS_FILE = name_set(
    "cProfile profile trace pdb runpy coverage kernprof viztracer memray doctest idlelib scalene py_compile"
)
MODULE_VALUES = frozenset(
    ("-s", "--setup", "-n", "--number", "-r", "--repeat", "-u", "--unit", "-c", "--command", "-o", "-d", "--directory")
)


def python_module(
    runner: Runner, name: str, words: list[ExpandedWord], call: CommandCall, site: CommandLocation
) -> None:
    """Judge modules of the library that run code from their arguments or input, or serve files."""
    arguments = parse_arguments(words, MODULE_VALUES)
    if name == "timeit":
        for code in (*arguments.values("-s", "--setup"), *arguments.operands):
            judge_python(runner, code.text, call, site)
    elif name.partition(".")[0] in RUNS_FILE:
        for code in arguments.values("-c", "--command") if name != "cProfile" else []:
            judge_python(runner, code.text.lstrip("!"), call, site)
        if name.startswith("idlelib"):
            for code in arguments.values("-r"):
                python_file(runner, code, call, site)
        if any(each.text in ("-", *STANDARD_INPUT) for each in arguments.operands[:2]):
            judge_source_of_python(runner, call, site)
        elif arguments.operands:
            python_file(runner, arguments.operands[0], call, site)
    elif name in ("pickle", "marshal", "shelve"):
        for file in arguments.operands:
            if place(resolve(file, call.state), call.state) in ("temporary", "outside"):
                runner.report("unknown_code", f"unpacks objects from {file.text}, which may run code", site)
    elif name in ("zipfile", "tarfile"):
        unpack_with_module(runner, arguments, call, site)
    elif name in ("venv", "virtualenv"):
        for folder in arguments.operands:
            if place(resolve(folder, call.state), call.state) in UNPACKS_OVER:
                runner.report("recursive_delete", f"makes {folder.text} an environment, replacing what is there", site)
    elif name in ("code", "asyncio", "IPython", "ptpython") and call.stdin is not None:
        judge_source_of_python(runner, call, site)
    elif name in ("http.server", "SimpleHTTPServer", "pyftpdlib", "uploadserver"):
        served = arguments.value("-d", "--directory")
        path = resolve(served, call.state) if served is not None else call.state.cwd
        if place(path, call.state) in ("home", "root", "secret", "home_config"):
            runner.report("exfiltration", f"serves {path} to the network", site, paths=(path,))


def unpack_with_module(runner: Runner, arguments: Arguments, call: CommandCall, site: CommandLocation) -> None:
    """Judge `python -m zipfile -e archive folder`."""
    if arguments.has("-e", "--extract"):
        for folder in arguments.operands[:2]:
            path = resolve(folder, call.state)
            if place(path, call.state) in UNPACKS_OVER:
                runner.report("system_config", f"unpacks files of any name into {path}", site, paths=(path,))


def judge_source_of_python(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    if call.stdin is not None and call.stdin.text is not None:
        judge_python(runner, call.stdin.text, call, site)
    elif call.stdin is not None:
        report_foreign(runner, call.stdin, site)


def python_file(runner: Runner, script: ExpandedWord, call: CommandCall, site: CommandLocation) -> StreamData:
    data = call.state.written(resolve(script, call.state), script.text)
    if data is not None and data.text is not None:
        judge_python(runner, data.text, call, site)
    elif data is not None:
        report_foreign(runner, data, site)
    if script.text.rpartition("/")[2] in OWN_PROGRAMS:
        at = next(number for number, word in enumerate(call.words) if word is script)
        runner.invoke(call.words[at:], call.state, call.stdin, site)
    texts = [word.text for word in call.words]
    if "shell" in texts and "-c" in texts and texts.index("-c") + 1 < len(texts):
        # `manage.py shell -c code` runs code inside a web framework.
        judge_python(runner, texts[texts.index("-c") + 1], call, site)
    return StreamData(None, Origin.PROGRAM)


def scripting_language(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge one-liners of perl, ruby, node and the like."""
    language = SAME.get(call.program, call.program)
    if language == "ruby" and any(word.text in ("-run", "-run.rb") for word in call.words[:3]):
        # Ruby's own small versions of `rm`, `cp` and others.
        inner = [word for word in call.words if word.text not in ("-run", "-run.rb", "-e", "--")]
        runner.invoke(inner, call.state, None, site)
        return StreamData(None, Origin.PROGRAM)
    codes = inline_values(call.words, INLINE[language])
    if language == "deno" and call.words[:1] and call.words[0].text == "eval":
        codes = call.words[1:2]
    for code in codes:
        if not code.known and code.origin & (Origin.NETWORK | Origin.DECODED):
            runner.report("remote_code", "runs code that was fetched or decoded", site)
        judge_script_code(runner, language, code.text, call, site)
    if codes:
        return StreamData(None, Origin.PROGRAM)
    operands = script_operands(language, call)
    if language == "deno" or (call.program == "bun"):
        if any(re.match(r"https?://", word.text) for word in operands):
            runner.report("remote_code", "runs code from the network", site)
        return StreamData(None, Origin.PROGRAM)
    judge_source(runner, language, code_from(call, operands[0] if operands else ExpandedWord("-")), call, site)
    return StreamData(None, Origin.PROGRAM)


def script_operands(language: str, call: CommandCall) -> list[ExpandedWord]:
    """The script file and its arguments; empty when the script comes from standard input."""
    known = SPECS.get(language)
    operands = parse_arguments(call.words, known.values if known else frozenset(), stop_early=True).operands
    # For php, `--` ends its own options: the rest are arguments for a script on standard input.
    return [] if language == "php" and [word.text for word in call.words[:1]] == ["--"] else operands


def code_from(call: CommandCall, file: ExpandedWord) -> StreamData | None:
    """What is known about the code in a file (input, or written by this line); None for a file from elsewhere."""
    if file.text in ("-", *STANDARD_INPUT):
        return call.stdin
    data = call.state.written(resolve(file, call.state), file.text)
    return StreamData(None, file.origin) if data is None and file.origin & Origin.NETWORK else data


def judge_source(
    runner: Runner, language: str, data: StreamData | None, call: CommandCall, site: CommandLocation
) -> None:
    if data is not None and data.text is not None:
        judge_script_code(runner, language, data.text, call, site)
    elif data is not None:
        report_foreign(runner, data, site)


def inline_values(words: list[ExpandedWord], options: tuple[str, ...]) -> list[ExpandedWord]:
    """The code after `-e`, at the end of a cluster (`-ne`) or joined (`-e'code'`)."""
    found: list[ExpandedWord] = []
    letters = {option[1] for option in options if len(option) == 2}
    for number, word in enumerate(words):
        text = word.text
        if text == "--":
            break
        name, equals, value = text.partition("=")
        if text in options or (re.fullmatch(r"-[A-Za-z0-9]+", text) and text[-1] in letters and len(text) < 8):
            found.extend(words[number + 1 : number + 2])
        elif equals and name in options:
            found.append(word.with_text(value))
        elif ":" in text and text.partition(":")[0] in options:
            found.append(word.with_text(text.partition(":")[2]))
        elif len(text) > 2 and text[:2] in options and text[1] in letters and not text.startswith("--"):
            found.append(word.with_text(text[2:]))
    return found


def awk(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    arguments = call.arguments
    files = arguments.values("-f", "--file", "-E", "--exec", "-i", "--include")
    for file in files:
        judge_source(runner, "awk", code_from(call, file), call, site)
    if files:
        return None
    program = arguments.value("-e", "--source") or (arguments.operands[0] if arguments.operands else None)
    if program is not None:
        judge_script_code(runner, "awk", program.text, call, site)
        if AWK_WRITES_TO_NAME.search(program.text):
            # The name may come from any of its arguments.
            given = [*arguments.operands[1:], *arguments.values("-v", "--assign")]
            for word in given:
                named = word.with_text(AWK_ASSIGNMENT.sub("", word.text))
                judge_write(runner, reached(named, call.state), named, call.state, site)
    return None


AWK_WRITES_TO_NAME = re.compile(r"\bprintf?\b[^>|;}]*>{1,2}\s*\(?\s*[A-Za-z_]")
AWK_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(SHELLS, shell),
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3", "ipython", "ipython3", "micropython"), python),
    **{f"python3.{minor}": python for minor in range(5, 20)},
    "python2.7": python,
    **dict.fromkeys((*INLINE, *SAME), scripting_language),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), awk),
}
