"""What a command prints, as far as it is known: literal text, or where the text comes from."""

from __future__ import annotations

import base64
import binascii
import codecs
import re

from toolcrib.approval.shell.captures import kind_of_private
from toolcrib.approval.shell.model import (
    MAX_DATA_CHARS,
    NOTHING,
    UNKNOWN,
    ExpandedWord,
    NotUnderstood,
    Origin,
    StreamData,
    name_set,
)
from toolcrib.approval.shell.paths import (
    DATABASE_FILE,
    is_personal,
    is_private,
    is_protected,
    is_secret,
    reached,
    resolve,
)
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.secret_files import lists_secrets, secrets_by_pattern, walked_secret
from toolcrib.approval.shell.secret_variables import INTERPRETERS, keys_in_code, names_secret
from toolcrib.approval.shell.source_text import decode_ansi_quotes
from toolcrib.core.own_commands import OWN_PROGRAMS

FROM_NETWORK = name_set(
    "curl wget lynx links w3m elinks fetch http https xh nc ncat netcat telnet socat ftp tftp "
    "aria2c axel gopher iwr irm Invoke-WebRequest Invoke-RestMethod"
)
DECODERS = name_set(
    "base64 base32 basenc xxd openssl gzip gunzip zcat bzip2 bunzip2 bzcat xz unxz xzcat zstd "
    "zstdcat uudecode rev tr gpg age dd od hexdump sed awk perl python3"
)
DUMPS = name_set("pg_dump pg_dumpall mysqldump mongodump mariadb-dump redis-dump")
FILTERS = name_set(
    "cat tee sort uniq head tail tac nl fold fmt expand sed awk gawk grep egrep rg tr cut rev "
    "column base64 base32 xxd openssl gzip gunzip zcat "
    "bzip2 bunzip2 xz unxz zstd jq yq iconv envsubst dos2unix pv buffer tar zip gpg age od "
    "hexdump strings paste join sponge"
)
PRINTS_CODE = re.compile(
    r"(?:init|activate|hook|shellenv|env|completion|completions|shell\.\w+|docker-env|path|"
    r"export|printenv|generate-completion|--completion\S*)$"
)
PRINTS_WORDS = name_set("echo printf")
LISTERS = name_set("find gfind fd fdfind ls locate mdfind")
NAMES_FILES = LISTERS | name_set("grep egrep fgrep zgrep rg ag ack tree eza exa")
"""Programs whose output names the files that they found in the folders they were given."""
PRINTS_ONE = name_set("mktemp tempfile basename dirname realpath readlink date hostname whoami uname id tty wc uuidgen")
MAX_COUNTED = 64
CHARACTER_CLASS = re.compile(r"\[[:=.]|\[.\*")
CODE_PRINTERS = name_set(
    "ssh-agent dircolors direnv pyenv rbenv nodenv goenv jenv brew starship conda mamba "
    "micromamba zoxide fnm opam keychain minikube mise asdf "
    "luarocks thefuck register-python-argcomplete npm gh kubectl helm docker pip poetry uv "
    "rustup cargo fzf atuin oh-my-posh lesspipe tput resize "
    "docker-machine eksctl flux k3d kind stern velero hub perl tmux direnv dbus-launch "
    "gpg-agent vault stty xrdb locale"
)
MAX_FILTERED_CHARS = 100_000


