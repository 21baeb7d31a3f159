"""Judges one command: by the rules, and by the files that it reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolcrib.approval.shell.model import NOTHING, UNKNOWN, ExpandedWord, NotUnderstood, Origin, StreamData, name_set
from toolcrib.approval.shell.paths import (
    DATABASE_FILE,
    is_personal,
    is_private,
    is_protected,
    is_secret,
    place,
    reached,
    resolve,
    written_path,
)
from toolcrib.approval.shell.planted_code import RUN_LATER, judge_planted
from toolcrib.approval.shell.rules import BY_PROGRAM, TAKES_SUBCOMMAND
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.rules.other_tools import ANY_UNLISTED
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.secret_files import (
    protected_by_pattern,
    secrets_by_pattern,
)
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import Redirection
from toolcrib.core.git_metadata import EXECUTED_PATH
from toolcrib.core.own_commands import OWN_PROGRAMS

MAX_WRITTEN = 400


def help_only(call: CommandCall) -> bool:
    """True for a command that only prints its help or version."""
    return any(word.text in ("--help", "--version", "--usage") for word in call.words[-1:] + call.words[:1]) or (
        [word.text for word in call.words] in (["-V"], ["help"], ["version"], ["-v"])
    )


def judge(runner: Runner, call: CommandCall, site: CommandLocation, *, handled: bool) -> None:
    """Report every rule that the command matches; judge a program without rules or a handler by its words."""
    rules = BY_PROGRAM.get(call.program) or BY_PROGRAM.get(call.program.partition(".")[0] + ".*")
    if rules is None:
        rules = () if handled else BY_PROGRAM[ANY_UNLISTED]
    blocked = False
    for rule in rules:
        if not rule.matches(call):
            continue
        severity = rule.severity if call.known else "ask"
        if rule.severity == "block" and not call.known:
            continue
        blocked = blocked or severity == "block"
        runner.report(rule.key, rule.reason, site, severity=severity, paths=touched(call))
    if call.program in TAKES_SUBCOMMAND:
        judge_unknown_subcommand(runner, call, site)
    written = written_paths(call)
    if len(written) > MAX_WRITTEN:
        raise NotUnderstood("a command writes to too many files to analyse")
    endless = call.program in COPIES_INPUT and call.stdin is not None and call.stdin.origin & Origin.ENDLESS
    if endless and any(not path.startswith("/dev/") for path, _ in written):
        runner.report("disk_write", "writes to a file until the disk is full", site)
    for path, target in written:
        judge_write(runner, path, target, call.state, site)
        is_named = target.text.strip(UNKNOWN + "/") or call.program in COPIES_INPUT
        if is_named and target.text.startswith(UNKNOWN):
            judge_unknown_target(runner, target, call.state, site)


def judge_unknown_subcommand(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    operands = call.arguments.operands
    if operands and UNKNOWN in operands[0].text[:1]:
        runner.report("unknown_command", f"which sub-command of {call.program} runs is only known at run time", site)


def touched(call: CommandCall) -> tuple[str, ...]:
    """The paths among the operands of a file command, to show the user and to scope a grant."""
    if call.program not in FILE_PROGRAMS:
        return ()
    operands: list[ExpandedWord] = call.arguments.operands
    if call.program in ("chmod", "chown", "chgrp"):
        operands = operands[1:]
    return tuple(resolve(each, call.state) for each in operands[:32] if each.text)


FILE_PROGRAMS = frozenset(
    ("rm", "chmod", "chown", "chgrp", "shred", "unlink", "truncate", "rmdir", "srm", "wipe", "dd", "tee", "cp", "mv")
)


NETWORK_DEVICE = re.compile(r"/dev/(?:tcp|udp)/")
DATA_FILE = re.compile(r"\.(?:db|sqlite3?|mdb|rdb|aof|ibd|dump|parquet|h5|bak)$")
STANDARD_INPUT = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})


def read_redirections(
    runner: Runner,
    targets: list[tuple[Redirection, ExpandedWord]],
    state: ShellState,
    stdin: StreamData | None,
    site: CommandLocation,
) -> StreamData | None:
    """What a command reads: the text of a heredoc or here-string, a file, a descriptor, or its pipe."""
    for redirection, target in targets:
        operator = redirection.operator
        if operator in ("<<", "<<-", "<<<"):
            unknown = UNKNOWN in target.text and not target.text.strip(UNKNOWN + "\n")
            data: StreamData | None = StreamData(None if unknown else target.text, target.origin)
        elif operator == "<&":
            number = target.text.removesuffix("-")
            data = (
                stdin if number == "0" else NOTHING if not number else state.descriptors.get(number, StreamData(None))
            )
        elif operator in ("<", "<>"):
            data = opened(runner, target, state, stdin, site)
        else:
            continue
        if redirection.descriptor in ("", "0"):
            stdin = data
        elif data is not None:
            state.descriptors[chosen_descriptor(redirection, state)] = data
    return stdin


def opened(
    runner: Runner, target: ExpandedWord, state: ShellState, stdin: StreamData | None, site: CommandLocation
) -> StreamData | None:
    """What can be read from a file that is opened for a command."""
    path = reached(target, state)
    if NETWORK_DEVICE.match(path):
        runner.report("remote_code", "opens a network connection as a file", site, paths=(path,))
        return StreamData(None, Origin.NETWORK)
    if path in STANDARD_INPUT:
        return stdin
    if path == "/dev/null":
        return NOTHING
    path = secrets_by_pattern(target, state) or path
    secret = Origin.SECRET if is_secret(path) else Origin.PRIVATE if is_private(path) else 0
    secret |= Origin.PERSONAL if is_personal(path, state) else 0
    if secret & Origin.SECRET:
        runner.report("credential", f"reads the secret {path.replace(UNKNOWN, '…')}", site, paths=(path,))
    database = Origin.DATABASE if DATABASE_FILE.search(path) else 0
    return state.written(path, target.text) or StreamData(None, Origin.FILE | secret | database | target.origin)


def chosen_descriptor(redirection: Redirection, state: ShellState) -> str:
    """The number of a descriptor; for `{name}<file` the shell picks one and sets the variable."""
    if redirection.descriptor.isdecimal():
        return redirection.descriptor
    number = str(10 + len(state.descriptors) + len(state.outputs))
    state.assign(redirection.descriptor, [ExpandedWord(number)])
    return number


def write_redirections(
    runner: Runner,
    targets: list[tuple[Redirection, ExpandedWord]],
    state: ShellState,
    output: StreamData,
    site: CommandLocation,
) -> StreamData:
    """What still goes to the pipe after redirections send a command's output to files."""
    for redirection, target in targets:
        operator = redirection.operator
        if operator not in (">", ">>", ">|", "&>", "&>>", ">&", "<>"):
            continue
        if operator == ">&" and re.fullmatch(r"\d+-?|-", target.text):
            path = state.outputs.get(target.text, "")
            if path and redirection.descriptor in ("", "1"):
                state.files[path] = StreamData.join([state.files.get(path, NOTHING), output])
                output = runner.feed(path, output, state) if path in state.sinks else NOTHING
            continue
        path = reached(target, state)
        judge_write(runner, path, target, state, site, verb="appends to" if operator.endswith(">>") else "overwrites")
        if target.text.startswith(UNKNOWN):
            judge_unknown_target(runner, target, state, site)
        if output.origin & Origin.ENDLESS and not path.startswith("/dev/"):
            runner.report("disk_write", "writes to a file until the disk is full", site, paths=(path,))
        if NETWORK_DEVICE.match(path) and operator != "<>":
            key = "exfiltration" if output.origin & Origin.SECRET else "remote_code"
            runner.report(key, "sends data to a network connection", site, paths=(path,))
        if redirection.descriptor in ("", "1", "&") and target.known:
            judge_planted(runner, path, output, state, site)
            if operator.endswith(">>"):
                output = StreamData.join([state.files.get(path, NOTHING), output])
            state.files[path] = output
            output = runner.feed(path, output, state) if path in state.sinks else NOTHING
        elif target.known and operator != "<>":
            state.outputs[chosen_descriptor(redirection, state)] = path
            if path in state.sinks and redirection.descriptor == "2":
                runner.feed(path, StreamData(None, Origin.PROGRAM), state)
    return output


