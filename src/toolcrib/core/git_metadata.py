"""What git executes: which files of a repository decide it, and which settings start a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

STRUCTURE = frozenset({"HEAD", "objects", "refs"})
"""The names that make a folder a repository for git, whatever the folder is called."""
SETTINGS_FILES = frozenset({"config", "config.worktree"})
HOOKS = "hooks"
SAMPLE = ".sample"
"""Git never runs a hook with this suffix."""

_INSIDE = r"(?:hooks(?:/.*)?|config(?:\.worktree)?(?:\.lock)?|info/attributes|commondir|gitdir)$"
EXECUTED_PATH = re.compile(
    rf"(?:^|/)(?:\.git$|[^/]*\.git/(?:{_INSIDE}|(?:modules|worktrees)/(?:.*/)?{_INSIDE}))", re.IGNORECASE | re.DOTALL
)
"""Paths in a repository's `.git`, or in a bare `name.git`, that decide what git runs, and `.git` itself."""
EXECUTED_NAME = re.compile(_INSIDE, re.IGNORECASE | re.DOTALL)
"""The same below the folder of a repository with another name."""

_STARTS_PROGRAM = re.compile(
    r"core\.(?:hookspath|sshcommand|pager|editor|askpass|gitproxy|fsmonitor|fsmonitorhookversion|alternaterefscommand"
    r"|attributesfile)"
    r"|(?:include|includeif\..*)\.path|credential(?:\..*)?\.helper|diff\.external|diff\..*\.(?:command|textconv)"
    r"|filter\..*\.(?:clean|smudge|process)|merge\..*\.driver|(?:merge|diff)tool\..*\.(?:cmd|path)"
    r"|gpg(?:\..*)?\.(?:program|defaultkeycommand)|interactive\.difffilter|sequence\.editor|alias\..*|pager\..*"
    r"|remote\..*\.(?:uploadpack|receivepack|vcs|proxy|url|pushurl)|url\..*\.(?:insteadof|pushinsteadof)"
    r"|uploadpack\.packobjectshook|submodule\..*\.(?:update|url)|sendemail\..*|trailer\..*\.(?:command|cmd)"
    r"|(?:man|browser|guitool)\..*\.(?:cmd|path)|web\.browser|instaweb\..*|init\.templatedir|hook\..*|protocol\..*"
    r"|tar\..*\.command|lfs\..*\.(?:path|clean|smudge)|lfs\.standalonetransferagent|imap\.tunnel|svn\..*authors-?prog"
)
_PLAIN_ALIAS = re.compile(r"[a-z][\w-]*(?: [-\w=%:./,^~@{}+]+)*")
_RUNS_IN_ALIAS = re.compile(
    r"(?:^| )(?:-c|-x|-o|--?exec\w*|--ext[\w-]*|--(?:upload|receive)-pack|--open[\w-]*|--config[\w-]*"
    r"|--template|foreach|run"
    r"|difftool|mergetool|filter-branch|send-email|instaweb|shell|daemon|bisect|submodule|archive|help|svn|p4|hook)\b"
)
"""An alias runs something without a `!`, too: `-c core.pager=…`, `rebase --exec …`, `difftool -x …`."""
_HARMLESS_VALUES = frozenset({"", "true", "false", "yes", "no", "on", "off", "0", "1", "2"})
_REMOTE = re.compile(r"(?:remote|url|submodule)\..*")
_HEADER = re.compile(r'\[\s*([-.\w]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_KEY = re.compile(r"([A-Za-z][-\w]*)[ \t]*")


class GitSetting(msgspec.Struct, frozen=True):
    """One entry of a config file."""

    section: str
    subsection: str
    key: str
    value: str

    @property
    def name(self) -> str:
        """As git prints it, in lower case."""
        return ".".join(filter(None, (self.section, self.subsection, self.key))).lower()

    @property
    def starts_program(self) -> bool:
        """Whether git would run a program, or read further settings, because of it."""
        if not _STARTS_PROGRAM.fullmatch(self.name):
            return False
        value = self.value.strip().lower()
        if self.section.lower() == "alias":
            return not _PLAIN_ALIAS.fullmatch(value) or bool(_RUNS_IN_ALIAS.search(value))
        if self.name.endswith(".update"):
            return value.startswith("!")
        if _REMOTE.fullmatch(self.name) and self.key.lower() in ("url", "pushurl", "insteadof", "pushinsteadof"):
            return "::" in f"{value} {self.subsection}" or value.startswith("-")
        return value not in _HARMLESS_VALUES


def git_setting(name: str, value: str) -> GitSetting:
    """The setting with a dotted name, as `git config NAME VALUE` writes it."""
    section, _, rest = name.partition(".")
    subsection, _, key = rest.rpartition(".")
    return GitSetting(section, subsection, key, value)


def starts_nothing(setting: GitSetting) -> bool:
    return not setting.starts_program


def harmful_settings(
    text: str, is_harmless: Callable[[GitSetting], bool] = starts_nothing
) -> frozenset[GitSetting] | None:
    """The other settings of a config file; None if the file cannot be read with certainty."""
    try:
        return frozenset(setting for setting in read_settings(text) if not is_harmless(setting))
    except ValueError:
        return None


def harmless_settings(text: str, is_harmless: Callable[[GitSetting], bool] = starts_nothing) -> str:
    """A config file with only the harmless settings; empty if the file cannot be read with certainty."""
    try:
        kept = [setting for setting in read_settings(text) if is_harmless(setting)]
    except ValueError:
        return ""
    lines = []
    for setting in kept:
        name = setting.section + (f" {_quoted(setting.subsection)}" if setting.subsection else "")
        lines += [f"[{name}]", f"\t{setting.key} = {_quoted(setting.value)}"]
    return "".join(f"{line}\n" for line in lines)


def read_settings(text: str) -> Iterator[GitSetting]:
    """The entries of a config file; raises ValueError for what git's own grammar does not allow."""
    section, subsection = "", ""
    text = text.replace("\r\n", "\n")
    at = 1 if text.startswith("\ufeff") else 0
    while at < len(text):
        if text[at] in " \t\r\n":
            at += 1
        elif text[at] in "#;":
            at = _line_end(text, at)
        elif text[at] == "[":
            header = _HEADER.match(text, at)
            if header is None:
                raise ValueError("a section is malformed")
            section, _, dotted = header.group(1).partition(".")
            subsection = re.sub(r"\\(.)", r"\1", header.group(2)) if header.group(2) is not None else dotted
            at = header.end()
        else:
            key = _KEY.match(text, at)
            if key is None or not section:
                raise ValueError("a line is malformed")
            value, at = _value(text, key.end())
            yield GitSetting(section, subsection, key.group(1), value)


def _value(text: str, at: int) -> tuple[str, int]:
    """The value after a key, and where it ends; a key without one is true."""
    if at >= len(text) or text[at] in "\r\n#;":
        return "true", _line_end(text, at)
    if text[at] != "=":
        raise ValueError("a line is malformed")
    at, value, quoted = at + 1, "", False
    while at < len(text) and text[at] != "\n":
        character = text[at]
        if character == "\\":
            following = text[at + 1 : at + 2]
            value += {"\n": "", "t": "\t", "n": "\n", "b": "\b"}.get(following, following)
            at += 1
        elif character == '"':
            quoted = not quoted
        elif character in "#;" and not quoted:
            at = _line_end(text, at)
            break
        else:
            value += character
        at += 1
    if quoted:
        raise ValueError("a quote is not closed")
    return value.strip(), at


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
