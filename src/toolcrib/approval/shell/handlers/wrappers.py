"""Unwraps commands that run other commands: `sudo`, `env`, `xargs`, `find` and the like."""

from __future__ import annotations

import re
from bisect import bisect

import msgspec

from toolcrib.approval.shell.assignments import judge_environment
from toolcrib.approval.shell.expansion import ASSIGNMENT
from toolcrib.approval.shell.handlers.interpreters import report_foreign
from toolcrib.approval.shell.model import ANYTHING, UNKNOWN, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import Arguments, parse_arguments
from toolcrib.approval.shell.parser import split_words
from toolcrib.approval.shell.paths import place, resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.rules.delete import is_find_from_root
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.script_code import BARE_SHELL
from toolcrib.approval.shell.secret_files import finds_secrets, may_name_secret, secret_below
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import LiteralText, WordPart

ANY_ASSIGNMENT = re.compile(r"[^=\s-][^=\s]*=")
"""`env` and `sudo` accept any name, including those that bash uses to export functions."""
MAX_INPUTS = 16


class Wrapper(msgspec.Struct, frozen=True):
    """How a wrapper reads its own arguments before the command that it runs."""

    values: frozenset[str] = frozenset()
    operands: int = 0
    script: tuple[str, ...] = ()
    """Options whose value is a command line."""
    joined: bool = False
    """True when the words are joined and read again by a shell."""


def wrapper(values: str = "", operands: int = 0, *, script: str = "", joined: bool = False) -> Wrapper:
    names = tuple(script.split())
    return Wrapper(frozenset(values.split()) | frozenset(names), operands, names, joined)