def judge_write(
    runner: Runner,
    path: str,
    target: ExpandedWord,
    state: ShellState,
    site: CommandLocation,
    *,
    verb: str = "writes to",
) -> None:
    """Report a write to a system file, a disk, or a file that the user's programs run at start-up."""
    path = protected_by_pattern(target, state) or path
    if state.remote and path[:1] not in ("/", UNKNOWN):
        # Commands on another host start in the home folder.
        path = f"{state.home}/{path}"
    kind = place(path, state)
    shown = path.replace(UNKNOWN, "…")
    if kind == "disk":
        runner.report(
            "disk_write", f"{verb} the disk {shown}", site, severity="block" if target.known else "ask", paths=(path,)
        )
    elif path == "/proc/sysrq-trigger":
        runner.report(
            "system_power",
            "triggers a kernel action that can power off the machine",
            site,
            severity="block",
            paths=(path,),
        )
    elif kind in ("system", "system_root", "device", "root"):
        if not (kind == "device" and NETWORK_DEVICE.match(path)):
            runner.report("system_config", f"{verb} {shown}, which belongs to the system", site, paths=(path,))
    elif kind == "home_config" or (kind == "secret" and path.startswith("/")):
        runner.report("system_config", f"{verb} {shown}, which configures the user's account", site, paths=(path,))
    elif target.origin & Origin.PROTECTED_FILE:
        runner.report("system_config", f"{verb} a file that may configure the user's account", site, paths=(path,))
    elif EXECUTED_PATH.search(path) or RUN_LATER.search(path):
        runner.report("system_config", f"{verb} {shown}, which git or another tool runs later", site, paths=(path,))
    elif path.startswith(UNKNOWN + "/") and place(state.home + path.lstrip(UNKNOWN), state) == "home_config":
        runner.report("system_config", f"{verb} {shown} in a folder that is only known at run time", site)


