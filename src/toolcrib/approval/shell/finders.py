"""Programs that run a command on what they find or read: find, fd and xargs."""

from __future__ import annotations

import re
from bisect import bisect

from toolcrib.approval.shell.model import ANYTHING, UNKNOWN, Data, Field, Origin, name_set
from toolcrib.approval.shell.options import Arguments, parse_arguments
from toolcrib.approval.shell.paths import is_private, is_secret, place, resolve
from toolcrib.approval.shell.rules.base import Call
from toolcrib.approval.shell.rules.delete import finds_from_the_top
from toolcrib.approval.shell.runner import Handler, Runner, Site
from toolcrib.approval.shell.wrappers import first_of

MAX_WORDS = 256


def xargs(runner: Runner, call: Call, site: Site) -> Data:
    """Judge what xargs runs, with the words that it reads where they are known."""
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
    inputs = [Field(part, origin=origin) for part in input_parts(text, arguments)]
    replace = arguments.value("-I")
    state = call.state.copy()
    state.many = text is None
    if origin & Origin.ENDLESS and arguments.has("-P", "--max-procs"):
        runner.report("fork_bomb", "starts processes without end", site)
    marker = replace.text if replace is not None else "{}" if arguments.has("-i", "--replace") else ""
    if marker and any(marker in word.text for word in words):
        for line in first_of(
            [line.strip() for line in text.split(separator_of(arguments) or "\n") if line.strip()] if text else []
        ):
            replaced = [
                Field(word.text.replace(marker, line), word.glob, word.origin | origin) if marker in word.text else word
                for word in words
            ]
            runner.invoke(replaced, state, None, site)
        return ANYTHING
    inner = [*words, *inputs]
    printed = runner.invoke(inner, state, None, site)
    return Data(printed.text, printed.origin | origin)


def separator_of(arguments: Arguments) -> str:
    """What stands between the words that xargs reads; empty for blanks."""
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


def find(runner: Runner, call: Call, site: Site) -> Data | None:
    """Judge the commands that find runs on what it finds."""
    words = call.words
    roots = []
    for word in words:
        if word.text.startswith(("-", "(", "!", "\\(")) and word.text not in ("-H", "-L", "-P"):
            break
        if not word.text.startswith("-"):
            roots.append(word)
    root = roots[0] if roots else Field(".")
    from_the_top, secrets = finds_from_the_top(call), looks_for_secrets(call)
    ends = [at for at, word in enumerate(words) if word.text in (";", "+", "\\;")]
    for number, word in enumerate(words):
        if word.text not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        following = bisect(ends, number)
        end = ends[following] if following < len(ends) else len(words)
        found = Field(root.text.rstrip("/") + "/" + UNKNOWN if root.text != "." else "./" + UNKNOWN)
        inner = [each.with_text(each.text.replace("{}", found.text)) for each in words[number + 1 : end]]
        if secrets:
            inner = [Field(each.text, each.glob, Origin.SECRET) if UNKNOWN in each.text else each for each in inner]
        if not inner:
            continue
        if inner[0].text.rpartition("/")[2] in ("rm", "unlink", "shred", "srm") and from_the_top:
            reason = "deletes everything under the root or a system directory"
            runner.report("recursive_delete", reason, site, severity="block", paths=(resolve(root, call.state),))
        if from_the_top and changes_the_whole_machine(call, inner[0].text.rpartition("/")[2], root):
            reason = "changes the permissions of the whole machine"
            runner.report("permissions", reason, site, severity="block", paths=("/",))
        state = call.state.copy()
        state.many = True
        runner.invoke(inner, state, None, site)
        if end == len(words):
            # Without its terminator find runs nothing; judging the rest once is enough.
            break
    return None


def changes_the_whole_machine(call: Call, program: str, root: Field) -> bool:
    return (
        program in ("chmod", "chown", "chgrp") and call.known and place(resolve(root, call.state), call.state) == "root"
    )


def looks_for_secrets(call: Call) -> bool:
    texts = [word.text for word in call.words]
    named = [texts[at + 1] for at, text in enumerate(texts[:-1]) if text in ("-name", "-iname", "-path")]
    return any(
        is_secret("/" + name.replace("*", "x")) or is_private(name) or name.endswith((".pem", ".key")) for name in named
    )


def fd(runner: Runner, call: Call, site: Site) -> Data | None:
    texts = [word.text for word in call.words]
    for flag in ("-x", "-X", "--exec", "--exec-batch"):
        if flag in texts:
            inner = call.words[texts.index(flag) + 1 :]
            inner = inner[: next((at for at, word in enumerate(inner) if word.text == ";"), len(inner))]
            inner = [word.with_text(re.sub(r"\{[./]*\}", UNKNOWN, word.text)) for word in inner]
            state = call.state.copy()
            state.many = True
            if inner:
                runner.invoke([*inner, Field(UNKNOWN)], state, None, site)
    return None


HANDLERS: dict[str, Handler] = {
    "xargs": xargs,
    "gxargs": xargs,
    "find": find,
    "gfind": find,
    "fd": fd,
    "fdfind": fd,
}
