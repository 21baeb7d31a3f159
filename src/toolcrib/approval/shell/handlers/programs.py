"""Programs with their own kind of code: git, editors, sed, archivers, downloaders."""

from __future__ import annotations

import re

from toolcrib.approval.shell.handlers.database_clients import at_home
from toolcrib.approval.shell.handlers.interpreters import code_from, report_foreign
from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.model import ANYTHING, UNKNOWN, ExpandedWord, Origin, StreamData
from toolcrib.approval.shell.options import option_values
from toolcrib.approval.shell.paths import is_private, is_secret, place, resolve
from toolcrib.approval.shell.planted_code import judge_planted
from toolcrib.approval.shell.python_code import judge_python
from toolcrib.approval.shell.rules import BY_PROGRAM
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.script_code import judge_script_code, run_from_code

MAX_SCRIPT = 4096
EMBEDDED = re.compile(r"[\s:]*(lua|python3?|py3?x?|ruby|perl|tcl)\b!?\s+(.*)", re.DOTALL)
PROGRAM_FILE = re.compile(r"/(?:usr/)?(?:local/)?s?bin/[\w.-]+$")
EXECUTING_SUBSTITUTION = re.compile(
    r"(?:\d+|/[^/]{0,200}/)?s([/|#,@!])(?:(?!\1).){0,400}\1(?:(?!\1).){0,400}\1[gip0-9]*e"
)