def judge_unknown_target(runner: Runner, target: ExpandedWord, state: ShellState, site: CommandLocation) -> None:
    """Report a write to a file that only the running shell knows; one that another program named needs no approval."""
    name = target.text.strip(UNKNOWN).lstrip("/")
    if name:
        if place(f"{state.home}/{name}", state) in ("home_config", "secret"):
            runner.report("system_config", f"writes to {name} in a folder that is only known at run time", site)
    elif not target.origin and not state.remote and not state.container:
        runner.report("unknown_command", "which file it writes to is only known at run time", site)


def prints_nothing(words: list[str]) -> bool:
    """True for a command that only serves to empty the file it is redirected to."""
    return not words or words in ([":"], ["true"], ["cat", "/dev/null"], ["echo", "-n"], ["printf", ""])


def judge_emptied(
    runner: Runner, targets: list[tuple[Redirection, ExpandedWord]], state: ShellState, site: CommandLocation
) -> None:
    """Report a redirection that empties a file which this line did not write, or whose name suggests data."""
    for redirection, target in targets:
        if redirection.operator not in (">", ">|", "&>") or redirection.descriptor not in ("", "1", "&"):
            continue
        path = resolve(target, state)
        foreign = place(path, state) == "outside" and path.startswith("/")
        if foreign or DATA_FILE.search(path):
            runner.report("recursive_delete", "discards the contents of a file", site, paths=(path,))


ALL_OPERANDS = name_set(
    "tee touch truncate rm unlink shred sponge mkdir rmdir mktemp chattr nano vi vim nvim emacs ed ex srm wipe"
)
COPIES_INPUT = name_set("tee sponge dd")
ON_LINKS = name_set("rm unlink rmdir mv ln srm")
"""Programs that remove or replace a link, not the file that it leads to."""
INTO_LAST = name_set("cp mv install ln rsync scp gcp gmv ditto")


def written_paths(call: CommandCall) -> list[tuple[str, ExpandedWord]]:
    """The resolved paths that a command writes to, each with the word that named it."""
    if call.program not in ON_LINKS:
        return [(reached(each, call.state), each) for each in targets(call) if each.text]
    operands = call.arguments.operands
    # A link to a folder as the last operand means the folder.
    into = operands[-1] if operands and call.program in ("mv", "ln") and len(operands) > 1 else None
    keeps = call.arguments.has("-n", "-T", "--no-dereference", "--no-target-directory")
    return [
        (
            reached(each, call.state)
            if each is into and not keeps and leads_to_folder(each, call.state)
            else resolve(each, call.state),
            each,
        )
        for each in targets(call)
        if each.text
    ]