def literal_output(call: CommandCall) -> StreamData:
    """What this command writes to standard output."""
    if call.program in ("echo", "printf"):
        return _printed(call)
    stdin = call.stdin or NOTHING
    if call.program in ("cat", "tac", "tee", "sponge") or (call.program in FILTERS and not _files(call)):
        return _filtered(call, stdin)
    if call.program == "seq":
        return _counted(call)
    if call.program == "jobs":
        return StreamData("$!\n")
    if call.program == "yes":
        return StreamData(None, Origin.ENDLESS | Origin.PROGRAM)
    if call.program == "history":
        return StreamData(None, Origin.PRIVATE)
    if call.program in DUMPS:
        return StreamData(None, Origin.PRIVATE | Origin.PROGRAM)
    if call.program in FROM_NETWORK:
        return StreamData(None, Origin.NETWORK)
    if call.program == "command" or call.program in ("which", "type", "whereis"):
        names = [word for word in call.words if not word.text.startswith("-")]
        # Where our own program is matters, because a copy of it would not be recognised.
        folder = "/usr/local/bin/" if len(names) == 1 and names[0].text in OWN_PROGRAMS else ""
        return StreamData(f"{folder}{names[0].text}\n") if len(names) == 1 and names[0].known else StreamData(None)
    if call.program in ("basename", "realpath", "readlink") and len(call.words) == 1 and call.words[0].known:
        text = call.words[0].text
        return StreamData((text.rstrip("/").rpartition("/")[2] if call.program == "basename" else text) + "\n")
    if call.program == "pwd":
        return StreamData((call.state.cwd or ".") + "\n") if call.state.cwd_known else StreamData(None)
    if call.program in ("true", "false", ":", "cd", "export", "set", "sleep", "wait", "mkdir", "rm", "test", "["):
        return NOTHING
    if (call.program in ENVIRONMENT_PRINTERS and prints_environment(call)) or PRINTS_KEYS.match(
        " ".join((call.program, *(word.text for word in call.words[:12])))
    ):
        return StreamData(None, Origin.SECRET)
    if call.program in PACKS and packs_to_output(call):
        return StreamData(None, Origin.PROGRAM | Origin.ARCHIVE)
    if call.program in LISTERS or (call.program == "git" and call.words[:1] and call.words[0].text == "ls-files"):
        return StreamData(None, Origin.PROGRAM | Origin.LISTED)
    if call.program == "git" and len(call.words) > 0 and call.words[0].text in ("show", "log", "diff"):
        return StreamData(None, Origin.PROGRAM | Origin.FILE)
    if call.program in CODE_PRINTERS and _prints_code(call):
        return StreamData(None, Origin.SETUP)
    one = Origin.ONE if call.program in PRINTS_ONE or _answers_git(call) else 0
    return StreamData(
        None, Origin.PROGRAM | one | kind_of_private(call) | (stdin.origin if call.program in FILTERS else 0)
    )


ENVIRONMENT_PRINTERS = name_set("env printenv declare typeset set export")


PRINTS_KEYS = re.compile(
    r"\s*(?:aws ecr get-login-password|docker inspect\b.*\bEnv\b|(?:pbpaste|wl-paste|xclip\b.*\s-o|xsel\b.*\s-?-o)\b"
    r"|git credential\b|docker-credential-\w+)"
)
"""Commands that print a key, the variables of a program, or what was copied last."""
PACKS = name_set("tar gtar bsdtar zip 7z 7za cpio git docker podman")


def packs_to_output(call: CommandCall) -> bool:
    """True for an archive of many files that goes to the next program."""
    texts = [word.text for word in call.words]
    if call.program in ("git", "docker", "podman"):
        return texts[:1] in (["archive"], ["bundle"], ["save"], ["export"])
    if call.program in ("tar", "gtar", "bsdtar"):
        creates = any(re.fullmatch(r"-?[A-Za-z]*c[A-Za-z]*|--create", text) for text in texts[:2])
        return creates and ("-" in texts or not call.arguments.has("-f", "--file"))
    return "-" in texts or "-so" in texts or call.program == "cpio"


def prints_environment(call: CommandCall) -> bool:
    """True for a command that prints all variables, or one that is named like a key."""
    options = [word.text for word in call.words if word.text.startswith("-")]
    names = [word.text for word in call.words if not word.text.startswith("-")]
    if call.program == "printenv" or "-p" in options:
        return not names or any(names_secret(name) for name in names)
    return not call.words or (call.program == "env" and not names and set(options) <= {"-0", "--null"})


def _answers_git(call: CommandCall) -> bool:
    """True for git queries with a single answer."""
    return call.program == "git" and any(
        word.text in ("rev-parse", "describe", "symbolic-ref", "config", "merge-base") for word in call.words[:3]
    )


def _counted(call: CommandCall) -> StreamData:
    """The numbers that `seq` prints; they are never a command, so their origin does not matter."""
    bounds = [int(word.text) for word in call.words if re.fullmatch(r"-?\d{1,9}", word.text)]
    if not 1 <= len(bounds) <= 2 or len(bounds) != len(call.words):
        return StreamData(UNKNOWN)
    first, last = bounds if len(bounds) == 2 else (1, bounds[0])
    return StreamData("".join(f"{number}\n" for number in range(first, min(last, first + MAX_COUNTED) + 1)))


def _prints_code(call: CommandCall) -> bool:
    if call.program in (
        "ssh-agent",
        "dircolors",
        "keychain",
        "lesspipe",
        "resize",
        "gpg-agent",
        "dbus-launch",
        "register-python-argcomplete",
        "tput",
        "stty",
        "locale",
    ):
        return True
    return any(PRINTS_CODE.search(word.text) for word in call.words)