def git(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge git's aliases, and what it runs for each commit or module."""
    aliases: dict[str, str] = {}
    for setting in call.arguments.values("-c"):
        name, _, value = setting.text.partition("=")
        if name.startswith("alias."):
            aliases[name[6:]] = value
    operands = call.arguments.operands
    remember_git(runner, call, site)
    aliases.update({name[4:]: value for name, value in call.state.aliases.items() if name.startswith("git ")})
    if operands and operands[0].text in aliases:
        value = aliases[operands[0].text]
        if value.startswith("!"):
            runner.run_text(value[1:], call.state.copy(), None, site)
        else:
            runner.run_text("git " + value, call.state.copy(), None, site)
    texts = [word.text for word in call.words]
    for verb in ("foreach", "run"):
        if verb in texts and ("submodule" in texts or "bisect" in texts):
            inner = [
                word for word in call.words[texts.index(verb) + 1 :] if word.text not in ("--recursive", "--quiet")
            ]
            if verb == "foreach" and inner:
                runner.run_text(" ".join(word.text for word in inner), call.state.copy(), None, site)
            elif inner:
                runner.invoke(inner, call.state.copy(), None, site)
    return None


def remember_git(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Follow what git commands in one line prepare for each other: aliases, remotes, fresh clones."""
    words = [each.text for each in call.arguments.operands]
    texts = [word.text for word in call.words]
    if any("ext::" in word for word in words[1:4]):
        runner.report("remote_code", "runs a command as the transport of a repository", site)
    if words[:1] == ["config"] and len(texts) > 2 and texts[-2].startswith("alias."):
        call.state.aliases["git " + texts[-2][6:]] = texts[-1]
    elif words[:1] == ["clone"] and len(words) > 1:
        directory = words[2] if len(words) > 2 else words[1].rstrip("/").removesuffix(".git").rpartition("/")[2]
        call.state.fetched = (*call.state.fetched, resolve(directory, call.state))
        if not USUAL_HOST.search(words[1]):
            call.state.aliases["fetched " + resolve(directory, call.state)] = words[1]
    elif words[:2] in (["remote", "add"], ["remote", "set-url"]) and len(words) > 3:
        call.state.aliases["remote " + words[2]] = words[3]
    elif words[:1] == ["push"] and len(words) == 1 and any(name.startswith("remote ") for name in call.state.aliases):
        runner.report("exfiltration", "pushes the repository to a new address", site)
    elif words[:1] == ["push"] and len(words) > 1 and is_new_remote(words[1], call):
        runner.report("exfiltration", f"pushes the repository to the new address {words[1]}", site)


USUAL_HOST = re.compile(
    r"^(?!\w+://|[\w.-]+@)|//(?:[\w.-]+@)?(?:github|gitlab|bitbucket|codeberg)\.\w+/|@(?:github|gitlab|bitbucket)\.\w+:"
)


def is_new_remote(name: str, call: CommandCall) -> bool:
    unusual = re.match(r"[\w.-]+@[\w.-]+:", name) and not USUAL_HOST.search(name)
    return "remote " + name in call.state.aliases or bool(re.match(r"(?:https?|git|ssh)://", name) or unusual)


def framework_shell(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge code that is passed to a web framework's console."""
    texts = [word.text for word in call.words]
    for verb in ("runner", "r", "tinker", "--execute"):
        if verb in texts[:3] and texts.index(verb) + 1 < len(texts):
            judge_script_code(runner, "ruby", texts[texts.index(verb) + 1], call, site)
    return None


def sed(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge sed scripts that write files or run commands."""
    arguments = call.arguments
    scripts = arguments.values("-e", "--expression")
    for file in arguments.values("-f", "--file"):
        data = code_from(call, file)
        if data is not None and data.text is not None:
            scripts.append(ExpandedWord(data.text))
        elif data is not None:
            report_foreign(runner, data, site)
    if not scripts and not arguments.has("-f", "--file"):
        scripts = arguments.operands[:1]
    for script in scripts:
        text = script.text
        if len(text) > MAX_SCRIPT:
            runner.report("unknown_code", "runs a script that is too long to analyse", site)
            continue
        runner.spend(len(text) // 60)
        for target in re.findall(r"(?:^|[;{}/\d$!]|\n|\s)[wW]\s*(/[^\s;}]+|~[^\s;}]*|\.[^\s;}]*)", text):
            judge_write(runner, resolve(target, call.state), ExpandedWord(target), call.state, site)
        for source in re.findall(r"(?:^|[;{}/\d$!]|\n|\s)[rR]\s*(/[^\s;}]+|~[^\s;}]*)", text):
            if is_secret(resolve(at_home(source, call.state), call.state)):
                runner.report("credential", f"reads the secret {source}", site)
        for command in re.findall(r"(?:^|[;{}\d$!/])\s*e\s+([^\n]+)", text):
            runner.run_text(command, call.state.copy(), None, site)
        if EXECUTING_SUBSTITUTION.match(text):
            runner.report("unknown_code", "runs the text of a file as commands", site)
    return None


def editor(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge vim commands: shell escapes and writes."""
    commands = [word.text for word in call.arguments.values("-c", "--cmd")]
    commands += [word.text[1:] for word in call.words if word.text.startswith("+") and len(word.text) > 1]
    if call.stdin is not None and call.stdin.text is not None:
        commands += call.stdin.text.splitlines()[:200]
    for file in call.arguments.values("-S", "-s", "-u"):
        data = code_from(call, file)
        if data is not None and data.text is not None:
            commands += data.text.splitlines()[:200]
        elif data is not None:
            report_foreign(runner, data, site)
    for command in commands:
        if len(command) > MAX_SCRIPT:
            runner.report("unknown_code", "runs a script that is too long to analyse", site)
            continue
        runner.spend(1 + len(command) // 200)
        escape = re.search(
            r"(?:^|[:|%\s])(?:(?:r|read|w)\s*+)?!\s*(.+)|\bsystem\(\s*['\"](.+?)['\"]|:?terminal\s+(.+)", command
        )
        judge_embedded(runner, command, call, site)
        if SOURCED.search(command):
            runner.report("remote_code", "runs commands from an address", site)
        write = re.match(
            r":?\s*(?:%|\d+,[\d$]+)?(?:w|wq|write|saveas|sav|x|xit|up|update|e|ed|edit|new|vne?w|"
            r"sp|split|vs|vsp|vsplit|tabe|tabedit|tabnew|arg|args|r0)!?\s+([^!>\s|]\S*)",
            command,
        )
        if write:
            judge_write(
                runner,
                resolve(write.group(1).replace("~", call.state.home, 1), call.state),
                ExpandedWord(write.group(1)),
                call.state,
                site,
            )
        elif escape:
            run_from_code(runner, next(group for group in escape.groups() if group), call, site)
    return None


SOURCED = re.compile(r"\bso(?:urce)?!?\s+\w+://")


def judge_embedded(runner: Runner, command: str, call: CommandCall, site: CommandLocation) -> None:
    """Judge an editor command that is code: its own functions, or another language's."""
    code = EMBEDDED.match(command)
    if code is None:
        if "(" in command:
            judge_script_code(runner, "vim", command, call, site)
    elif code.group(1).startswith("py"):
        judge_python(runner, code.group(2), call, site)
    else:
        judge_script_code(runner, code.group(1), code.group(2), call, site)


def mail_reader(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the commands in a message that mail runs: `~!`, `~|` and `~<!`."""
    text = call.stdin.text if call.stdin is not None else None
    for command in re.findall(r"^~(?:!|\||<\s*!|:\s*!)\s*(.+)$", (text or "")[:20_000], re.MULTILINE):
        runner.run_text(command, call.state.copy(), None, site)
    return None


def download(_runner: Runner, call: CommandCall, _site: CommandLocation) -> StreamData | None:
    """Remember the files that curl and wget write: running one of them later is code from the network."""
    arguments = call.arguments
    targets = (
        arguments.values("-o", "--output") if call.program == "curl" else arguments.values("-O", "--output-document")
    )
    if call.program == "aria2c":
        targets = arguments.values("-o", "--out")
    addresses = [each for each in arguments.operands if each.text] + arguments.values("--url")
    network = StreamData(None, Origin.NETWORK)
    if any(target.text == "-" for target in targets):
        return network
    saves = call.program in ("wget", "aria2c") or arguments.has("-O", "--remote-name", "--remote-name-all")
    for target in targets:
        call.state.files[resolve(target, call.state)] = network
    if saves and not targets:
        for address in addresses:
            name = address.text.partition("?")[0].rstrip("/").rpartition("/")[2]
            directory = arguments.value("-P", "--directory-prefix", "--output-dir", "-d", "--dir")
            path = f"{directory.text}/{name}" if directory is not None and call.program != "curl" else name
            if name:
                call.state.files[resolve(path, call.state)] = network
    if arguments.has("--spider") or arguments.has("-I", "--head"):
        return StreamData(None)
    local = [each for each in addresses if re.match(r"(?:https?://)?(?:localhost|127\.|\[::1\]|0\.0\.0\.0)", each.text)]
    if targets and call.program != "curl":
        return ANYTHING
    return network if not local or len(local) < len(addresses) else StreamData(None, Origin.NETWORK)


def copy_data(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Copy what is known about a file to its copy."""
    operands = call.arguments.operands
    if len(operands) == 2:
        source = resolve(operands[0], call.state)
        data = call.state.files.get(source)
        program = source.rpartition("/")[2]
        if data is None and PROGRAM_FILE.match(source) and program in BY_PROGRAM:
            # The program is the same under its new name.
            data = StreamData(f'{source} "$@"')
        if data is None and is_private(source):
            data = StreamData(None, Origin.PRIVATE | Origin.FILE)
        if data is not None:
            call.state.files[resolve(operands[1], call.state)] = data
            judge_planted(runner, resolve(operands[1], call.state), data, call.state, site)
    if call.program == "ln" or call.arguments.has("-s", "-l", "--symbolic-link", "--link"):
        make_links(runner, call, site)
    elif call.state.links and len(operands) == 2:
        moved = call.state.links.get(resolve(operands[0], call.state))
        if moved is not None:
            call.state.links[resolve(operands[1], call.state)] = moved
    return None


def make_links(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Remember the links that a command makes, so that writing through one is judged by where it leads."""
    arguments, state = call.arguments, call.state
    folder = arguments.value("-t", "--target-directory")
    operands = arguments.operands
    sources = operands if folder is not None or len(operands) == 1 else operands[:-1]
    last = folder or (operands[-1] if len(operands) > 1 else ExpandedWord("."))
    path = resolve(last, state)
    inside = len(sources) > 1 or len(operands) == 1 or folder is not None or last.text.endswith("/")
    inside = inside or (state.view is not None and state.view.is_folder(path) and not state.view.is_link(path))
    is_symbolic = arguments.has("-s", "--symbolic", "--symbolic-link")
    for source in sources:
        link = f"{path}/{source.text.rstrip('/').rpartition('/')[2]}" if inside else path
        # A symbolic link is read relative to where it is.
        given = f"{link.rpartition('/')[0] or '.'}/{source.text}" if is_symbolic and source.text[:1] != "/" else source
        target = resolve(given, state)
        state.links[resolve(link, state)] = target
        kind = place(target, state)
        kind = place(f"{target}/file", state) if kind == "outside" else kind
        if kind in ("home_config", "secret") or (kind in ("home", "root") and is_symbolic):
            shown = target.replace(UNKNOWN, "…")
            runner.report("system_config", f"makes a link to {shown}, which is protected", site, paths=(target,))


def tee(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    for each in call.arguments.operands:
        if call.stdin is not None:
            judge_planted(runner, resolve(each, call.state), call.stdin, call.state, site)
            call.state.files[resolve(each, call.state)] = call.stdin
    return call.stdin


def network_shell(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge netcat and socat when they connect a program to the network."""
    for value in option_values(call.words, ("-e", "-c", "--exec", "--sh-exec")) if call.program != "socat" else []:
        runner.report("remote_code", "connects a program to the network", site)
        runner.run_text(value.text, call.state.copy(), None, site)
    if call.program == "socat" and any(
        re.match(r"(?:exec|system|shell):", word.text, re.IGNORECASE) for word in call.words
    ):
        runner.report("remote_code", "connects a program to the network", site)
    if call.stdin is not None and call.stdin.origin & Origin.SHELL:
        runner.report("remote_code", "connects a shell to the network", site)
    return None


def hook_manager(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge a command that is added to the hooks of a repository."""
    words = [each.text for each in call.arguments.operands]
    if words[:1] in (["add"], ["set"]) and len(words) > 2:
        runner.run_text(words[-1], call.state.copy(), None, site)
    return None


def splitter(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the command that split pipes each piece to."""
    for value in option_values(call.words, ("--filter",)):
        runner.run_text(value.text, call.state.copy(), call.stdin or StreamData(None, Origin.PROGRAM), site)
    return None


def macro_processor(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the commands that m4 runs while it expands macros."""
    inputs = [call.state.written(resolve(each, call.state)) for each in call.arguments.operands] or [call.stdin]
    for data in inputs:
        for code in re.findall(r"syscmd\(\s*[`\[]*([^'\])]+)", data.text[:20_000] if data and data.text else ""):
            runner.run_text(code, call.state.copy(), None, site)
    return None


HANDLERS: dict[str, Handler] = {
    "git": git,
    **dict.fromkeys(("rails", "artisan"), framework_shell),
    "sed": sed,
    "gsed": sed,
    **dict.fromkeys(("vim", "vi", "nvim", "ex", "ed", "red", "gvim", "view", "vimdiff", "rvim", "rview"), editor),
    **dict.fromkeys(("curl", "wget", "aria2c"), download),
    **dict.fromkeys(("cp", "mv", "install", "ln"), copy_data),
    **dict.fromkeys(("mail", "mailx", "s-nail"), mail_reader),
    **dict.fromkeys(("tee", "sponge"), tee),
    "split": splitter,
    "husky": hook_manager,
    "m4": macro_processor,
    **dict.fromkeys(("nc", "ncat", "netcat", "socat"), network_shell),
}
