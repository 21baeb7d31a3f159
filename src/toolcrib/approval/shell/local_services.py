"""Services on this machine that act for any client: our own server, and sockets of daemons and agents."""

from __future__ import annotations

import re
from functools import lru_cache

from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.paths import place, reached
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.state import ShellState

CONNECTORS = name_set(
    "curl wget http https httpie xh curlie nc ncat netcat socat telnet openssl aria2c hurl grpcurl websocat "
    "wscat ab wrk hey "
    "lwp-request GET POST s_client gpg-connect-agent"
)
"""Programs that connect to an address or a socket among their words."""
HERE = (
    r"(?:localhost|127(?:\.\d+){1,3}|0\.0\.0\.0|\[?::1\]?|\[?::ffff:127[\d.]+\]?|ip6-localhost|0x7f[0-9a-f]{6}|2130706433"
    r"|(?<![\w.])0|(?<![\w./])(?=:))"
)
USUAL_PORT = "8642"
OWN_INTERFACE = re.compile(HERE + r"(?::\d+)?/+api/+(?:approvals|runs|questions)\b", re.IGNORECASE)
"""The parts of its interface that answer questions and start runs, at any port."""
OWN_PATH = re.compile(r"['\"`]/+api/+(?:approvals|runs|questions)\b", re.IGNORECASE)
LOCAL_HOST = re.compile(r"['\"`](?:https?://)?(?:localhost|127(?:\.\d+){1,3}|::1|0\.0\.0\.0)\b", re.IGNORECASE)
CONTROL_SOCKET = re.compile(
    r"\.sock(?:et)?$|-sock(?:et)?$|/(?:system_bus_socket|bus|private|notify|unix\.socket|Listeners)$"
    r"|S\.(?:gpg-agent|scdaemon|keyboxd|dirmngr)[\w.]*$|/keyring/(?:ssh|control|pkcs11)$|/wayland-\d+$"
    r"|/tmp/(?:\.X11-unix/|tmux-|dbus-|ssh-[^/]+/agent|\.ICE-unix/|vscode-ipc|nvim)"
)
"""Sockets by their names: those of daemons, agents, displays and terminals."""
DATABASE_SOCKET = re.compile(
    r"/(?:mysqld?|mariadb|postgresql|redis|valkey|memcached|php\d?[\d.]*-?fpm|gunicorn|uwsgi|puma|nginx)\b"
)
"""Sockets of databases and web applications, which ask for a password or serve what they are made for."""
AGENT_VARIABLE = re.compile(
    r"\b(?:SSH_AUTH_SOCK|DBUS_(?:SESSION|SYSTEM)_BUS_ADDRESS|GPG_AGENT_INFO|DOCKER_HOST|CONTAINER_HOST|TMUX|WAYLAND_DISPLAY"
    r"|I3SOCK|SWAYSOCK|NVIM|NVIM_LISTEN_ADDRESS)\b"
)
SOCKET_WORD = re.compile(
    r"(?:unix(?:-connect|-client|-sendto|-send)?|gopen|local|abstract(?:-connect|-client|-sendto)?"
    r"|http\+unix|https\+unix)(?::(?://)?)(?P<path>[^,\s'\"]+)",
    re.IGNORECASE,
)
SOCKET_OPTIONS = frozenset({"--unix-socket", "--abstract-unix-socket", "-U", "--unixsock", "--unix"})
CONNECTS = re.compile(
    r"AF_UNIX|UNIXSocket|IO::Socket::UNIX|unix://|http\+unix|createConnection|\.connect\(|net\.(?:connect|Dial|Socket)"
    r"|fsockopen|stream_socket_client|socketPath|requests_unixsocket|DockerClient|from_env|open_unix_connection"
)
LOADS_CLIENT = re.compile(
    r"\b(?:import|from|require\(?|use)\s*['\"]?(?:docker|dockerode|podman|dbus|pydbus|dasbus|jeepney)\b"
)
REQUESTS = re.compile(
    r"urlopen|Request\(|requests\.|httpx\.|aiohttp|urllib|http\.client|HTTPConnection|fetch\(|axios|XMLHttp|https?\.request"
    r"|https?\.(?:get|post)|Net::HTTP|HTTP::Tiny|LWP|RestClient|Faraday|open-uri|URI|curl_|file_get_contents|fsockopen"
    r"|fopen|socket|TCPSocket|connect|guzzle|/inet/tcp|Invoke-"
)
QUOTED_PATH = re.compile(r"['\"`](?:unix:/{0,2}|http\+unix:/{0,2})?(/[^'\"`\s]{3,200}|~/[^'\"`\s]{3,200})['\"`]")


