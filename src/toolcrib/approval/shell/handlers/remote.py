"""Programs that run a command somewhere else: on another host, in a container, later."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import ANYTHING, UNKNOWN, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.paths import DATABASE_FILE, is_protected, place, resolve
from toolcrib.approval.shell.rules.base import SPECS, CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.state import ShellState
from toolcrib.core.own_commands import OWN_PROGRAMS, kind_of

DOCKER_RUN_VALUES = SPECS["docker"].values | name_set(
    "-p --publish -m --memory --add-host --cpuset-cpus --dns --expose --gpus --group-add -h "
    "--ip --ipc --link --log-driver --log-opt --mac-address "
    "--pull --shm-size --stop-signal --sysctl --tmpfs --ulimit --userns --uts --volumes-from "
    "--cidfile --cgroupns --runtime --annotation -a --attach"
)
KUBECTL_EXEC = ("exec", "run", "debug")


def secure_shell(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge what runs on the other host."""
    arguments = parse_arguments(call.words, SPECS["ssh"].values, stop_early=True)
    words = arguments.operands
    if len(words) < 2:
        if words and call.stdin is not None:
            run_piped(runner, call, site, words[0].text)
        return StreamData(None, Origin.PROGRAM | Origin.NETWORK)
    inner = remote_state(call, words[0].text)
    words = [words[0], *words[2:]] if words[1].text == "--" else words
    if len(words) < 2:
        return StreamData(None, Origin.PROGRAM | Origin.NETWORK)
    return without_origin(runner.run_text(" ".join(word.text for word in words[1:]), inner, call.stdin, site))


def remote_state(call: CommandCall, host: str) -> ShellState:
    state = call.state.copy()
    state.remote = host
    state.cwd, state.cwd_known = "", True
    return state


def without_origin(data: StreamData) -> StreamData:
    return StreamData(None, data.origin | Origin.NETWORK | Origin.PROGRAM)


def run_piped(runner: Runner, call: CommandCall, site: CommandLocation, host: str) -> None:
    """Judge a script on the standard input of a login shell."""
    stdin = call.stdin
    if stdin is None:
        return
    if stdin.text is not None:
        runner.run_text(stdin.text, remote_state(call, host), None, site)
    elif stdin.origin & (Origin.NETWORK | Origin.DECODED | Origin.PROGRAM):
        runner.report("remote_code", "runs data from elsewhere as code on another host", site)
    elif stdin.origin & Origin.FILE:
        runner.report("unknown_code", "runs the commands in a file on another host", site)


