"""Weaker permissions and changed owners."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN
from toolcrib.approval.shell.paths import place, reached
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule, operand

DANGERS = (
    DangerClass(
        "permissions",
        "weaker permissions",
        "this host",
        r"\bchmod\b.*(?:777|666|[ao]\+\w*w|\+s)|\bchown\b.*\broot\b",
        "chmod 777 x",
    ),
)

OF_THE_SYSTEM = ("root", "home", "system_root", "system", "home_config", "secret", "device", "disk")
SYMBOLIC = re.compile(r"(?:^|,)(?P<who>[ugoa]*)(?P<op>[+=])(?P<what>[rwxXst]*)")


def mode_of(call: CommandCall) -> str:
    """The mode argument of chmod: an operand, or something like `-w` that looks like an option."""
    words = [word.text for word in call.words if not re.fullmatch(r"-[Rvcfh]+|--\w.*", word.text)]
    return words[0] if words else ""


def weakens(call: CommandCall) -> bool:
    mode = mode_of(call)
    if UNKNOWN in mode:
        return True
    if re.fullmatch(r"[0-7]{1,5}", mode):
        number = int(mode, 8)
        return bool(number & 0o002) or bool(number & 0o6000)
    for match in SYMBOLIC.finditer(mode):
        who, what = match.group("who"), match.group("what")
        if "w" in what and ("o" in who or "a" in who):
            return True
        if "s" in what:
            return True
    return bool(re.search(r"(?:^|,)[ug]*+[oa][ugoa]*+[+=][ugo]", mode))


def targets_top(call: CommandCall) -> bool:
    return any(place(reached(each, call.state), call.state) == "root" for each in call.arguments.operands[1:]) or any(
        place(reached(each, call.state), call.state) == "root"
        for each in call.arguments.operands[:1]
        if each.text.startswith("/")
    )


def targets_system(call: CommandCall) -> bool:
    return any(
        place(reached(each, call.state), call.state) in OF_THE_SYSTEM for each in call.arguments.operands[1:]
    ) and not tightens_own(call)


def tightens_own(call: CommandCall) -> bool:
    """`chmod 600 ~/.ssh/id_rsa` makes things safer."""
    mode = mode_of(call)
    own = all(
        place(reached(each, call.state), call.state) in ("home_config", "secret")
        for each in call.arguments.operands[1:]
    )
    return own and call.program == "chmod" and bool(re.fullmatch(r"0?[4-7]00|go[-=]\w*|og[-=]\w*|u=\w+,go=", mode))


def gives_to_root(call: CommandCall) -> bool:
    return bool(call.arguments.operands) and bool(re.match(r"(?:root|0)(?:[:.]|$)", call.arguments.operands[0].text))


def recursive_outside(call: CommandCall) -> bool:
    return call.arguments.has("-R", "--recursive") and any(
        place(reached(each, call.state), call.state) in (*OF_THE_SYSTEM, "outside")
        for each in call.arguments.operands[1:]
    )


def given_mode(call: CommandCall) -> str:
    """The value of `-m`, as for install and mkdir."""
    texts = [word.text for word in call.words]
    for number, text in enumerate(texts):
        if text in ("-m", "--mode", "-pm") and number + 1 < len(texts):
            return texts[number + 1]
        if text.startswith(("--mode=", "-m")) and len(text) > 2:
            return text.removeprefix("--mode=").removeprefix("-m")
    return ""


RULES = (
    Rule(
        "chmod chown chgrp gchmod setfacl chattr",
        reason="changes permissions across the whole machine",
        flags="-R --recursive",
        where=targets_top,
        severity="block",
        yes="chmod -R 777 /",
        no="chmod -R u+w src",
    ),
    Rule(
        "chmod gchmod",
        reason="makes a file world-writable or setuid",
        where=weakens,
        yes="chmod 777 x",
        no="chmod +x run.sh",
    ),
    Rule(
        "chmod gchmod",
        reason="changes the permissions of system files",
        where=targets_system,
        yes="chmod 644 /etc/shadow",
        no="chmod 644 a.txt",
    ),
    Rule(
        "chown chgrp",
        reason="changes the owner of system files",
        where=targets_system,
        yes="chown me /etc/passwd",
        no="chown me a.txt",
    ),
    Rule(
        "chown",
        reason="makes root the owner of files",
        where=gives_to_root,
        yes="chown -R root:root app",
        no="chown -R me:me app",
    ),
    Rule(
        "chown chgrp",
        reason="changes the owner of a whole tree outside the workspace",
        where=recursive_outside,
        yes="chown -R www-data /srv/app",
        no="chown -R me app",
    ),
    Rule(
        "setfacl",
        reason="gives other users access",
        where=lambda call: any(
            re.search(r"(?:o(?:ther)?:|u(?:ser)?:\w+|g(?:roup)?:\w+|m:):?:?[r-]?w|o::r?w|:rwx|:rw", word.text)
            for word in call.words
        ),
        yes="setfacl -m o::rwx x",
        no="setfacl -b x",
    ),
    Rule(
        "setcap",
        reason="gives a program system capabilities",
        where=operand(lambda text: "+" in text or "=" in text),
        yes="setcap cap_setuid+ep ./x",
        no="setcap -v cap_net_raw x",
    ),
    Rule(
        "chattr",
        reason="changes file protection flags",
        where=lambda call: any(re.match(r"[-+=]\w*[iau]", word.text) for word in call.words),
        yes="chattr -i /etc/resolv.conf",
        no="chattr +C x",
    ),
    Rule(
        "umask",
        reason="makes new files world-writable",
        where=operand(
            lambda text: (
                (re.fullmatch(r"0{0,3}[0-7]?[0-7]?[0145]|0+", text) and not re.search(r"[2367]$", text))
                or re.search(r"(?:^|,)[ug]*[oa][ugo]*[=+]r?w", text)
            )
        ),
        yes="umask 000",
        no="umask 022",
    ),
    Rule(
        "icacls cacls takeown",
        reason="changes who may access files",
        where=lambda call: bool(call.words),
        yes="icacls x /grant Everyone:F",
        no="icacls --help",
    ),
    Rule(
        "install",
        reason="installs a program that runs as its owner",
        where=lambda call: bool(re.fullmatch(r"[2467][0-7]{3}|[ugoa]*\+[^\Ws]*+s\w*|0?777|0?666", given_mode(call))),
        yes="install -m 4755 sh /tmp/sh",
        no="install -m 755 a b",
    ),
    Rule(
        "mkdir",
        reason="creates a world-writable directory",
        where=lambda call: bool(re.fullmatch(r"0?777|0?666|[ao][+=][^\Ww]*+w\w*", given_mode(call))),
        yes="mkdir -m 777 x",
        no="mkdir -p x",
    ),
    Rule(
        "xhost",
        reason="lets anyone connect to the display",
        where=operand(lambda text: text == "+"),
        yes="xhost +",
        no="xhost",
    ),
)