def _files(call: CommandCall) -> list[ExpandedWord]:
    return [word for word in call.words if word.text and word.text[0] != "-"]


def _printed(call: CommandCall) -> StreamData:
    words = call.words
    if call.program == "printf":
        return _formatted(call)
    escapes = newline = False
    while words and re.fullmatch(r"-[neE]+", words[0].text):
        escapes = escapes or "e" in words[0].text
        newline = newline or "n" in words[0].text
        words = words[1:]
    origin = 0
    for word in words:
        origin |= word.origin
    text = " ".join(word.text for word in words) + ("" if newline else "\n")
    return StreamData(_unescape(text) if escapes else text, origin)


def _unescape(text: str) -> str:
    try:
        return decode_ansi_quotes(re.sub(r"\\0([0-7]{1,3})", r"\\\1", text).replace("'", "\\'") + "'", 0)[0]
    except NotUnderstood:
        return UNKNOWN


def _formatted(call: CommandCall) -> StreamData:
    words = [word for word in call.words if word.text != "--"]
    origin = 0
    for word in words:
        origin |= word.origin
    if not words or words[0].text == "-v":
        return NOTHING
    pattern, arguments = _unescape(words[0].text), [word.text for word in words[1:]]
    if not re.search(r"%[^%]", pattern):
        return StreamData(pattern.replace("%%", "%"), origin)
    if not re.fullmatch(r"(?:[^%]|%%|%-?\d*[sbdcxoq])*", pattern) or len(arguments) > 1000:
        return StreamData(None, origin)
    pieces: list[str] = []
    remaining = iter(arguments)
    per_round = max(1, len(re.findall(r"%-?\d*[sbdcxoq]", pattern)))
    rounds = max(1, -(-len(arguments) // per_round))
    if len(pattern) * rounds > MAX_DATA_CHARS:
        return StreamData(None, origin)
    for _ in range(rounds):
        pieces.append(re.sub(r"%%|%-?\d*([sbdcxoq])", lambda match: _argument(match, remaining), pattern))
    return StreamData("".join(pieces), origin)


def _argument(match: re.Match[str], remaining: object) -> str:
    if match.group() == "%%":
        return "%"
    value = next(remaining, "")  # type: ignore[call-overload]
    kind = match.group(1)
    if kind == "c":
        return str(value)[:1]
    if kind in "xo" and str(value).isdecimal():
        return format(int(value), kind)
    return _unescape(str(value)) if kind == "b" else str(value)


def _filtered(call: CommandCall, stdin: StreamData) -> StreamData:
    """What a filter makes of its input; known text is actually decoded."""
    data = _read(call, stdin)
    if call.program in ("cat", "tee", "sponge"):
        return data
    if call.program in ("head", "tail"):
        # A few of many, as in `ls -t | head -1`.
        data = StreamData(data.text, data.origin & ~(Origin.LISTED | Origin.ENDLESS) | Origin.ONE)
    decoded = Origin.DECODED if call.program in DECODERS else 0
    # Encoding makes text longer, and a chain of encoders would grow it endlessly.
    if data.text is None or UNKNOWN in data.text or len(data.text) > MAX_FILTERED_CHARS:
        return StreamData(None, data.origin | decoded | Origin.PROGRAM)
    text = _decode(call, data.text)
    return StreamData(text, data.origin | (decoded | Origin.PROGRAM if text is None else 0))


ENDLESS_DEVICES = name_set("/dev/zero /dev/urandom /dev/random /dev/full")


def _read(call: CommandCall, stdin: StreamData) -> StreamData:
    if call.program not in ("cat", "tac"):
        return stdin
    files = _files(call)
    if not files:
        return stdin
    parts: list[StreamData] = []
    for each in files:
        path = resolve(each, call.state)
        endless = Origin.ENDLESS if path in ENDLESS_DEVICES else Origin.ARCHIVE if each.glob else 0
        parts.append(call.state.written(path, each.text) or StreamData(None, Origin.FILE | endless))
    return StreamData.join(parts)


def _decode(call: CommandCall, text: str) -> str | None:
    flags = {word.text for word in call.words}
    short = "".join(word.text for word in call.words if re.fullmatch(r"-[A-Za-z]+", word.text))
    try:
        if call.program == "base64":
            if "d" in short or "D" in short or any(flag.startswith("--d") for flag in flags):
                return base64.b64decode(re.sub(r"\s", "", text) + "==").decode("utf-8", "replace")
            return base64.b64encode(text.encode()).decode() + "\n"
        if call.program == "base32" and ("d" in short or any(flag.startswith("--d") for flag in flags)):
            return base64.b32decode(re.sub(r"\s", "", text)).decode("utf-8", "replace")
        if call.program == "openssl" and "-d" in flags and ("base64" in flags or "-base64" in flags or "-a" in flags):
            return base64.b64decode(re.sub(r"\s", "", text) + "==").decode("utf-8", "replace")
        if call.program == "xxd" and "r" in short and "p" in short:
            return bytes.fromhex(re.sub(r"\s", "", text)).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return None
    if call.program == "rev":
        return "\n".join(line[::-1] for line in text.split("\n"))
    if call.program == "tac" and not flags:
        return "\n".join(reversed(text.rstrip("\n").split("\n"))) + "\n"
    if call.program == "tr":
        return _translated(call, text)
    return None


def _translated(call: CommandCall, text: str) -> str | None:
    words = [word.text for word in call.words]
    if len(words) == 2 and words[0] in ("-d", "--delete") and not CHARACTER_CLASS.search(words[1]):
        return text.translate({ord(character): None for character in _set(words[1])})
    if len(words) != 2 or words[0].startswith("-"):
        return None
    left, right = _set(words[0]), _set(words[1])
    if CHARACTER_CLASS.search(left + right):
        return None
    if not left or not right:
        return None
    if {"A-Za-z", "N-ZA-Mn-za-m"} == set(words) or {"a-zA-Z", "n-za-mN-ZA-M"} == set(words):
        return codecs.encode(text, "rot13")
    right = right.ljust(len(left), right[-1])
    return text.translate({ord(one): other for one, other in zip(left, right, strict=False)})


def _set(text: str) -> str:
    text = {"[:upper:]": "A-Z", "[:lower:]": "a-z"}.get(text, _unescape(text))
    return re.sub(
        r"(.)-(.)", lambda m: "".join(chr(code) for code in range(ord(m[1]), min(ord(m[2]) + 1, ord(m[1]) + 256))), text
    )


_SILENT = name_set(
    "ls stat wc file test [ md5sum sha1sum sha256sum sha512sum b2sum cksum du chmod chown "
    "touch mkdir rm cd ssh-keygen ssh-add readlink realpath "
    "basename dirname find which mv cp ln shred true echo_ kill git"
)
"""Programs that look at a file without printing its contents."""


GIT_SHOWS = name_set("show log diff cat-file grep blame archive whatchanged format-patch")


def with_keys(call: CommandCall, data: StreamData) -> StreamData:
    """What an interpreter prints, marked if its code reads variables with keys."""
    if call.program in INTERPRETERS and keys_in_code(call):
        return StreamData(data.text, data.origin | Origin.KEY)
    return StreamData(data.text, data.origin | kind_of_private(call)) if call.program == "osascript" else data


def output_of(call: CommandCall) -> StreamData:
    """What a command prints, with the secrets that it may carry."""
    data = literal_output(call)
    origin = data.origin
    for word in call.words:
        origin |= word.origin
        # `git show HEAD:.env` names a file, too.
        text = word.text.partition(":")[2] if call.program == "git" and ":" in word.text else word.text
        path = reached(text.removeprefix("@"), call.state)
        if word.text and (is_secret(path) or (word.glob and secrets_by_pattern(word, call.state))):
            origin |= Origin.SECRET
        elif word.text and is_private(path):
            origin |= Origin.PRIVATE
        elif "/" in path and is_personal(path, call.state):
            origin |= Origin.PERSONAL
        elif path in call.state.files:
            origin |= call.state.files[path].origin & (Origin.SECRET | Origin.PRIVATE | Origin.PERSONAL)
        if DATABASE_FILE.search(path):
            origin |= Origin.DATABASE
    if call.program not in PRINTS_WORDS and any(word.origin & Origin.SECRET_FILE for word in call.words):
        origin |= Origin.SECRET
    if walked_secret(call):
        origin |= Origin.SECRET
    if (call.program in LISTERS and origin & Origin.SECRET) or lists_secrets(call):
        origin |= Origin.SECRET_FILE
    if call.program in NAMES_FILES and any(is_protected(reached(word, call.state), call.state) for word in call.words):
        origin |= Origin.PROTECTED_FILE
    if call.program in _SILENT and not (call.program == "git" and call.words and call.words[0].text in GIT_SHOWS):
        origin &= ~(Origin.SECRET | Origin.PRIVATE | Origin.PERSONAL | Origin.DATABASE)
    return StreamData(data.text, origin)