WRAPPERS: dict[str, Wrapper] = {
    "sudo": wrapper(
        "-u -g -p -h -C -r -t -T -U -D -R --user --group --prompt --host --close-from --role "
        "--type --other-user --chdir --chroot --command-timeout",
    ),
    "doas": wrapper("-u -C -a"),
    "run0": wrapper("-u -g -D --user --group --chdir --setenv --property --slice --nice --unit"),
    "pkexec": wrapper("--user"),
    "gosu": wrapper(operands=1),
    "su-exec": wrapper(operands=1),
    "setpriv": wrapper(
        "--reuid --regid --groups --ambient-caps --bounding-set --inh-caps --securebits --selinux-label"
    ),
    "runuser": wrapper("-u --user -g --group -G -s --shell", script="-c --command --session-command"),
    "sg": wrapper(operands=1, script="-c"),
    # Reserved words do not run after a wrapper; the author means the command after them.
    **dict.fromkeys(("coproc", "!", "then", "do", "else", "{"), wrapper()),
    "nohup": wrapper(),
    "setsid": wrapper(),
    "disown": wrapper(),
    "time": wrapper("-f -o --format --output"),
    "timeout": wrapper("-s -k --signal --kill-after", operands=1),
    "gtimeout": wrapper("-s -k --signal --kill-after", operands=1),
    "timelimit": wrapper("-t -T -s -S"),
    "nice": wrapper("-n --adjustment"),
    "ionice": wrapper("-c -n --class --classdata"),
    "chrt": wrapper("-T -P -D", operands=1),
    "taskset": wrapper(operands=1),
    "numactl": wrapper("-i -m -N -C -p --interleave --membind --cpunodebind --physcpubind --preferred"),
    "stdbuf": wrapper("-i -o -e --input --output --error"),
    "unbuffer": wrapper(),
    "rlwrap": wrapper("-a -f -H -s"),
    "chroot": wrapper("--userspec --groups", operands=1),
    "unshare": wrapper("--map-user --map-group --root --wd -R -w -S -G --setuid --setgid --propagation"),
    "nsenter": wrapper("-t --target -S -G --setuid --setgid --root --wd"),
    "fakeroot": wrapper("-l -s -i -u_ -b"),
    "fakechroot": wrapper(),
    "firejail": wrapper(),
    "proot": wrapper("-r -b -w -q -R -S"),
    "setarch": wrapper(operands=1),
    "linux32": wrapper(),
    "linux64": wrapper(),
    "strace": wrapper("-e -o -p -s -u -E -a -P -I -O -S -X -b"),
    "ltrace": wrapper("-e -o -p -s -u -a -n -l -x"),
    "valgrind": wrapper(),
    "perf": wrapper("-e -o -F -c", operands=1),
    "catchsegv": wrapper(),
    "script": wrapper("-E -I -O -B -T -o", script="-c --command"),
    "watch": wrapper("-n --interval -q --equexit", joined=True),
    "systemd-run": wrapper(
        "-p -u -E -M -H --unit --property --slice --uid --gid --nice --working-directory --setenv "
        "--machine --host --description --on-active --on-calendar "
        "--on-boot --on-startup --on-unit-active --timer-property --service-type --path-property --socket-property"
    ),
    "systemd-inhibit": wrapper("--what --who --why --mode"),
    "systemd-cat": wrapper("-t -p --identifier --priority"),
    "dbus-run-session": wrapper("--config-file --dbus-daemon"),
    "dbus-launch": wrapper(),
    "xvfb-run": wrapper(
        "-n -e -f -s -p -w --server-num --error-file --auth-file --server-args --xauth-protocol --wait"
    ),
    "caffeinate": wrapper("-t -w"),
    "busybox": wrapper(),
    "toybox": wrapper(),
    "flock": wrapper("-w -E --wait --timeout --conflict-exit-code", operands=1, script="-c --command"),
    "chpst": wrapper("-u -U -b -e -/ -n -l -L -m -d -o -p -f -c"),
    "prlimit": wrapper(),
    "cpulimit": wrapper("-l -p -e -c"),
    "env": wrapper("-u -C --unset --chdir --argv0 -a"),
    "npx": wrapper("-p --package -w --workspace --node-arg", script="-c --call"),
    "bunx": wrapper(),
    "pnpx": wrapper(),
    "uvx": wrapper("--from --with -p --python"),
    "dotenv": wrapper("-f -e --file"),
    "aws-vault": wrapper("-d --duration", operands=2),
    "chamber": wrapper(operands=2),
    "entr": wrapper(script="-s"),
    "daemonize": wrapper("-a -c -e -E -o -p -l -u"),
    "start-stop-daemon": wrapper("-n -p -u -c --name --pidfile --user --chuid --startas -a -d --chdir"),
    "chronic": wrapper(),
    "ssh-agent": wrapper("-a -t -E -P -O"),
    "aa-exec": wrapper("-p -n --profile --namespace"),
    "choom": wrapper("-n -p --adjust --pid"),
    "logsave": wrapper(operands=1),
    "setlock": wrapper(operands=1),
    "multitime": wrapper("-n -s -I -i -o -r"),
    "torify": wrapper(),
    "grc": wrapper("-c -o -e"),
    "pexec": wrapper("-n -o -e -u -i"),
    "distcc": wrapper(),
    "ccache": wrapper(),
    "sccache": wrapper(),
    "cabal": wrapper(operands=1),
    "stack": wrapper(operands=1),
    "ts": wrapper(),
    "softlimit": wrapper("-m -d -s -l -a -o -p -f -c -r -t"),
    "srun": wrapper("-n -N -p -t -c -J -A --ntasks --nodes --partition --time"),
    "mpirun": wrapper("-n -np -c --host -H --hostfile"),
    "mpiexec": wrapper("-n -np -c --host -H --hostfile"),
    "pdsh": wrapper("-w -x -g -l -t -u -f -R -X", joined=True),
    "clush": wrapper("-w -x -g -X -l -t -u -f -o", joined=True),
    "pssh": wrapper("-h -H -l -p -o -e -t -O -x --hosts --host --user --par --timeout --options", joined=True),
    "parallel-ssh": wrapper("-h -H -l -p -o -e -t -O -x --hosts --host --user --par --timeout", joined=True),
    "dsh": wrapper("-m -g -f -r -o", joined=True),
    "sbatch": wrapper("-n -N -p -t -c -J -A -o -e", script="--wrap"),
    "nodemon": wrapper("--watch -w --ext -e --ignore -i -d --delay", script="-x --exec"),
    "watchexec": wrapper("-w -e -f -i --watch --exts --filter --ignore"),
    "hyperfine": wrapper(
        "-w -r -m -M --warmup --runs --export-json --export-markdown",
        joined=True,
        script="-p -c -s --prepare --cleanup --setup",
    ),
    "parallel": wrapper(
        "-j --jobs -n -N -L -S --sshlogin -a --arg-file -I --colsep --delimiter -d --timeout "
        "--results --joblog --max-args --max-procs -P"
    ),
    "apptainer": wrapper("-B --bind --env -H --home -W --workdir --pwd", operands=2),
    "singularity": wrapper("-B --bind --env -H --home -W --workdir --pwd", operands=2),
    "torsocks": wrapper(),
    "proxychains4": wrapper("-f"),
    "proxychains": wrapper("-f"),
    "sshpass": wrapper("-p -f -d -P"),
    "faketime": wrapper("-f", operands=1),
    "eatmydata": wrapper(),
    "bwrap": wrapper(),
}

