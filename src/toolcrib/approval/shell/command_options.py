"""Judges what options and variables make a program run: commands, code, and files that are loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Origin, name_set
from toolcrib.approval.shell.option_table import (
    BY_PROGRAM,
    EXPECTED,
    GIT_SETTING,
    OFFICIAL_INDEX,
    OPTIONS_THAT_RUN,
    SETTINGS,
    WITH_SUBCOMMANDS,
    kind_of_variable,
)
from toolcrib.approval.shell.options import Arguments, parse_arguments
from toolcrib.approval.shell.paths import is_trusted_program, place, reached, resolve
from toolcrib.approval.shell.python_code import judge_python
from toolcrib.approval.shell.rules import BY_PROGRAM as RULES_BY_PROGRAM
from toolcrib.approval.shell.rules.base import SPECS, CommandCall
from toolcrib.approval.shell.rules.other_tools import TEXT_PROGRAMS
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.script_code import (
    BARE_SHELL,
    DELETES,
    STARTS_PROCESSES,
    judge_literal_commands,
    judge_script_code,
    literals_of,
    run_from_code,
)

INTERPRETERS = name_set(
    "sh bash dash zsh ksh mksh ash fish csh tcsh python python2 python3 pypy pypy3 perl ruby node nodejs "
    "deno bun php lua "
    "luajit tclsh wish expect osascript Rscript pwsh powershell source . eval"
)
INLINE = re.compile(r"-{1,2}(?:[A-Za-z]*[ceEr]|eval|command)")
SENDS_ON = re.compile(r"\b(?:curl|wget|nc|ncat|netcat|socat|telnet|ftp|sendmail)\b")
"""Programs that send over the network what they are given."""
STOPS_AT_OPERAND = INTERPRETERS | name_set(
    "ssh autossh mosh strace ltrace valgrind rlwrap systemd-run parallel java nix-shell xterm konsole "
    "kitty alacritty foot "
    "ipython ipython3 electron tsx ts-node script"
)
"""Programs whose options end at the first operand, because the rest belongs to something else."""
SINGLE_DASH = name_set(
    "go java openssl terraform tofu gcc g++ cc c++ clang clang++ ghc latexmk pdflatex latex xelatex ld"
)
KEYWORD = re.compile(r"(?:true|false|yes|no|on|off|[01]|auto|always|never|cat|none|null|-|:)?", re.IGNORECASE)
ARGUMENT = " the-argument"
"""Stands for the words that a program adds to a command."""
BOUND = re.compile(
    r"(?:execute(?:-silent|-multi)?|become|preview|reload|transform[\w-]*)(?:\(([^)]*)\)|:(.*))", re.DOTALL
)
NOT_LOADED = frozenset(("", "-", "/dev/stdin", "/dev/null", "NONE", "NORC", "DEFAULTS", "none"))
MAX_COMMAND = 8192
MAX_TEXT = 2_000


TEXTS = TEXT_PROGRAMS | name_set(
    "gh glab hub jira http https xh llm toolcrib pbcopy xclip xsel wl-copy clip.exe clip column jless fx "
    "gron miller mlr "
    "pr lolcat pv ts tee wc rofi dmenu zenity kdialog yad whiptail dialog osd_cat slack-cli ntfy "
    "telegram-send commitizen cz "
    "openssl base64 gpg md5sum qrencode gum playwright cypress"
)
"""Programs whose words and input are texts, not commands."""
HALF_KNOWN = name_set(
    "task go-task rake just gradle invoke inv fab gulp grunt ant nox tox toolbox flatpak-spawn distrobox nix lxc incus "
    "machinectl multipass wsl adb nomad teleport vagrant asdf mise"
)
"""Programs of which only a part is understood: the files that they read, or the command after `--`."""
CALLED_BY_WRAPPERS = name_set(
    "rm shred dd mkfs chmod chown sh bash zsh dash ksh curl wget nc ncat python python3 perl ruby node "
    "php tee cp mv find"
)
ESCAPED = re.compile(r"\s*(?:[:~.]?!|:!|\.pso|\.sy|shell\b|system\b|exec\b|sh\b|spawn\b|run\b)\s*(\S.*)")
SAYS_IT_RUNS = re.compile(
    r"-{1,2}(?:[\w-]*[-_])?(?:exec\w*|command|cmd|hook|script|pager|editor|shell|program|run|eval|filter"
    r"|plugin|load|require"
    r"|preload|init|extension|rc|conf|config|config-?file|custom-dir|hooks?-?dir)"
)
SETTINGS_FILE = re.compile(r"\.(?:conf|cfg|cnf|rc|cow|rules)$")
RUNS_NEXT = re.compile(r"-.+|(?:\w*[.:@])?(?:exec\w*|run(?:-\w+)?|shell|eval|do|call|sh|cmd|command|script)")
TEXT_OPTIONS = name_set("-m --message --title --body --description --text --comment --notes --subject --prompt")
MAX_LINES = 60


class Use(msgspec.Struct):
    """One use of an option, setting or variable: who runs what it names, and how to call it in a reason."""

    runner: Runner
    call: CommandCall
    site: CommandLocation
    name: str

    def report(self, reason: str) -> None:
        self.runner.report("unknown_code", f"{self.name} {reason}", self.site)


def judge_options(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Judge what the options of one command make its program run."""
    table = BY_PROGRAM.get(call.program)
    if call.program in WITH_SUBCOMMANDS:
        judge_subcommand_options(runner, call, site)
    elif table is not None:
        spec = SPECS.get(call.program)
        arguments = parse_arguments(
            call.words,
            spec.values.union(table) if spec is not None else frozenset(table),
            single_dash=call.program in SINGLE_DASH,
            stop_early=call.program in STOPS_AT_OPERAND,
        )
        judge_given(runner, call, site, table, arguments)


