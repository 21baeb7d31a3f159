"""Which files a command writes, replaces or removes, program by program."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolcrib.approval.shell.model import Field, name_set
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import Call

ALL_OPERANDS = name_set(
    "tee touch truncate rm unlink shred sponge mkdir rmdir mktemp chattr nano vi vim nvim emacs ed ex srm wipe"
)
INTO_LAST = name_set("cp mv install ln rsync scp gcp gmv ditto")


def written_paths(call: Call) -> list[tuple[str, Field]]:
    """The resolved paths that a command writes to, each with the word that named it."""
    return [(resolve(each, call.state), each) for each in targets(call) if each.text]


def targets(call: Call) -> Iterable[Field]:
    program, words = call.program, call.words
    if program in ALL_OPERANDS:
        if program in ("rm", "rmdir", "mkdir", "touch") and not call.arguments.operands:
            return []
        return [each for each in call.arguments.operands if not re.match(r"[:+]", each.text)]
    if program in INTO_LAST:
        return into_last(call)
    if program == "dd":
        return [word.with_text(word.text[3:]) for word in words if word.text.startswith("of=")]
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
        return call.arguments.values("-O", "--output-document", "-P", "--directory-prefix", "-o", "--output-file")
    if program in ("tar", "bsdtar"):
        extracts = any(re.match(r"-?[a-zA-Z]*x", word.text) for word in words[:1]) or call.arguments.has(
            "-x", "--extract", "--get"
        )
        return call.arguments.values("-C", "--directory") if extracts else archive(call)
    if program == "unzip":
        return [words[i + 1] for i, word in enumerate(words[:-1]) if word.text == "-d"]
    if program in ("sort", "gcc", "cc", "gpg", "openssl"):
        return call.arguments.values("-o", "--output", "-out")
    if program == "patch":
        return [each for each in call.arguments.operands[:1] if each.text.startswith("/")]
    if (
        program in ("git",)
        and len(words) > 1
        and words[0].text == "config"
        and "--system" in [word.text for word in words]
    ):
        return [Field("/etc/gitconfig")]
    return []


def archive(call: Call) -> list[Field]:
    value = call.arguments.value("-f", "--file")
    return [value] if value is not None else []


def into_last(call: Call) -> list[Field]:
    arguments = call.arguments
    if call.program == "rsync" and arguments.has("-n", "--dry-run"):
        return []
    directory = arguments.value("-t", "--target-directory")
    operands = arguments.operands
    if call.program == "install" and arguments.has("-d", "--directory"):
        return operands
    moved = operands[:-1] if call.program == "mv" and directory is None else operands if call.program == "mv" else []
    if directory is not None:
        return [directory, *moved]
    if len(operands) < 2:
        return []
    last = operands[-1]
    remote = re.match(r"[\w.@-]+:", last.text)
    # A path on another host is judged by the same places, if it is absolute.
    target = last.with_text(last.text[remote.end() :]) if remote else last
    return moved if remote and not target.text.startswith("/") else [target, *moved]