RUNNER_VALUES = name_set(
    "-n -p --name --prefix --with --python --env-file -c --call --package --from --spec --pip-args --index-url"
)
PACKAGE_VERSION = re.compile(r"(?<=\w)(?:\[[^\]]*\])?(?:@|[=<>~!]=).*$|(?<=\w)\[[^\]]*\]$")
RUNNERS: dict[str, re.Pattern[str]] = {
    "poetry": re.compile(r"run$"),
    "pipenv": re.compile(r"run$"),
    "uv": re.compile(r"run$|tool$"),
    "pipx": re.compile(r"run$"),
    "hatch": re.compile(r"run$"),
    "pdm": re.compile(r"run$"),
    "rye": re.compile(r"run$"),
    "bundle": re.compile(r"exec$"),
    "conda": re.compile(r"run$"),
    "mamba": re.compile(r"run$"),
    "micromamba": re.compile(r"run$"),
    "doppler": re.compile(r"run$"),
    "op": re.compile(r"run$"),
    "mise": re.compile(r"exec$|x$"),
    "asdf": re.compile(r"exec$"),
    "pyenv": re.compile(r"exec$"),
    "rbenv": re.compile(r"exec$"),
    "pnpm": re.compile(r"exec$|dlx$"),
    "yarn": re.compile(r"exec$|dlx$"),
    "npm": re.compile(r"exec$|x$"),
    "rustup": re.compile(r"run$"),
    "heroku": re.compile(r"run$"),
    "direnv": re.compile(r"exec$"),
}