def judge_unlisted(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Judge a program that nothing is known about: it may run what its words or its input say."""
    if call.program in TEXTS:
        return
    use = Use(runner, call, site, call.program)
    words = call.words[:MAX_LINES]
    judge_address_to_run(use, words)
    for number, word in enumerate(words):
        text = word.text
        if text in CALLED_BY_WRAPPERS or ("/" in text and text.rpartition("/")[2] in CALLED_BY_WRAPPERS):
            if runner.suspects(words[number:], call.state, site):
                use.report(f"may run {text}")
            return
        before = words[number - 1].text if number else call.program
        if before not in TEXT_OPTIONS and text.partition("=")[0] not in TEXT_OPTIONS:
            judge_unknown_word(use, before, text)
    given = call.stdin.text if call.stdin is not None else None
    for line in (given or "").splitlines()[:MAX_LINES]:
        escaped = ESCAPED.match(line)
        if escaped is not None and runner.suspects(escaped.group(1), call.state, site):
            use.report("may run a command that is in its input")
        elif "(" in line or '"' in line:
            judge_literal_commands(runner, literals_of(line), call, site)


def judge_address_to_run(use: Use, words: list[ExpandedWord]) -> None:
    """Report code that a program which nothing is known about installs or runs from an address."""
    if use.call.program in OPENS_ADDRESSES:
        return
    address = next((each for word in words if (each := CODE_ADDRESS.search(word.text))), None)
    if address is None or (address.group().startswith("http") and OFFICIAL_INDEX.match(address.group())):
        return
    if any(INSTALLS.fullmatch(word.text.partition("=")[0]) for word in words):
        use.runner.report("remote_code", f"may install or run what is at {address.group()[:80]}", use.site)


CODE_ADDRESS = re.compile(
    r"(?:git\+(?:https?|ssh)|git::\w+|https?|git|ssh|hg\+https?)://(?!(?:localhost|127\.|0\.0\.0\.0|\[::1\])[:/]?)\S{3,}"
)
INSTALLS = re.compile(
    r"-{0,2}(?:install|add|run|exec|execute|apply|init|load|import|source|plugin|plugins|channels?|repo|remote-add|tap|fetch-and-run"
    r"|from-module|-from-module|extension|extensions|register|bootstrap|deploy|index|registry|repository)"
)
OPENS_ADDRESSES = name_set(
    "open xdg-open firefox chromium google-chrome lynx w3m links lighthouse k6 ab wrk hey siege vegeta locust "
    "hurl newman "
    "playwright cypress puppeteer yt-dlp youtube-dl ffmpeg mpv vlc svn hg jj http https xh gh glab feh timg"
)
"""Programs that show, test or copy what is at an address."""


def judge_unknown_word(use: Use, before: str, text: str) -> None:
    """Judge a word that may be a command, contain one, or name a file to run."""
    name, equals, value = text.partition("=") if text.startswith("-") else ("", "", text)
    option = name if equals else before
    if not value or len(value) > MAX_COMMAND:
        return
    if "(" in value and DELETES.search(value[:MAX_TEXT]):
        use.report("may delete a directory")
    if " " in value:
        if not equals and not RUNS_NEXT.fullmatch(before):
            # An operand of a program is a text as often as a command.
            return
        if SAYS_IT_RUNS.fullmatch(option) and BARE_SHELL.match(value):
            use.report("opens a shell")
        first = value.lstrip("!@:| ").split(None, 1)[:1]
        program = first[0].rpartition("/")[2] if first else ""
        if program in RULES_BY_PROGRAM or program in INTERPRETERS:
            if use.runner.suspects(value.lstrip("!@:| "), use.call.state, use.site):
                use.report(f"may run the command {value[:80]!r}")
        elif ("(" in value or '"' in value) and STARTS_PROCESSES.search(value):
            judge_literal_commands(use.runner, literals_of(value), use.call, use.site)
    elif value[0] in "/~" and (SAYS_IT_RUNS.fullmatch(option) or SETTINGS_FILE.search(value)):
        path = resolve(value.replace("~", use.call.state.home, 1) if value[0] == "~" else value, use.call.state)
        if place(path, use.call.state) == "temporary":
            use.report(f"may run {value}")


def judge_subcommand_options(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    spec, table = SPECS.get(call.program), BY_PROGRAM.get(call.program, {})
    single_dash = call.program in SINGLE_DASH
    values = spec.values.union(table) if spec is not None else frozenset(table)
    first = parse_arguments(call.words, values, single_dash=single_dash, stop_early=True)
    judge_given(runner, call, site, table, first)
    sub = BY_PROGRAM.get(f"{call.program} {first.operands[0].text}") if first.operands else None
    if sub is not None:
        rest = parse_arguments(first.operands[1:], frozenset(sub), single_dash=single_dash)
        judge_given(runner, call, site, sub, rest)


def judge_given(
    runner: Runner, call: CommandCall, site: CommandLocation, table: Mapping[str, str], arguments: Arguments
) -> None:
    for given, value in arguments.options:
        kind = table.get(given) or abbreviated(given, table)
        if kind and (value is not None or kind == "ask"):
            use = Use(runner, call, site, f"the option {given} of {call.program}")
            judge_value(use, kind, value or ExpandedWord(""))
    for start, kind in table.items():
        if start[-1] not in "=:!":
            continue
        for word in call.words:
            if word.text.startswith(start):
                use = Use(runner, call, site, f"{start} of {call.program}")
                judge_value(use, kind, word.with_text(word.text[len(start) :]))


def abbreviated(given: str, table: Mapping[str, str]) -> str:
    """The kind of a long option that is written shorter (`--to-comm`)."""
    if len(given) < 5 or not given.startswith("--"):
        return ""
    return next((kind for name, kind in table.items() if name.startswith(given)), "")


def judge_variable(runner: Runner, name: str, value: ExpandedWord, call: CommandCall, site: CommandLocation) -> None:
    """Judge the value of a variable that programs run, or load code from."""
    kind = kind_of_variable(name)
    if kind and value.known:
        judge_value(Use(runner, call, site, f"the variable {name}"), kind, value)


def judge_value(use: Use, kind: str, value: ExpandedWord) -> None:
    text = value.text
    if not value.known and value.origin & (Origin.NETWORK | Origin.DECODED):
        use.runner.report("remote_code", f"{use.name} runs what was fetched or decoded", use.site)
    elif len(text) > MAX_COMMAND:
        use.report("is too long to analyse")
    elif kind in EXPECTED:
        if not names_only(text, EXPECTED[kind]):
            use.report(f"runs {text[:80]!r}, which is not a usual {kind}")
        run_hidden(use, text)
    elif kind in ("command", "tool"):
        run_hidden(use, text, lenient=kind == "tool")
    elif kind == "program":
        run_from_code(use.runner, text, use.call, use.site)
    elif kind in ("exec=", "|command"):
        start = kind.removesuffix("command")
        if text.startswith((start, "!")):
            run_hidden(use, text.removeprefix(start).removeprefix("!").strip("'\""))
    elif kind == "file":
        load(use, text)
    elif kind == "engine":
        if "/" in text and not is_trusted(use, text.partition("=")[0], lenient="java" in use.name):
            use.report(f"loads the library {text}")
    elif kind == "search":
        for folder in text.split(":"):
            if folder and place(resolve(folder, use.call.state) + "/x", use.call.state) == "temporary":
                use.report(f"takes code from {folder}, where anybody may put it")
    elif kind == "written":
        if not text.endswith("_history"):
            judge_write(use.runner, reached(value, use.call.state), value, use.call.state, use.site)
    elif kind == "setting":
        judge_setting(use, text)
    elif kind == "binds":
        for bound in BOUND.finditer(text):
            run_hidden(use, bound.group(1) or bound.group(2))
    elif kind in OPTIONS_THAT_RUN:
        judge_more_options(use, kind, text)
    elif kind == "index":
        if not OFFICIAL_INDEX.match(text):
            use.runner.report("package", f"{use.name} makes packages come from {text[:80]}", use.site)
    elif kind == "git_key":
        key = text.lower()
        if GIT_SETTING.runs.match(key) or GIT_SETTING.loads.match(key) or not GIT_SETTING.harmless.match(key):
            use.report(f"sets {text}")
    else:
        judge_code(use, kind, text)


def names_only(text: str, expected: frozenset[str]) -> bool:
    """True for a command whose programs are all expected ones, also in a pipe that a shell is given."""
    inner = re.fullmatch(r"\s*(?:\S*/)?(?:ba|da)?sh -c (['\"])(.*)\1\s*", text, re.DOTALL)
    parts = (inner.group(2) if inner else text).split("|")
    programs = [part.split()[0].strip("'\"").rpartition("/")[2] for part in parts if part.split()]
    return all(program in expected for program in programs) and not SEVERAL.search(text)


SEVERAL = re.compile(r"[;&`]|\$\(|>(?!/dev/null)")


def judge_code(use: Use, kind: str, text: str) -> None:
    if kind == "ask":
        use.report("runs something that the command line does not show")
    elif kind == "python":
        judge_python(use.runner, text, use.call, use.site)
    elif kind == "ipython":
        for line in text.splitlines():
            if line.lstrip().startswith(("!", "%sx", "%system", "%%")):
                use.runner.run_text(line.lstrip().lstrip("!%sxytem "), use.call.state.copy(), None, use.site)
    elif kind == "vim":
        if re.search(r"!|system\(|\bso(?:urce)?\b|:?lua|:?py", text):
            use.report("runs commands when the editor starts")
    else:
        judge_script_code(use.runner, kind, text, use.call, use.site)


def judge_more_options(use: Use, kind: str, text: str) -> None:
    """Judge options inside one value, as in NODE_OPTIONS."""
    found = OPTIONS_THAT_RUN[kind].match(text)
    if found is None:
        return
    if found.groups():
        load(use, found.group(1))
    else:
        use.report("passes options that run commands or load code")


def judge_setting(use: Use, text: str) -> None:
    """Judge `key=value`, which ssh also accepts with a blank between them."""
    key, _, value = re.sub(r"^(\w+)\s+", r"\1=", text.strip(), count=1).partition("=")
    key = key.strip().lower()
    known = SETTINGS[use.call.program]
    named = Use(use.runner, use.call, use.site, f"the setting {key[:80].replace(UNKNOWN, '…')} of {use.call.program}")
    if known.runs.match(key):
        judge_setting_that_runs(named, key, value.strip().strip("'\""), use.name)
    elif known.loads.match(key):
        if use.call.program != "git":
            load(named, value.strip().strip("'\"") or text)
        elif value not in NOT_LOADED:
            named.report(f"makes git run or follow {value[:80].replace(UNKNOWN, '…')}")
    elif not known.harmless.match(key):
        named.report("is not one that is known to be harmless")


def judge_setting_that_runs(use: Use, key: str, value: str, option: str) -> None:
    if "--config-env" in option:
        use.report("runs what a variable says")
    elif use.call.program.startswith("apt") or (key.endswith("helper") and value.startswith("!")):
        use.report("runs a command with passwords or rights that others do not have")
    elif key.startswith("alias.") and use.call.program == "git":
        # The alias itself is judged where it is called.
        if value.startswith("!"):
            run_hidden(use, value)
    elif key.endswith(("helper", ".update")) and re.fullmatch(r"[\w-]*(?:\s.*)?", value):
        # A plain word is one of git's own helpers.
        return
    elif not KEYWORD.fullmatch(value):
        run_hidden(use, value)


def run_hidden(use: Use, text: str, *, lenient: bool = False) -> None:
    """Judge a command that is not visible as one; a file that only it runs needs approval."""
    text = text.strip().lstrip("!|-@ ")
    if not text:
        return
    words = text.split()
    program = words[0].strip("'\"")
    name = program.rpartition("/")[2]
    if UNKNOWN in program:
        use.report("runs a command that is only known at run time")
        return
    if "/" in program and not is_trusted(use, program, lenient=lenient):
        use.report(f"runs the file {program}")
    elif name in INTERPRETERS and not any(INLINE.fullmatch(word) for word in words[1:]):
        judge_script_of(use, name, words[1:], lenient=lenient)
    sender = SENDS_ON.search(text)
    if sender is not None:
        use.runner.report("exfiltration", f"{use.name} may pass data to {sender.group()}", use.site)
    use.runner.run_text(text + ARGUMENT, use.call.state.copy(), None, use.site)


def judge_script_of(use: Use, interpreter: str, words: list[str], *, lenient: bool) -> None:
    script = next((word for word in words if not word.startswith("-")), "")
    if not script:
        if not lenient:
            use.report(f"passes data to {interpreter}, which runs it")
    elif not is_trusted(use, script, lenient=lenient):
        use.report(f"runs the file {script}")


def is_trusted(use: Use, program: str, *, lenient: bool) -> bool:
    """Whether a program is one that no tool may change unseen; leniently, also one of the project's."""
    path = resolve(program.replace("~", use.call.state.home, 1) if program[:1] == "~" else program, use.call.state)
    if is_trusted_program(path, use.call.state):
        return True
    return lenient and place(path, use.call.state) != "temporary"


def load(use: Use, text: str) -> None:
    """Report a file that is loaded as code although it is neither the project's nor the system's."""
    if re.match(r"(?:data|https?):", text):
        use.runner.report("remote_code", f"{use.name} runs the code in {text[:80]}", use.site)
        return
    if text in NOT_LOADED or text[:1] == UNKNOWN or (text[0] not in "/~" and "/tmp/" not in text):
        return
    path = resolve(text.replace("~", use.call.state.home, 1) if text[0] == "~" else text, use.call.state)
    if place(path, use.call.state) in ("temporary", "outside") and not is_trusted_program(path, use.call.state):
        use.report(f"loads {path.replace(UNKNOWN, '…')}, which may run commands")
