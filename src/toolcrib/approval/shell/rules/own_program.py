"""toolcrib itself, called from a tool call: commands that would bypass the gate or change what it depends on."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule
from toolcrib.core.own_commands import OWN_PROGRAMS, kind_of

DANGERS = (
    DangerClass(
        "own_program",
        "change of toolcrib itself",
        "this host",
        r"\b(?:toolcrib|hermes)\s+(?:config\s+set|setup|approvals\s+revoke)",
        "toolcrib config set tools.max_parallel 2",
    ),
)

CHANGES = "would change what this session or a later one is allowed to do"
COPY = re.compile(r"(?:^|/)bin/(?:toolcrib|hermes)$")
EFFECTIVE_TOOLS = frozenset(
    "terminal process execute_code write_file patch memory skill_manage cronjob delegate_task send_message".split()  # noqa: SIM905
)
"""Built-in tools that act; a session calls them itself, under its own gate."""
LOOKS = frozenset({"status", "list", "show", "get", "logs", "version", "help", "info", "search", "check", "view"})


def own_words(call: CommandCall) -> list[str]:
    return [word.text for word in call.words]


def changes_us(call: CommandCall) -> bool:
    if call.state.container:
        return False
    names = [text for text in own_words(call) if not text.startswith("-")][:2]
    return kind_of(own_words(call)) == "changes" or any(UNKNOWN in text for text in names)


def starts_agent(call: CommandCall) -> bool:
    return kind_of(own_words(call)) == "agent"


def calls_acting_tool(call: CommandCall) -> bool:
    operands = [text for text in own_words(call) if not text.startswith("-")]
    if kind_of(own_words(call)) != "runs_tool":
        return False
    return len(operands) < 3 or operands[2] in EFFECTIVE_TOOLS or UNKNOWN in operands[2]


def is_no_command_of_ours(call: CommandCall) -> bool:
    words = own_words(call)
    return kind_of(words) == "unknown" and not LOOKS.intersection(words)


def copies_us(call: CommandCall) -> bool:
    """Under another name the program would not be recognised."""
    return any(COPY.search(word.text) for word in call.arguments.operands[:-1])


def raises_lock_limit(call: CommandCall) -> bool:
    """The limit that marks the processes of tool calls; nothing else uses it."""
    if call.program == "ulimit":
        return any(re.fullmatch(r"-[A-Za-z]*x.*", text) for text in own_words(call)) and len(call.words) > 1
    return any(re.match(r"--locks|-[A-Za-z]*x", text) for text in own_words(call))


def replaces_us(call: CommandCall) -> bool:
    replacing = {"uninstall", "remove", "reinstall", "upgrade", "--force-reinstall", "--upgrade", "-U", "--reinstall"}
    packages = [re.split(r"[\[=<>~!@]", text)[0] for text in own_words(call)]
    return not replacing.isdisjoint(own_words(call)) and not OWN_PACKAGES.isdisjoint(packages)


OWN_PACKAGES = frozenset({"toolcrib", "hermes-agent"})
PROGRAMS = " ".join(sorted(OWN_PROGRAMS))
RULES = (
    Rule(PROGRAMS, reason=CHANGES, where=changes_us, yes="toolcrib config set a b", no="toolcrib config get a"),
    Rule(
        PROGRAMS,
        reason="starts another agent, which this session does not watch",
        where=starts_agent,
        key="unknown_code",
        yes="toolcrib chat -q 'tidy up'",
        no="toolcrib chat --help",
    ),
    Rule(
        PROGRAMS,
        reason="calls a tool outside this session",
        where=calls_acting_tool,
        key="unknown_code",
        yes="""toolcrib tools run terminal '{"command": "ls"}'""",
        no="""toolcrib tools run weather '{"location": "London"}'""",
    ),
    Rule(
        PROGRAMS,
        reason="runs a command that this version does not know",
        where=is_no_command_of_ours,
        key="unknown_command",
        yes="hermes frobnicate",
        no="hermes gateway status",
    ),
    Rule(
        "ulimit prlimit",
        reason="changes a limit that toolcrib relies on",
        where=raises_lock_limit,
        yes="ulimit -x unlimited",
        no="ulimit -n 4096",
    ),
    Rule(
        "pip pip3 pipx uv conda mamba",
        reason="replaces or removes toolcrib itself",
        where=replaces_us,
        key="package",
        yes="uv tool uninstall toolcrib",
        no="pip install toolcrib",
    ),
    Rule(
        "cp ln mv install rsync",
        reason="gives toolcrib's program another name",
        where=copies_us,
        yes="cp /usr/local/bin/toolcrib /tmp/t",
        no="cp -r src/toolcrib build/",
    ),
)