def unwrap(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the command inside a wrapper."""
    shape = WRAPPERS[call.program]
    arguments = parse_arguments(call.words, shape.values, stop_early=True)
    state = call.state
    if call.program == "chroot" and arguments.operands:
        # The new root hides the real one: paths inside are relative to that directory.
        state = state.copy()
        state.mounts, state.cwd, state.cwd_known = (("/", resolve(arguments.operands[0], state)),), "/", True
    for name in ("-D", "-C", "--chdir", "--working-directory"):
        directory = arguments.value(name)
        if directory is not None and name in shape.values and call.program in ("sudo", "env", "run0", "systemd-run"):
            state = state.copy()
            state.cwd, state.cwd_known = resolve(directory, state), directory.known
    for value in arguments.values(*shape.script) if shape.script else []:
        runner.run_text(value.text, state, call.stdin, site)
    if call.program == "env":
        split = env_split(call.words)
        if split is not None:
            return run_assigned(runner, call, shape, split, state, site)
    words = arguments.operands
    words = words[shape.operands :]
    if call.program == "start-stop-daemon":
        words = [word for word in words if word.text != "--"]
    if call.program == "env" and len(words) > 1 and words[0].text == UNKNOWN and words[0].origin & Origin.PRIVATE:
        # `env $(cat .env | xargs) program`: the unknown words are assignments from a file.
        words = words[1:]
    return run_assigned(runner, call, shape, words, state, site)


def run_assigned(
    runner: Runner,
    call: CommandCall,
    shape: Wrapper,
    words: list[ExpandedWord],
    state: ShellState,
    site: CommandLocation,
) -> StreamData | None:
    """Judge a command with the variables that a wrapper sets for it."""
    # Only some wrappers accept assignments; after the others, the author means the same by them.
    assigned: dict[str, list[ExpandedWord]] = {}
    pattern = ANY_ASSIGNMENT if call.program in ("env", "sudo") else ASSIGNMENT
    while words and pattern.match(words[0].text):
        name, _, value = words[0].text.partition("=")
        assigned[name] = [words[0].with_text(value)]
        words = words[1:]
    if not assigned:
        return run_wrapped(runner, call, shape, words, state, site)
    judge_environment(runner, assigned, state, site)
    before, state.variables = state.variables, {**state.variables, **assigned}
    try:
        return run_wrapped(runner, call, shape, words, state, site)
    finally:
        state.variables = before


def run_wrapped(
    runner: Runner,
    call: CommandCall,
    shape: Wrapper,
    words: list[ExpandedWord],
    state: ShellState,
    site: CommandLocation,
) -> StreamData | None:
    if words and words[0].text == "--":
        words = words[1:]
    if shape.operands and shape.script and words and words[0].text in shape.script and len(words) > 1:
        if call.program == "sg" and BARE_SHELL.match(words[1].text):
            runner.report("system_config", "opens a shell as root or another user", site)
        return runner.run_text(words[1].text, state, call.stdin, site)
    if not words and call.program == "parallel" and call.stdin is not None:
        return run_lines(runner, call, site)
    if not words:
        return None if call.program in ("sudo", "doas", "env", "time", "ssh-agent") else ANYTHING
    if shape.joined or call.program == "parallel":
        return run_joined(runner, words, call, site)
    if call.program == "uvx":
        words = package_program(words)
    return runner.invoke(words, state, call.stdin, site)


def run_lines(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge what `parallel` without a command runs: every line that it reads."""
    if call.stdin is not None and call.stdin.text is not None:
        return runner.run_text(call.stdin.text, call.state.copy(), None, site)
    report_foreign(runner, call.stdin or ANYTHING, site)
    return ANYTHING


def run_joined(runner: Runner, words: list[ExpandedWord], call: CommandCall, site: CommandLocation) -> StreamData:
    if call.program == "parallel":
        texts = [word.text for word in words]
        if any(word.text in ("--pipe", "--pipepart", "--pipe-part", "--spreadstdin") for word in call.words):
            # Each command gets a part of the input; what is in a file is nobody's to see.
            data = call.stdin if call.stdin is not None and call.stdin.text is not None else ANYTHING
            return runner.run_text(" ".join(texts), call.state, data, site)
        inputs = next((at for at, text in enumerate(texts) if text in (":::", "::::", ":::+")), len(texts))
        given = (
            [field.text for field in words[inputs + 1 :]]
            if texts[inputs : inputs + 1] == [":::"]
            else standard_input_lines(call)
        )
        template = " ".join(texts[:inputs])
        if not template:
            for value in first_of(given):
                runner.run_text(value, call.state, None, site)
            return ANYTHING
        for value in first_of(given):
            marked = re.search(r"\{[.\d/]*\}", template)
            line = value.join(re.split(r"\{[.\d/]*\}", template)) if marked else f"{template} {value}"
            runner.run_text(line, call.state, None, site)
        return ANYTHING
    for text in (
        [word.text for word in words] if call.program == "hyperfine" else [" ".join(word.text for word in words)]
    ):
        runner.run_text(text, call.state, call.stdin, site)
    return ANYTHING


def first_of(given: list[str]) -> list[str]:
    """The values that a command is judged with, one by one; UNKNOWN replaces the rest of a long list."""
    return [*given[:MAX_INPUTS], UNKNOWN] if len(given) > MAX_INPUTS else given or [UNKNOWN]


def standard_input_lines(call: CommandCall) -> list[str]:
    text = call.stdin.text if call.stdin is not None else None
    return text.splitlines() if text else []


def env_split(words: list[ExpandedWord]) -> list[ExpandedWord] | None:
    """The words of `env -S 'a b c'`; None without the option."""
    for number, word in enumerate(words):
        match = re.match(r"-[iv0]*S(.*)|--split-string(?:=(.*))?$", word.text, re.DOTALL)
        if match:
            value = match.group(1) or match.group(2)
            rest = words[number + 1 :]
            if not value:
                value, rest = (rest[0].text if rest else ""), rest[1:]
            split = split_words(value)
            if split is None:
                return [ExpandedWord(UNKNOWN)]
            return [*(ExpandedWord("".join(map(part_text, each.parts))) for each in split), *rest]
        if not word.text.startswith("-") and not ASSIGNMENT.match(word.text):
            return None
    return None


def part_text(part: WordPart) -> str:
    return part.text if isinstance(part, LiteralText) else UNKNOWN


def run_project_command(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge what `poetry run`, `bundle exec` and the like start."""
    operands = parse_arguments(
        call.words, frozenset({"-n", "-p", "--env-file", "--project", "--config", "-c", "--with"}), stop_early=True
    ).operands
    texts = [word.text for word in call.words]
    if "explore" in texts[:2] and "--" in texts:
        return runner.invoke(call.words[texts.index("--") + 1 :] or [ExpandedWord("sh")], call.state, call.stdin, site)
    if not operands or not RUNNERS[call.program].match(operands[0].text):
        return None
    if operands[0].text == "tool":
        operands = operands[1:]
        if not operands or operands[0].text != "run":
            return None
    inner = parse_arguments(
        operands[1:],
        RUNNER_VALUES,
        stop_early=True,
    )
    script = inner.value("-c", "--call") if call.program == "npm" else None
    if script is not None:
        return runner.run_text(script.text, call.state, call.stdin, site)
    words = inner.operands[1:] if call.program in ("rustup", "direnv") else inner.operands
    if len(words) == 1 and " " in words[0].text:
        return runner.run_text(words[0].text, call.state, call.stdin, site)
    return runner.invoke(package_program(words), call.state, call.stdin, site) if words else None


def package_program(words: list[ExpandedWord]) -> list[ExpandedWord]:
    """The words with the program's name alone: `uvx` and `pipx run` also take a version (`name@1.2`, `name==1.2`)."""
    return [words[0].with_text(PACKAGE_VERSION.sub("", words[0].text)), *words[1:]]


def substitute_user(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge `su -c 'command'` and `runuser bob -c 'command'`."""
    arguments = call.arguments
    script = arguments.value("-c", "--command", "--session-command")
    if script is None:
        # `runuser -u bob -- command` takes words, as sudo does.
        return unwrap(runner, call, site) if call.program == "runuser" and arguments.has("-u", "--user") else None
    if BARE_SHELL.match(script.text):
        runner.report("system_config", "opens a shell as root or another user", site)
    return runner.run_text(script.text, call.state, call.stdin, site)


MAX_WORDS = 256


def xargs(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge what xargs runs, with the words that it reads if they are known."""
    values = name_set(
        "-a -d -E -e_ -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines "
        "--max-chars --replace_ --process-slot-var"
    )
    arguments = parse_arguments(call.words, values, stop_early=True)
    words = arguments.operands
    if not words:
        return call.stdin or ANYTHING
    listed = arguments.value("-a", "--arg-file")
    stdin = call.stdin if listed is None else call.state.written(resolve(listed, call.state), listed.text)
    text = stdin.text if stdin is not None else None
    origin = stdin.origin if stdin is not None else Origin.PROGRAM
    inputs = [ExpandedWord(part, origin=origin) for part in input_parts(text, arguments)]
    replace = arguments.value("-I")
    state = call.state.copy()
    state.many = text is None
    if origin & Origin.ENDLESS and arguments.has("-P", "--max-procs"):
        runner.report("fork_bomb", "starts processes endlessly", site)
    marker = replace.text if replace is not None else "{}" if arguments.has("-i", "--replace") else ""
    if marker and any(marker in word.text for word in words):
        for line in first_of(
            [line.strip() for line in text.split(separator_of(arguments) or "\n") if line.strip()] if text else []
        ):
            replaced = [
                ExpandedWord(word.text.replace(marker, line), word.glob, word.origin | origin)
                if marker in word.text
                else word
                for word in words
            ]
            runner.invoke(replaced, state, None, site)
        return ANYTHING
    inner = [*words, *inputs]
    printed = runner.invoke(inner, state, None, site)
    return StreamData(printed.text, printed.origin | origin)


def separator_of(arguments: Arguments) -> str:
    """What separates the words that xargs reads; empty for blanks."""
    if arguments.has("-0", "--null"):
        return "\0"
    given = arguments.value("-d", "--delimiter")
    return {"": "", "\\n": "\n", "\\0": "\0", "\\t": "\t"}.get(given.text, given.text[:1]) if given is not None else ""


def input_parts(text: str | None, arguments: Arguments) -> list[str]:
    if text is None:
        return [UNKNOWN]
    separator = separator_of(arguments)
    parts = (
        [part for part in text.split(separator) if part.strip()]
        if separator
        else [part.strip("'\"") for part in text.split()]
    )
    return [*parts[:MAX_WORDS], UNKNOWN] if len(parts) > MAX_WORDS else parts


def find(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the commands that find runs on what it finds."""
    words = call.words
    roots = []
    for word in words:
        if word.text.startswith(("-", "(", "!", "\\(")) and word.text not in ("-H", "-L", "-P"):
            break
        if not word.text.startswith("-"):
            roots.append(word)
    root = roots[0] if roots else ExpandedWord(".")
    from_the_top, secrets = is_find_from_root(call), finds_secrets(call, roots)
    ends = [at for at, word in enumerate(words) if word.text in (";", "+", "\\;")]
    for number, word in enumerate(words):
        if word.text not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        following = bisect(ends, number)
        end = ends[following] if following < len(ends) else len(words)
        found = ExpandedWord(root.text.rstrip("/") + "/" + UNKNOWN if root.text != "." else "./" + UNKNOWN)
        inner = [each.with_text(each.text.replace("{}", found.text)) for each in words[number + 1 : end]]
        if secrets:
            inner = [
                ExpandedWord(each.text, each.glob, Origin.SECRET | Origin.SECRET_FILE) if UNKNOWN in each.text else each
                for each in inner
            ]
        if not inner:
            continue
        if inner[0].text.rpartition("/")[2] in ("rm", "unlink", "shred", "srm") and from_the_top:
            reason = "deletes everything under the root or a system directory"
            runner.report("recursive_delete", reason, site, severity="block", paths=(resolve(root, call.state),))
        if from_the_top and changes_the_whole_machine(call, inner[0].text.rpartition("/")[2], root):
            reason = "changes permissions across the whole machine"
            runner.report("permissions", reason, site, severity="block", paths=("/",))
        if BARE_SHELL.match(" ".join(each.text for each in inner[:4])):
            runner.report("unknown_code", "opens a shell from inside find", site)
        state = call.state.copy()
        state.many = True
        runner.invoke(inner, state, None, site)
        if end == len(words):
            # Without its terminator find runs nothing; judging the rest once is enough.
            break
    return StreamData(None, Origin.PROGRAM | Origin.LISTED | Origin.SECRET_FILE) if secrets else None


def changes_the_whole_machine(call: CommandCall, program: str, root: ExpandedWord) -> bool:
    return (
        program in ("chmod", "chown", "chgrp") and call.known and place(resolve(root, call.state), call.state) == "root"
    )


def fd(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    texts = [word.text for word in call.words]
    origin = Origin.SECRET_FILE if fd_lists_secrets(call) else 0
    for flag in ("-x", "-X", "--exec", "--exec-batch"):
        if flag in texts:
            inner = call.words[texts.index(flag) + 1 :]
            inner = inner[: next((at for at, word in enumerate(inner) if word.text == ";"), len(inner))]
            inner = [word.with_text(re.sub(r"\{[./]*\}", UNKNOWN, word.text)) for word in inner]
            state = call.state.copy()
            state.many = True
            if inner:
                runner.invoke([*inner, ExpandedWord(UNKNOWN, origin=origin)], state, None, site)
    return StreamData(None, Origin.PROGRAM | Origin.LISTED | origin) if origin else None


def fd_lists_secrets(call: CommandCall) -> bool:
    """Whether `fd` may list secrets: it looks at hidden files, in a folder that holds them, for names like theirs."""
    arguments = parse_arguments(call.words, FD_VALUES)
    if not arguments.has("-H", "-u", "--hidden", "--unrestricted"):
        return False
    pattern, folders = arguments.operands[:1], [*arguments.operands[1:], *arguments.values("--search-path")]
    if not any(secret_below(folder, call.state) for folder in folders or [ExpandedWord(".")]):
        return False
    return not pattern or may_name_secret(f"*{pattern[0].text.strip('^$')}*")


FD_VALUES = name_set("-e --extension -t --type -d --max-depth -E --exclude -j --threads -c --color -S --size")


FINDERS: dict[str, Handler] = {
    "xargs": xargs,
    "gxargs": xargs,
    "find": find,
    "gfind": find,
    "fd": fd,
    "fdfind": fd,
}


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(WRAPPERS, unwrap),
    **dict.fromkeys(RUNNERS, run_project_command),
    **dict.fromkeys(("su", "runuser"), substitute_user),
    **FINDERS,
}
