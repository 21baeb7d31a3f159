"""Shell builtins that change what later commands mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from toolcrib.approval.shell.assignments import REFERENCE, REFERRING
from toolcrib.approval.shell.command_options import SENDS_ON
from toolcrib.approval.shell.expansion import ASSIGNMENT, previous_directory
from toolcrib.approval.shell.judge import NETWORK_DEVICE, STANDARD_INPUT
from toolcrib.approval.shell.model import ANYTHING, NOTHING, UNKNOWN, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.outputs import literal_output
from toolcrib.approval.shell.paths import reached, resolve
from toolcrib.approval.shell.rules import BY_PROGRAM
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.state import ShellState


def change_directory(_runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    operands = [word for word in call.words if not re.fullmatch(r"-[LPe@n]+|--", word.text)]
    if not operands and call.program == "pushd":
        go_to(call.state, ExpandedWord(call.state.stack[-1] if call.state.stack else UNKNOWN))
    elif not operands:
        go_to(call.state, ExpandedWord(call.state.home))
    elif operands[0].text == "-":
        go_to(call.state, previous_directory(call.state))
    elif call.program == "pushd" and re.match(r"[-+]\d", operands[0].text):
        go_to(call.state, ExpandedWord(UNKNOWN))
    else:
        if call.program == "pushd":
            call.state.stack = (*call.state.stack, here(call.state))
        searched = "CDPATH" in call.state.variables and not operands[0].text.startswith(("/", "."))
        go_to(call.state, ExpandedWord(UNKNOWN) if searched else operands[0])
    return NOTHING


def pop_directory(_runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    stack = call.state.stack
    go_to(call.state, ExpandedWord(stack[-1] if stack and not call.words else UNKNOWN))
    call.state.stack = stack[:-1]
    return NOTHING


def go_to(state: ShellState, target: ExpandedWord) -> None:
    """Change the directory, and remember where `cd -` leads back to."""
    before = here(state)
    if target.known:
        state.cwd = reached(target, state)
        state.cwd_known = state.cwd_known or state.cwd.startswith("/")
    else:
        path = resolve(target, state) if target.text.startswith("/") else ""
        state.cwd, state.cwd_known = path, bool(path)
    state.variables["OLDPWD"] = [ExpandedWord(before)]


def here(state: ShellState) -> str:
    """The current directory as a path that does not depend on it; UNKNOWN if it is not known."""
    return state.cwd if state.cwd_known and state.cwd.startswith("/") else UNKNOWN


def declare(runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData | None:
    if not call.words:
        return StreamData(None, Origin.SECRET)
    for word in call.words:
        match = ASSIGNMENT.match(word.text)
        if match and call.program in REFERRING and any(REFERENCE.match(each.text) for each in call.words):
            call.state.references[match.group(1)] = word.text[match.end() :]
        elif match:
            name, value = match.group(1) + (match.group(2) or ""), word.with_text(word.text[match.end() :])
            runner.assign(name, [value], call.state)
    return NOTHING


TESTS_NAME = frozenset({"-v", "-R"})
TESTS_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def judge_condition(runner: Runner, words: Sequence[ExpandedWord], state: ShellState) -> None:
    """Judge the operands that `[[` and `test` evaluate: names with subscripts, and numbers."""
    for before, word in pairwise(words):
        if before.text in TESTS_NAME or before.text in TESTS_NUMBERS:
            runner.calculate(word.text, state)
        elif word.text in TESTS_NUMBERS:
            runner.calculate(before.text, state)


def test(runner: Runner, call: CommandCall, _site: CommandLocation) -> None:
    judge_condition(runner, call.words, call.state)


def let(runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    for word in call.words:
        runner.calculate(word.text, call.state)
    return NOTHING


def set_named(runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    """`getopts` and `wait -p` set a variable of a given name."""
    names = parse_arguments(call.words, frozenset({"-p"})).values("-p") if call.program == "wait" else call.words[1:2]
    for name in names:
        runner.assign(name.text, [ExpandedWord(UNKNOWN)], call.state)
    return NOTHING


def unset(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    for word in call.words:
        if word.text == "HISTFILE":
            runner.report("system_config", "makes the shell forget what it runs", site)
        if "[" in word.text:
            runner.calculate(word.text, call.state)
        call.state.variables.pop(word.text, None)
        call.state.functions.pop(word.text, None)
    return NOTHING


def set_options(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    words = call.words
    names = [word.text for word in words]
    if names[:2] == ["+o", "history"]:
        runner.report("system_config", "makes the shell forget what it runs", site)
    if not words:
        # It prints all variables.
        return StreamData(None, Origin.SECRET)
    if "--" in names:
        call.state.positional = words[names.index("--") + 1 :]
    elif words and not names[0].startswith(("-", "+")):
        call.state.positional = list(words)
    return NOTHING


def shift(_runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    count = int(call.words[0].text) if call.words and call.words[0].text.isdecimal() else 1
    if call.state.positional is not None:
        call.state.positional = call.state.positional[count:]
    return NOTHING


def read(runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    """`read a b <<< 'x y'` assigns known text; anything else is unknown."""
    arguments = parse_arguments(call.words, frozenset({"-d", "-n", "-N", "-p", "-t", "-u", "-i", "-a"}))
    names = [each.text for each in arguments.operands]
    array = arguments.value("-a")
    data = source_of_lines(call, arguments.value("-u"))
    text = data.text if data is not None else None
    origin = data.origin if data is not None else 0
    if call.state.listing and data is not None and text is None:
        origin |= Origin.LISTED
    if array is not None:
        parts = text.split() if text is not None else [UNKNOWN]
        runner.assign(array.text, [ExpandedWord(part, origin=origin) for part in parts], call.state)
        return NOTHING
    line = text.partition("\n")[0] if text is not None else None
    pieces = line.split(None, max(0, len(names) - 1)) if line is not None else []
    for number, name in enumerate(names or ["REPLY"]):
        value = UNKNOWN if line is None else pieces[number].strip() if number < len(pieces) else ""
        runner.assign(name, [ExpandedWord(value, origin=origin)], call.state)
    return NOTHING


def source_of_lines(call: CommandCall, descriptor: ExpandedWord | None) -> StreamData | None:
    """What `read` and `mapfile` read: their input, or the descriptor after `-u`."""
    if descriptor is None or descriptor.text == "0":
        return call.stdin
    return call.state.descriptors.get(descriptor.text, StreamData(None))


def map_file(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    arguments = parse_arguments(call.words, frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}))
    for hook in arguments.values("-C"):
        # The shell adds the number and the line to it.
        runner.run_text(f"{hook.text} 0 {UNKNOWN}", call.state.copy(), None, site)
        if re.search(r"\b(?:(?:ba|z|da|k)?sh\s+-\w*c|eval|source|\.)\s*$", hook.text):
            runner.report("unknown_code", "runs every line that it reads", site)
    name = arguments.operands[0].text if arguments.operands else "MAPFILE"
    data = source_of_lines(call, arguments.value("-u"))
    text = data.text if data is not None else None
    lines = text.splitlines() if text is not None else [UNKNOWN]
    origin = data.origin if data is not None else 0
    runner.assign(name, [ExpandedWord(line, origin=origin) for line in lines], call.state)
    return NOTHING


def printf(runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData | None:
    arguments = parse_arguments(call.words, frozenset({"-v"}), stop_early=True)
    name = arguments.value("-v")
    if name is None or not arguments.operands:
        return None
    data = literal_output(CommandCall("printf", arguments.operands, call.state, None, call.text, call.span))
    text = UNKNOWN if data.text is None else data.text
    runner.assign(name.text, [ExpandedWord(text, origin=data.origin)], call.state)
    return NOTHING


DANGEROUS_BY_ARGUMENTS = name_set(
    "rm grm srm shred wipe unlink dd truncate chmod chown chgrp kill pkill killall shutdown reboot halt poweroff init "
    "mkfs wipefs sudo doas env nohup eval exec xargs busybox"
)
"""Programs that become dangerous once a later command adds arguments; an alias would hide them."""


def alias(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    for word in call.words:
        name, equals, value = word.text.partition("=")
        if equals:
            call.state.aliases[name] = value
            runner.define_alias(name, value, site)
    return NOTHING


def unalias(_runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData:
    for word in call.words:
        call.state.aliases.pop(word.text, None)
    return NOTHING


def evaluate(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    words = call.words[1:] if call.words[:1] and call.words[0].text == "--" else call.words
    return run_code(runner, words, call, site)


def run_code(runner: Runner, words: list[ExpandedWord], call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge words that the shell joins and reads again as code."""
    text = " ".join(word.text for word in words)
    origin = 0
    for word in words:
        origin |= word.origin
    if not text.strip():
        return NOTHING
    if UNKNOWN in text and origin & (Origin.NETWORK | Origin.DECODED):
        runner.report("remote_code", "runs code that was fetched or decoded", site)
        return ANYTHING
    if text.strip() == UNKNOWN and origin == Origin.FILE:
        # The text of a local file: the same as `source file`.
        return ANYTHING
    if UNKNOWN in text and origin & Origin.SETUP:
        # A program that is meant to print shell code, such as `ssh-agent -s`.
        return ANYTHING
    return runner.run_text(text, call.state, call.stdin, site)