def leads_to_folder(word: ExpandedWord, state: ShellState) -> bool:
    path = written_path(word, state)
    return path in state.links or (state.view is not None and state.view.is_folder(path))


def targets(call: CommandCall) -> Iterable[ExpandedWord]:
    program, words = call.program, call.words
    if program in ("mkdir", "rmdir"):
        # An empty folder runs nothing; what is put into it is judged then.
        return [
            each for each in call.arguments.operands if place(resolve(each, call.state), call.state) != "home_config"
        ]
    if program in ALL_OPERANDS:
        if program in ("rm", "rmdir", "mkdir", "touch") and not call.arguments.operands:
            return []
        return [each for each in call.arguments.operands if not re.match(r"[:+]", each.text)]
    if program in INTO_LAST:
        return into_last(call)
    if program == "dd":
        outputs = [word.with_text(word.text[3:]) for word in words if word.text.startswith("of=")]
        return [each.with_text(re.sub(r"^~(?=/)", call.state.home, each.text)) for each in outputs]
    if program in ("sed", "gsed") and call.arguments.has("-i", "--in-place"):
        return (
            call.arguments.operands
            if call.arguments.has("-e", "-f", "--expression", "--file")
            else call.arguments.operands[1:]
        )
    if program in ("perl", "ruby") and re.search(r"(?:^| )-\w*i", " ".join(word.text for word in words[:4])):
        return call.arguments.operands
    if program == "curl":
        return call.arguments.values("-o", "--output", "--output-dir", "-c", "--cookie-jar", "-D", "--dump-header")
    if program == "wget":
        folder = call.arguments.value("-P", "--directory-prefix")
        saved = inside_of(folder, call.arguments.operands, call) if folder is not None else []
        return saved + call.arguments.values(
            "-O", "--output-document", "-P", "--directory-prefix", "-o", "--output-file"
        )
    if program in ("tar", "bsdtar"):
        extracts = any(re.match(r"-?[a-zA-Z]*x", word.text) for word in words[:1]) or call.arguments.has(
            "-x", "--extract", "--get"
        )
        return call.arguments.values("-C", "--directory") if extracts else archive(call)
    if program == "unzip":
        return [words[i + 1] for i, word in enumerate(words[:-1]) if word.text == "-d"]
    if program in ("sort", "gcc", "cc", "gpg", "openssl"):
        return call.arguments.values("-o", "--output", "-out")
    if program in OWN_PROGRAMS:
        return call.arguments.values("-o", "--output")
    if program == "patch":
        return [each for each in call.arguments.operands[:1] if each.text.startswith("/")]
    if (
        program in ("git",)
        and len(words) > 1
        and words[0].text == "config"
        and "--system" in [word.text for word in words]
    ):
        return [ExpandedWord("/etc/gitconfig")]
    return []


def archive(call: CommandCall) -> list[ExpandedWord]:
    value = call.arguments.value("-f", "--file")
    return [value] if value is not None else []


def into_last(call: CommandCall) -> list[ExpandedWord]:
    arguments = call.arguments
    if call.program == "rsync" and arguments.has("-n", "--dry-run"):
        return []
    directory = arguments.value("-t", "--target-directory")
    operands = arguments.operands
    if call.program == "install" and arguments.has("-d", "--directory"):
        return operands
    moved = operands[:-1] if call.program == "mv" and directory is None else operands if call.program == "mv" else []
    if directory is not None:
        return [directory, *inside_of(directory, operands, call), *moved]
    if len(operands) < 2:
        return []
    last = operands[-1]
    remote = re.match(r"[\w.@-]+:", last.text)
    # An absolute path on another host is judged like a local one.
    target = last.with_text(last.text[remote.end() :]) if remote else last
    if remote:
        return [target, *moved] if target.text.startswith("/") else moved
    return [target, *inside_of(target, operands[:-1], call), *moved]


def inside_of(directory: ExpandedWord, sources: list[ExpandedWord], call: CommandCall) -> list[ExpandedWord]:
    """What copies are named if the target is a directory, as far as they are protected: `cp .bashrc ~/`."""
    names = (each.text.rstrip("/").rpartition("/")[2] for each in sources[:MAX_WRITTEN])
    inside = (directory.with_text(f"{directory.text.rstrip('/')}/{name.rpartition(':')[2]}") for name in names if name)
    return [each for each in inside if is_protected(resolve(each, call.state), call.state)]