def judge_connection(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report a program that connects to our own server, or to a socket that acts for whoever reaches it."""
    if call.program not in CONNECTORS:
        return
    before = ""
    for word in call.words[:200]:
        text = word.text[:2000]
        judge_address(runner, text, call.state, site)
        path = socket_path(before, text)
        if path and is_service(path, call.state):
            report_socket(runner, path, site)
        before = text
    if call.program in ("nc", "ncat", "netcat", "telnet"):
        judge_address(runner, " ".join(each.text for each in call.arguments.operands[:2]), call.state, site)
    if any(not word.known for word in call.words) and AGENT_VARIABLE.search(call.text):
        runner.report("local_service", "talks to an agent or a session that acts for the user", site)


@lru_cache(maxsize=8)
def own_address(port: str) -> re.Pattern[str]:
    """Addresses of our own server, except the one that only tells whether it works."""
    return re.compile(
        HERE + rf"(?:[:/ ]|['\"]\s*,\s*['\"]?){port}\b(?!/+health)|/dev/tcp/(?:localhost|127[\d.]*|::1)/{port}\b",
        re.IGNORECASE,
    )


CLOUD_METADATA = re.compile(
    r"(?<![\d.])(?:169\.254\.(?:169\.254|170\.(?:2|23))|100\.100\.100\.200|0xa9fea9fe|2852039166)(?![\d.])"
    r"|metadata\.(?:google\.internal|goog|tencentyun\.com)|fd00:ec2::(?:254|23)|instance-data\b(?=[:/])",
    re.IGNORECASE,
)
"""Where machines of the clouds get the keys that they act with."""


def judge_address(runner: Runner, text: str, state: ShellState, site: CommandLocation) -> None:
    if CLOUD_METADATA.search(text):
        runner.report("credential", "asks the cloud for the keys of this machine", site)
    ports = [USUAL_PORT, *(own.rpartition(":")[2] for own in state.own if own.startswith("//localhost:"))]
    if any(port in text and own_address(port).search(text) for port in ports):
        runner.report("own_program", "talks to toolcrib's own server, which answers questions and starts runs", site)
    elif OWN_INTERFACE.search(text):
        runner.report(
            "local_service", "may talk to toolcrib's own server, which answers questions and starts runs", site
        )


def socket_path(before: str, text: str) -> str:
    """The socket that a word names: after an option, after `unix:`, or at the end of `-U/path`."""
    if before in SOCKET_OPTIONS or (re.fullmatch(r"-[A-Za-z]*U", before) and before != "-XU"):
        return text
    name, equals, value = text.partition("=")
    if equals and name in SOCKET_OPTIONS:
        return value
    found = SOCKET_WORD.search(text)
    return found.group("path") if found else ""


def is_service(path: str, state: ShellState) -> bool:
    """True for a socket of a daemon or an agent: one outside the workspace, of unknown place, or with such a name."""
    if UNKNOWN in path:
        return True
    target = reached(state.home + path[1:] if path.startswith("~/") else path, state)
    if is_control_socket(target, state):
        return True
    kind = place(target, state)
    return (
        target.startswith("/")
        and kind not in ("temporary", "workspace", "container")
        and not DATABASE_SOCKET.search(target)
    )


def is_control_socket(path: str, state: ShellState) -> bool:
    """True for the name of a socket that is neither the project's nor a database's."""
    if not path.startswith("/") or not CONTROL_SOCKET.search(path) or DATABASE_SOCKET.search(path):
        return False
    kind = place(path, state)
    return kind not in ("workspace", "container") and (kind != "temporary" or not path.endswith((".sock", ".socket")))


def judge_service_code(runner: Runner, code: str, call: CommandCall, site: CommandLocation) -> None:
    """The same for code: what it connects to, judging by its strings."""
    if REQUESTS.search(code):
        judge_address(runner, code, call.state, site)
        if OWN_PATH.search(code) and LOCAL_HOST.search(code):
            runner.report("local_service", "may talk to toolcrib's own server, in which runs start", site)
    if not CONNECTS.search(code):
        return
    for path in QUOTED_PATH.findall(code)[:40]:
        if is_control_socket(reached(ExpandedWord(path), call.state), call.state):
            report_socket(runner, path, site)
            return
    if AGENT_VARIABLE.search(code) or LOADS_CLIENT.search(code):
        runner.report("local_service", "talks to an agent or a daemon that acts for the user", site)


def report_socket(runner: Runner, path: str, site: CommandLocation) -> None:
    runner.report("local_service", f"talks to the service behind {path[:120]}", site, paths=(path[:400],))