def source(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    if not call.words:
        return NOTHING
    word = call.words[0]
    data = call.state.written(resolve(word, call.state), word.text)
    if word.text in ("-", *STANDARD_INPUT):
        data = call.stdin
    if NETWORK_DEVICE.match(word.text):
        data = StreamData(None, Origin.NETWORK)
    if data is None:
        return ANYTHING
    if data.text is not None:
        return runner.run_text(data.text, call.state, None, site)
    if data.origin & (Origin.NETWORK | Origin.DECODED):
        runner.report("remote_code", "runs code that was fetched or decoded", site)
    elif not data.origin & (Origin.FILE | Origin.SETUP) or data.origin & Origin.PROGRAM:
        runner.report("unknown_code", "runs the output of another program as code", site)
    return ANYTHING


def trap(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    words = [word for word in call.words if word.text not in ("--", "-p", "-l")]
    if len(words) > 1 and words[0].text not in ("-", ""):
        runner.run_text(words[0].text, call.state.copy(), None, site)
        if SENDS_ON.search(words[0].text) and any(word.text in ("DEBUG", "RETURN") for word in words[1:]):
            runner.report("exfiltration", "sends something with every command that runs", site)
    return NOTHING


def execute(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    arguments = parse_arguments(call.words, frozenset({"-a"}), stop_early=True)
    if not arguments.operands:
        return NOTHING
    return runner.invoke(arguments.operands, call.state, call.stdin, site)


def command(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    arguments = parse_arguments(call.words, frozenset(), stop_early=True)
    if arguments.has("-v", "-V") or not arguments.operands:
        return literal_output(call)
    return runner.invoke(arguments.operands, call.state, call.stdin, site)


def complete(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge what `compgen -C` and `complete -C` run to complete a word."""
    arguments = parse_arguments(call.words, frozenset({"-o", "-A", "-G", "-W", "-F", "-C", "-X", "-P", "-S", "-V"}))
    for value in arguments.values("-C"):
        runner.run_text(value.text, call.state.copy(), None, site)
    for value in arguments.values("-W"):
        # The words are expanded when they are needed.
        runner.calculate(value.text, call.state)
    return ANYTHING


def bind(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge what `bind -x '"key": command'` binds to a key."""
    for value in parse_arguments(call.words, frozenset({"-m", "-q", "-u", "-r", "-f", "-x"})).values("-x"):
        bound = re.match(r'\s*"(?:[^"\\]|\\.)*"\s*[:\s]\s*(.*)', value.text, re.DOTALL)
        text = (bound.group(1) if bound else value.text).strip()
        runner.run_text(text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text, call.state, None, site)
    return NOTHING


def remember_program(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """`hash -p file name` makes a name run another program."""
    arguments = parse_arguments(call.words, frozenset({"-p"}))
    program = arguments.value("-p")
    for name in arguments.operands if program is not None else []:
        call.state.aliases[name.text] = program.text if program is not None else ""
        runner.report("unknown_code", f"makes the name {name.text!r} run another program", site)
    return NOTHING


def enable(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    if parse_arguments(call.words, frozenset({"-f"})).has("-f"):
        runner.report("unknown_code", "loads a library into the shell", site)
    return NOTHING


TRUSTED_NAMES = name_set("sudo su doas ssh scp sftp gpg passwd login pass op")
"""Programs that are given passwords or keys."""


def judge_function_name(runner: Runner, name: str, text: str, site: CommandLocation) -> None:
    """Report a function that puts something before a program with passwords, or sends its arguments elsewhere."""
    body = text.partition("{")[2].rpartition("}")[0].strip(" \t\n;")
    wraps = re.fullmatch(rf"(?:\w+=\S*\s+)*(?:command|builtin)?\s*{re.escape(name)}\b[^;&|\n]*", body) is not None
    if name in TRUSTED_NAMES and not wraps:
        runner.report("unknown_code", f"makes the name {name!r} run something else first", site)
    judge_hidden_sender(runner, name, body, site)


def judge_hidden_sender(runner: Runner, name: str, text: str, site: CommandLocation) -> None:
    """Report a function or an alias that makes a well-known program send something each time somebody calls it."""
    sender = SENDS_ON.search(text) if name in BY_PROGRAM or name in EVERYDAY else None
    if sender is not None and name not in SENDING:
        runner.report("exfiltration", f"makes the name {name!r} call {sender.group()} as well", site)


SENDING = name_set("curl wget nc ncat netcat socat telnet ftp sendmail ssh scp rsync http https")
EVERYDAY = name_set(
    "ls cd cat pwd echo export history exit source make man less vim vi nano emacs code python python3 node grep find "
    "test which clear top cp mv mkdir touch head tail"
)


def judge_alias_name(runner: Runner, name: str, text: str, site: CommandLocation) -> None:
    """Report an alias that hides a dangerous program, or that puts something before a program with passwords."""
    program = text.strip().rpartition("/")[2]
    if name in TRUSTED_NAMES and not re.fullmatch(
        rf"\s*(?:/(?:usr/|opt/)?(?:[\w.-]+/)*)?{re.escape(name)}(?:\s[^;&|`$<>]*)?", text
    ):
        runner.report("unknown_code", f"makes the name {name!r} run something else first", site)
    judge_hidden_sender(runner, name, text, site)
    if program != name and program in DANGEROUS_BY_ARGUMENTS:
        runner.report("unknown_code", f"makes the name {name!r} run {program}", site)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("compgen", "complete"), complete),
    "bind": bind,
    "hash": remember_program,
    "enable": enable,
    "cd": change_directory,
    "pushd": change_directory,
    "popd": pop_directory,
    "export": declare,
    "declare": declare,
    "typeset": declare,
    "local": declare,
    "readonly": declare,
    "unset": unset,
    "test": test,
    "[": test,
    "let": let,
    **dict.fromkeys(("getopts", "wait"), set_named),
    "set": set_options,
    "shift": shift,
    "read": read,
    "mapfile": map_file,
    "readarray": map_file,
    "printf": printf,
    "alias": alias,
    "unalias": unalias,
    "eval": evaluate,
    "source": source,
    ".": source,
    "trap": trap,
    "exec": execute,
    "command": command,
    "builtin": command,
}