def container(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge what `docker run` and `docker exec` run, mapping mounts to host paths."""
    words = call.words
    outer = parse_arguments(words, SPECS["docker"].values, stop_early=True).operands
    if outer and outer[0].text in ("compose", "container"):
        outer = parse_arguments(outer[1:], SPECS["docker"].values, stop_early=True).operands
    if outer and outer[0].text == "cp" and any(OWN_PLACE.search(word.text) for word in outer[-1:]):
        runner.report("own_program", "would change files of a toolcrib that runs in a container", site)
    if not outer or outer[0].text not in ("run", "exec", "create"):
        return None
    arguments = parse_arguments(outer[1:], DOCKER_RUN_VALUES, stop_early=True)
    inner = arguments.operands[1:]
    ours = outer[0].text == "exec" and bool(inner) and inner[0].text.rpartition("/")[2] in OWN_PROGRAMS
    if ours and kind_of([word.text for word in inner[1:]]) not in ("reads", "authors"):
        runner.report("own_program", "would change a toolcrib that runs in a container", site)
    state = call.state.copy()
    state.container = True
    state.mounts = (*mounts(arguments.values("-v", "--volume"), call), *bind_mounts(arguments.values("--mount"), call))
    state.cwd, state.cwd_known = (arguments.value("-w", "--workdir") or ExpandedWord("/")).text, True
    if arguments.has("--privileged") or any(outside == "/" for _, outside in state.mounts):
        runner.report("container", "gives a container full access to the host", site)
    for value in arguments.values("-v", "--volume"):
        outside, _, options = value.text.partition(":")
        if is_protected(resolve(outside, call.state), call.state) and not options.endswith(":ro"):
            shown = outside.replace(UNKNOWN, "…")
            runner.report("system_config", f"lets a container change {shown}", site, paths=(shown,))
    entrypoint = arguments.value("--entrypoint")
    if entrypoint is not None:
        inner = [entrypoint, *inner]
    if not inner:
        return ANYTHING
    return runner.invoke(inner, state, call.stdin, site)


OWN_PLACE = re.compile(r"[^/]:.*/\.(?:toolcrib|hermes)(?:/|$)")


def mounts(values: list[ExpandedWord], call: CommandCall) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for value in values:
        outside, _, inside = value.text.partition(":")
        inside = inside.partition(":")[0]
        if inside and outside.startswith((".", "/", "~", UNKNOWN)):
            found.append((inside.rstrip("/") or "/", resolve(outside, call.state)))
    return found


def bind_mounts(values: list[ExpandedWord], call: CommandCall) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for value in values:
        options = dict(part.partition("=")[::2] for part in value.text.split(","))
        outside = options.get("source") or options.get("src") or ""
        inside = options.get("target") or options.get("dst") or options.get("destination") or ""
        if inside and outside.startswith("/"):
            found.append((inside, resolve(outside, call.state)))
    return found


def cluster(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge what `kubectl exec … -- command` runs."""
    texts = [word.text for word in call.words]
    if not any(verb in texts for verb in KUBECTL_EXEC) or "--" not in texts:
        return None
    inner = call.words[texts.index("--") + 1 :]
    state = call.state.copy()
    state.container = True
    return runner.invoke(inner, state, call.stdin, site) if inner else None


def bundled(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge `k3s kubectl …`, where one program contains another."""
    if call.words and call.words[0].text in ("kubectl", "crictl", "ctr", "helm"):
        inner = [word for word in call.words if word.text != "--"] if call.program == "minikube" else call.words
        return runner.invoke(inner, call.state, call.stdin, site)
    return None


def salt(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    texts = [word.text for word in call.words]
    if "cmd.run" in texts and texts.index("cmd.run") + 1 < len(texts):
        runner.run_text(texts[texts.index("cmd.run") + 1], call.state.copy(), None, site)
    return None


def after_dashes(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the command after `--`, as in `lxc exec c -- rm …`."""
    texts = [word.text for word in call.words]
    if "--" in texts and texts.index("--") + 1 < len(texts):
        state = call.state.copy()
        state.container = True
        return runner.invoke(call.words[texts.index("--") + 1 :], state, call.stdin, site)
    if call.program in ("adb", "multipass", "wsl", "machinectl") and len(call.words) > 1:
        start = next((at for at, text in enumerate(texts) if text in ("shell", "exec", "-e")), None)
        if start is not None:
            # The name of a machine comes before the command.
            skip = 2 if call.program in ("multipass", "machinectl") else 1
            rest = call.words[start + skip :]
            return (
                runner.run_text(" ".join(word.text for word in rest), call.state.copy(), None, site) if rest else None
            )
    return None


def script_option(names: tuple[str, ...]) -> Handler:
    """A handler for programs that take a command line in an option."""

    def handle(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
        spec = SPECS.get(call.program)
        values = frozenset(names) | (spec.values if spec is not None else frozenset())
        for value in parse_arguments(call.words, values).values(*names):
            runner.run_text(value.text, call.state.copy(), None, site)
        return None

    return handle


def nix(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge `nix develop -c command …`, which takes the rest of the line."""
    at = next((at for at, word in enumerate(call.words) if word.text in ("-c", "--command")), None)
    inner = call.words[at + 1 :] if at is not None else []
    return runner.invoke(inner, call.state.copy(), call.stdin, site) if inner else None


def aws(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the commands that `aws ssm send-command` runs on other machines."""
    if any(word.text == "send-command" for word in call.words):
        given = parse_arguments(call.words, frozenset({"--parameters"})).value("--parameters")
        found = re.search(r"commands\"?\s*[=:]\s*(.*)", given.text, re.DOTALL) if given is not None else None
        text = found.group(1) if found else ""
        for code in re.findall(r'"((?:[^"\\]|\\.)*)"', text) or [text]:
            runner.run_text(code.replace('\\"', '"'), remote_state(call, "aws"), None, site)
    return None


def file_transfer(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge the commands that lftp, sftp and ftp get from options, a batch file or standard input."""
    arguments = parse_arguments(call.words, SPECS["sftp"].values | {"-e"})
    texts = [value.text for value in arguments.values("-e", "-c")] if call.program == "lftp" else []
    if call.program == "tftp":
        texts.append(" ".join(word.text for word in call.words).partition("-c ")[2])
    batch = arguments.value("-b", "-f")
    data = call.state.written(resolve(batch, call.state)) if batch is not None and batch.text != "-" else call.stdin
    texts += [data.text] if data is not None and data.text else []
    for line in re.split(r"[;\n]|&&|\|\|", "\n".join(texts))[:400]:
        if re.match(r"\s*(?:glob\s+(?:-\w\s+)?)?-?@?(?:m?rm|rmdir|m?delete|mirror\s.*--delete)\b", line):
            runner.report("recursive_delete", "deletes files on another host", site)
        elif sends_folder(line, call):
            runner.report("exfiltration", "sends the home folder to another host", site)
        elif call.program != "sftp" and (sent := sent_in_bulk(line, call)):
            runner.report("exfiltration", sent, site)
        elif line.lstrip().startswith("!"):
            runner.run_text(line.lstrip()[1:], call.state.copy(), None, site)
    return None


def sends_folder(line: str, call: CommandCall) -> bool:
    if not re.match(r"\s*(?:mirror\s.*(?:-R|--reverse)|m?put\b)", line):
        return False
    paths = (
        resolve(word.replace("~", call.state.home, 1), call.state) for word in line.split()[1:8] if word[0] in "/~"
    )
    return any(place(path, call.state) in ("home", "root", "secret", "home_config") for path in paths)


def sent_in_bulk(line: str, call: CommandCall) -> str:
    """What a line of a program without a login of its own sends: a whole folder, or a database."""
    if any(re.search(r"localhost|127\.0\.0\.1|sftp://", word.text) for word in call.words[:6]):
        return ""
    if re.match(r"\s*(?:mirror\s.*(?:-R|--reverse)|mput\b)", line):
        return "sends a whole folder over the network"
    database = re.match(r"\s*put\b", line) and any(DATABASE_FILE.search(word) for word in line.split()[1:4])
    return "sends a database over the network" if database else ""


def ansible(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    module = call.arguments.value("-m", "--module-name")
    text = call.arguments.value("-a", "--args")
    if text is not None and (module is None or module.text.rpartition(".")[2] in ("shell", "command", "raw", "script")):
        runner.run_text(text.text, call.state.copy(), None, site)
        if module is not None and module.text.endswith("script"):
            runner.report("unknown_code", "runs a script on other hosts", site)
    elif text is not None and re.search(r"state=(?:absent|stopped|restarted)", text.text):
        runner.report("remote_code", "removes or stops something on other hosts", site)
    return None


def later(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge a command line that `at`, `batch` or `crontab -` reads from its input."""
    stdin = call.stdin
    if call.program != "crontab" and call.arguments.has("-f"):
        runner.report("unknown_code", "schedules the commands in a file", site)
    if stdin is None:
        return None
    if stdin.text is None:
        if stdin.origin & (Origin.NETWORK | Origin.PROGRAM | Origin.DECODED):
            runner.report("unknown_code", "schedules commands that are only known at run time", site)
        elif stdin.origin & Origin.FILE:
            runner.report("unknown_code", "schedules the commands in a file", site)
        return None
    text = stdin.text
    if re.search(
        r"^\s*(?:(?:\S+\s+){5}|@\w+\s+)?(?:\S*/)?(?:(?:ba|z|da)?sh\s+)?/(?:var/)?(?:tmp|dev/shm)/", text, re.MULTILINE
    ):
        runner.report("unknown_code", "schedules a file that anybody may change until then", site)
    if call.program == "crontab":
        text = "\n".join(re.sub(r"^\s*(?:@\w+|(?:\S+\s+){5})", "", line) for line in text.splitlines())
    runner.run_text(text, call.state.copy(), None, site)
    return None


TMUX_COMMANDS = name_set(
    "new new-session neww new-window splitw split-window send-keys send run-shell run respawn-pane "
    "respawnp respawn-window "
    "respawnw if-shell if pipe-pane pipep popup display-popup confirm-before confirm bind-key bind "
    "set-hook set-option set "
    "setw set-window-option source-file source command-prompt"
)
TMUX_RUNS = re.compile(r"\s*(?:run-shell|run|if-shell|if|pipe-pane|respawn-\w+|send-keys|send)\b")
SENDS_ON = re.compile(r"\b(?:curl|wget|nc|ncat|socat|telnet)\b")
TYPED = name_set("send-keys send stuff")
KEYS = name_set("Enter C-m KPEnter C-j ^M")
ANSWER = re.compile(r"(?i)(?:y|yes|a|always|s|session|o|once|p|permanent|ok|allow|approve|\d)(?:\\n|\\r|\^M)?")
"""What questions are answered with."""


def terminal(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData | None:
    """Judge what tmux and screen start or type."""
    values = SPECS[call.program].values
    typed = call.program == "screen" and any(word.text in ("stuff", "-X") for word in call.words)
    words = parse_arguments(call.words, values, stop_early=True).operands
    if typed:
        at = next((at for at, word in enumerate(call.words) if word.text in ("stuff", "exec", "-X")), 0)
        words = [word for word in call.words[at + 1 :] if word.text not in ("stuff", "exec", "screen")]
    if call.program == "tmux":
        verb = words[0].text if words else ""
        words = parse_arguments(words[1:], values, stop_early=True).operands if verb in TMUX_COMMANDS else []
        words = [word for word in words if word.text not in KEYS]
        typed = verb in TYPED
        if verb in ("pipe-pane", "pipep") and any(SENDS_ON.search(word.text) for word in words):
            runner.report("exfiltration", "sends what a terminal shows over the network", site)
        if verb in ("set-hook", "bind-key", "bind") and any(TMUX_RUNS.match(word.text) for word in words):
            runner.report("unknown_code", "makes the terminal run a command later", site)
        if not typed and len(words) > 1 and verb not in ("new", "new-session", "neww", "new-window", "splitw"):
            # Each may be a command of the shell, or one of tmux with a command of the shell in it.
            for word in words:
                if " " in word.text:
                    runner.run_text(word.text, call.state.copy(), None, site)
        if verb in ("paste-buffer", "pasteb") or (typed and call.arguments.has("-H")):
            runner.report("unknown_code", "types what the command line does not show into a terminal", site)
    if typed and ANSWER.fullmatch("".join(word.text for word in words).strip()):
        runner.report("unknown_code", "types an answer into a terminal, where a question may be waiting for it", site)
    if len(words) == 1 or typed:
        texts = dict.fromkeys((" ".join(word.text for word in words), "".join(word.text for word in words)))
        for text in texts if call.program == "tmux" else [*texts][:1]:
            runner.run_text(text, call.state.copy(), None, site)
    elif words:
        runner.invoke(words, call.state.copy(), None, site)
    return None


HANDLERS: dict[str, Handler] = {
    "ssh": secure_shell,
    "autossh": secure_shell,
    "mosh": secure_shell,
    **dict.fromkeys(("docker", "podman", "nerdctl", "docker-compose", "finch"), container),
    **dict.fromkeys(("kubectl", "oc", "k", "kubecolor"), cluster),
    **dict.fromkeys(("k3s", "microk8s", "minikube", "k0s"), bundled),
    "salt": salt,
    **dict.fromkeys(
        (
            "lxc",
            "incus",
            "lxc-attach",
            "machinectl",
            "multipass",
            "wsl",
            "adb",
            "nomad",
            "distrobox",
            "toolbox",
            "flatpak-spawn",
            "teleport",
        ),
        after_dashes,
    ),
    "vagrant": script_option(("-c", "--command")),
    "gcloud": script_option(("--command",)),
    "fly": script_option(("-C", "--command")),
    "nix-shell": script_option(("--run", "--command")),
    "nix": nix,
    "aws": aws,
    **dict.fromkeys(("lftp", "sftp", "ftp", "tftp"), file_transfer),
    "ansible": ansible,
    "at": later,
    "batch": later,
    "crontab": later,
    "tmux": terminal,
    "screen": terminal,
}
