"""Which files single programs change, delete or create: one row for each program.

Git itself says which files a git command would change, through commands that only read.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from toolcrib.approval.git_repositories import configures_filters
from toolcrib.approval.shell.judge import targets
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.paths import resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.state import ShellState
from toolcrib.config.environment import child_environment, environment
from toolcrib.undo.file_snapshot import How, UndoScope
from toolcrib.undo.python_files import CHANGES, files_of_code

HEADER = re.compile(r"^(?:---|\+\+\+) (?P<name>\"(?:[^\"\\]|\\.)*\"|[^\t\n]+)", re.MULTILINE)
MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (?P<name>.+)$", re.MULTILINE)
GIT_HEADER = re.compile(r"^diff --git (?P<old>\S+) (?P<new>\S+)$", re.MULTILINE)


def names_in_patch(text: str, strip: int | None) -> list[str]:
    """The paths in the headers of a unified diff, without `strip` leading parts; None tries the usual numbers."""
    written = [match["name"].strip('"').rstrip() for match in HEADER.finditer(text)]
    for match in GIT_HEADER.finditer(text):
        written += [match["old"], match["new"]]
    found: dict[str, None] = {}
    for name in written:
        if name == "/dev/null":
            continue
        for count in (strip,) if strip is not None else (0, 1):
            parts = name.split("/")
            # Without a number, `patch` also looks for the bare name.
            if len(parts) > count:
                found["/".join(parts[count:])] = None
        if strip is None:
            found[name.rpartition("/")[2]] = None
    found.update((match["name"], None) for match in MOVED.finditer(text))
    return list(found)


MAX_OVERLAID = 5_000
HIDDEN_IN_CODE = "not saved: which files the code changes is only known when it runs"
QUOTED = re.compile(r"""(["'])([^"'\n]{1,200})\1""")
HOST = re.compile(r"[\w.@-]+:(?!/\w:)|rsync://")


class TargetSink(Protocol):
    """Collects the files that programs change."""

    undo_scope: UndoScope
    is_here: bool

    def add(self, path: str, how: How = "path") -> None: ...

    def add_word(self, word: ExpandedWord, state: ShellState, how: How = "path") -> None: ...

    def add_path(self, path: str, state: ShellState, how: How = "path") -> None: ...

    def note(self, text: str) -> None: ...

    def text_of(self, path: str) -> str: ...


@dataclass(frozen=True, slots=True)
class TargetProgram:
    """One command, and where the files that it changes are collected."""

    watcher: TargetSink
    call: CommandCall
    input: str
    """The file that its standard input is redirected from, or ""."""

    @property
    def operands(self) -> list[ExpandedWord]:
        return self.call.arguments.operands

    def has(self, *names: str) -> bool:
        return self.call.arguments.has(*names)

    def add(self, words: Iterable[ExpandedWord], how: How = "path") -> None:
        for word in words:
            self.watcher.add_word(word, self.call.state, how)

    def path(self, word: ExpandedWord) -> str:
        return resolve(word, self.call.state)

    def kind(self, path: str) -> str:
        """What is at a path now, links followed."""
        files = self.watcher.undo_scope.files
        if UNKNOWN in path or not path.startswith("/"):
            return "missing"
        try:
            return files.look(files.real(path)).kind
        except OSError:
            return "missing"


def _remove(watch: TargetProgram) -> None:
    recursive = watch.has("-r", "-R", "--recursive") or watch.call.program not in ("rm", "grm")
    watch.add(watch.operands, "tree" if recursive else "path")


def _every_operand(watch: TargetProgram) -> None:
    watch.add(watch.operands)


def _access(watch: TargetProgram) -> None:
    """chmod and the like: the paths after the mode or owner."""
    skipped = 0 if watch.has("--reference") else 1
    words = [word for word in watch.operands if not re.fullmatch(r"-[rwxXst]+", word.text)]
    watch.add(words[skipped:], "modes" if watch.has("-R", "--recursive") else "path")


def _into(watch: TargetProgram) -> None:
    """cp, mv, install, ln and rsync: what they move away, and what they overwrite."""
    call, arguments = watch.call, watch.call.arguments
    if call.program == "install" and watch.has("-d", "--directory"):
        watch.add(watch.operands)
        return
    if watch.has("-n", "--dry-run") and call.program == "rsync":
        return
    directory = arguments.value("-t", "--target-directory")
    sources = list(watch.operands)
    if directory is None and call.program == "ln" and len(sources) == 1:
        directory = ExpandedWord(".")
    target = directory if directory is not None else sources.pop() if len(sources) > 1 else None
    takes_away = call.program in ("mv", "gmv") or watch.has("--remove-source-files")
    if takes_away:
        watch.add(sources, "tree")
    if target is None or HOST.match(target.text):
        return
    _over(watch, sources, target, in_folder=directory is not None)


def _over(watch: TargetProgram, sources: list[ExpandedWord], target: ExpandedWord, *, in_folder: bool) -> None:
    into = watch.path(target)
    as_name = watch.has("-T", "--no-target-directory")
    is_folder = not as_name and (in_folder or watch.kind(into) == "folder" or target.text.endswith("/"))
    if watch.call.program == "rsync":
        if watch.has("--delete", "--del", "--delete-before", "--delete-after", "--delete-during", "--delete-excluded"):
            watch.add([target], "tree")
        is_folder = True
    for source in sources:
        name = source.text.rstrip("/").rpartition("/")[2]
        contents = watch.call.program == "rsync" and source.text.endswith("/")
        if UNKNOWN in name or HOST.match(source.text):
            watch.add([target], "guess")
            watch.watcher.note(f"not saved: what comes from {source.text.replace(UNKNOWN, '…')} is only known later")
            continue
        environment = into if not is_folder or contents or name in (".", "..", "") else f"{into.rstrip('/')}/{name}"
        _overlay(watch, watch.path(source), environment, target)


def _overlay(watch: TargetProgram, source: str, environment: str, target: ExpandedWord) -> None:
    """A path, and everything below it that the source overwrites."""
    state = watch.call.state
    watch.watcher.add_path(environment, state)
    if watch.has("-b", "--backup"):
        for backup in (f"{environment}~", f"{environment}.~1~"):
            watch.watcher.add_path(backup, state)
    if watch.call.program in ("ln", "mv", "gmv") or watch.kind(source) != "folder":
        return
    left = [MAX_OVERLAID]
    for name in _below(watch, source, "", left):
        watch.watcher.add(f"{environment.rstrip('/')}/{name}")
    if left[0] <= 0:
        watch.add([target], "guess")


def _below(watch: TargetProgram, folder: str, prefix: str, left: list[int]) -> Iterable[str]:
    files = watch.watcher.undo_scope.files
    try:
        names = files.names(folder)
    except OSError:
        return
    for name in names:
        left[0] -= 1
        if left[0] <= 0:
            return
        yield f"{prefix}{name}"
        if files.look(f"{folder}/{name}").kind == "folder":
            yield from _below(watch, f"{folder}/{name}", f"{prefix}{name}/", left)


def _in_place(watch: TargetProgram) -> None:
    """sed, perl, ruby, awk and others, when they edit files in place."""
    program, words = watch.call.program, [word.text for word in watch.call.words]
    if program in ("sed", "gsed"):
        # A suffix or more letters may follow: `-i.bak`, `-ni`, `-Ei`.
        given = next((word for word in words if re.match(r"-[nrEsuz]*i|--in-place", word)), None)
        if given is None:
            return
        has_script = watch.has("-e", "-f", "--expression", "--file")
        files = watch.operands if has_script else watch.operands[1:]
        suffix = re.sub(r"^(?:-[nrEsuz]*i|--in-place=?)", "", given)
        _with_backup(watch, files, suffix)
    elif program in ("awk", "gawk"):
        if any(value.text == "inplace" for value in watch.call.arguments.values("-i", "--include")):
            watch.add(watch.operands)
        _code(watch)
    else:
        # The letter may be followed by the suffix of a copy: `-i.orig`, `-pi`.
        found = next((match for word in words if (match := re.match(r"-[a-hj-zA-Z]*i(.*)", word))), None)
        if found is not None:
            _with_backup(watch, watch.operands, found[1])
        else:
            _code(watch)


def _code(watch: TargetProgram) -> None:
    """Code in another language on the command line: the existing files that it names in quotes."""
    for word in watch.call.words:
        if CHANGES.search(word.text) or ">" in word.text:
            names = [ExpandedWord(match[2]) for match in QUOTED.finditer(word.text)]
            watch.add(name for name in names if watch.kind(watch.path(name)) == "file" or ">" in word.text)
            watch.watcher.note(HIDDEN_IN_CODE)


def _with_backup(watch: TargetProgram, files: list[ExpandedWord], suffix: str) -> None:
    watch.add(files)
    if suffix:
        watch.add(
            [
                word.with_text(word.text + suffix if "*" not in suffix else suffix.replace("*", word.text))
                for word in files
            ]
        )


def _compress(watch: TargetProgram) -> None:
    """gzip and the like replace one file with another."""
    if watch.has("-c", "--stdout", "-t", "--test", "-l", "--list"):
        return
    suffixes = {"gzip": ".gz", "gunzip": ".gz", "bzip2": ".bz2", "bunzip2": ".bz2", "xz": ".xz", "unxz": ".xz"}
    suffix = suffixes.get(watch.call.program, ".zst")
    for word in watch.operands:
        other = word.text.removesuffix(suffix) if word.text.endswith(suffix) else word.text + suffix
        watch.add([word, word.with_text(other)])


def _patch(watch: TargetProgram) -> None:
    if watch.has("--dry-run"):
        return
    arguments, state = watch.call.arguments, watch.call.state
    words = [word.text for word in watch.call.words]
    strip = next((int(match[1]) for word in words if (match := re.fullmatch(r"-p(\d+)", word))), None)
    given = arguments.value("-i", "--input")
    after = words.index("-i") + 1 if "-i" in words else 0
    source = watch.path(given) if given else resolve(words[after], state) if 0 < after < len(words) else watch.input
    stdin = watch.call.stdin
    text = (stdin.text or "" if stdin is not None else "") or watch.watcher.text_of(source)
    if watch.call.program == "git":
        strip = 1 if strip is None else strip
        text = "\n".join(watch.watcher.text_of(watch.path(word)) for word in watch.operands[1:]) or text
    else:
        watch.add(word for word in watch.operands[:1] if word.text not in words[after : after + 1] or not after)
    names = names_in_patch(text, strip)
    if not names and not watch.operands[:1]:
        watch.watcher.note("not saved: which files the patch changes is only known when it runs")
        watch.add([ExpandedWord(".")], "guess")
    for name in names:
        for path in (name, f"{name}.orig", f"{name}.rej"):
            watch.add([ExpandedWord(path)])


def _unpack(watch: TargetProgram) -> None:
    """tar and unzip: they write an archive, or extract one."""
    call = watch.call
    words = [word.text for word in call.words]
    if call.program in ("unzip", "7z", "7za"):
        folder = next((call.words[at + 1] for at, word in enumerate(words[:-1]) if word == "-d"), ExpandedWord("."))
    elif any(re.match(r"-?[a-zA-Z]*x", word) for word in words[:1]) or watch.has("-x", "--extract", "--get"):
        folder = call.arguments.value("-C", "--directory") or ExpandedWord(".")
    else:
        watch.add(targets(call))
        if watch.has("--remove-files"):
            watch.add(watch.operands, "tree")
        if re.match(r"[a-zA-Z]*c[a-zA-Z]*f", words[0] if words else "") and len(words) > 1:
            watch.add([ExpandedWord(words[1])])
        return
    watch.watcher.note("not saved: which files the archive overwrites is only known when it is unpacked")
    watch.add([folder], "guess")


def _zip(watch: TargetProgram) -> None:
    """The archive, and with `-m` the files moved into it."""
    for archive in watch.operands[:1]:
        watch.add([archive, archive.with_text(f"{archive.text}.zip")])
    if any(re.match(r"-[a-zA-Z]*m|--move", word.text) for word in watch.call.words):
        watch.add(watch.operands[1:], "tree")


def _download(watch: TargetProgram) -> None:
    watch.add(targets(watch.call))
    if watch.call.program == "wget" and not watch.has("-O", "--output-document"):
        remote = watch.operands
    else:
        remote = watch.operands if watch.has("-O", "--remote-name", "--remote-name-all") else []
    names = (word.text.partition("?")[0].rstrip("/").rpartition("/")[2] for word in remote)
    watch.add(ExpandedWord(name) for name in names if name and UNKNOWN not in name)


def _python(watch: TargetProgram) -> None:
    """Code on the command line, on standard input, or in a file of the workspace."""
    code = watch.call.arguments.value("-c")
    stdin = watch.call.stdin
    if code is not None:
        text = code.text
    elif watch.operands and watch.operands[0].text != "-":
        text = watch.watcher.text_of(watch.path(watch.operands[0]))
    else:
        text = (stdin.text or "" if stdin is not None else "") or watch.watcher.text_of(watch.input)
    state = watch.call.state
    files = files_of_code(text, state.home)
    watch.add(map(ExpandedWord, files.paths))
    watch.add(map(ExpandedWord, files.trees), "tree")
    watch.add(word for word in map(ExpandedWord, files.mentioned) if watch.kind(watch.path(word)) == "file")
    if files.hidden:
        watch.watcher.note(HIDDEN_IN_CODE)


def _git(watch: TargetProgram) -> None:
    arguments, state = watch.call.arguments, watch.call.state
    if not watch.operands or state.remote or state.container:
        return
    sub = watch.operands[0].text
    if sub == "apply":
        _patch(watch)
        return
    if sub == "mv":
        _git_move(watch)
        return
    environment = arguments.value("-C")
    call = GitCall(
        folder=watch.path(environment) if environment is not None else state.cwd,
        sub=sub,
        options=frozenset(name for name, _ in arguments.options),
        operands=tuple(word.text for word in watch.operands[1:]),
        source=next((value.text for value in arguments.values("-s", "--source")), ""),
    )
    try:
        if not watch.watcher.is_here or UNKNOWN in "".join((call.folder, *call.operands)):
            raise GitUnknown(f"what `git {sub}` changes is only known when it runs")
        for path in changed_by(call):
            watch.watcher.add(path)
    except GitUnknown as reason:
        watch.watcher.note(f"not saved: {reason}")
        watch.watcher.add(call.folder or watch.watcher.undo_scope.workspace, "guess")


def _git_move(watch: TargetProgram) -> None:
    *sources, target = watch.operands[1:] or [ExpandedWord(".")]
    watch.add(sources, "tree")
    _over(watch, sources, target, in_folder=False)


def _generic(watch: TargetProgram) -> None:
    """The known targets of a program, and what follows an output option."""
    words = watch.call.words
    watch.add(targets(watch.call))
    for number, word in enumerate(words):
        if word.text in ("-o", "--output", "-out") and number + 1 < len(words):
            watch.add([words[number + 1]])
        elif re.match(r"-o.|--output=", word.text):
            watch.add([word.with_text(re.sub(r"^-o|^--output=", "", word.text))])


def _rows() -> dict[str, Callable[[TargetProgram], None]]:
    rows: dict[str, Callable[[TargetProgram], None]] = {}
    for names, look in (
        ("rm grm unlink shred srm wipe trash trash-put", _remove),
        ("rmdir tee touch truncate fallocate sponge mkdir mkfifo dos2unix unix2dos sqlite3", _every_operand),
        ("nano vi vim nvim emacs ed ex", _every_operand),
        ("chmod chown chgrp gchmod", _access),
        ("cp gcp mv gmv install ln rsync scp ditto", _into),
        ("sed gsed perl perl5 ruby awk gawk", _in_place),
        ("node nodejs deno bun php lua", _code),
        ("zip", _zip),
        ("gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd", _compress),
        ("patch", _patch),
        ("tar bsdtar gtar unzip 7z 7za", _unpack),
        ("curl wget", _download),
        ("python python2 python3 pypy pypy3", _python),
        ("git", _git),
        ("dd sort gcc cc gpg openssl", _generic),
    ):
        rows.update(dict.fromkeys(names.split(), look))
    return rows


PROGRAMS = _rows()
CHANGING = PROGRAMS.keys() | name_set("find gfind xargs gxargs fd eval bash sh dash zsh ksh source exec busybox")
"""Words that make it worth while to read a command."""


ASK_SECONDS = 3.0
MAX_NAMES = 20_000
# Nothing is locked or refreshed, and no program that a repository configures is started.
READ_ONLY = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "diff.relative=false")
DIFF = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


@dataclass(frozen=True, slots=True)
class GitCall:
    """A git command: the folder that it works in, its sub-command, options and operands."""

    folder: str
    sub: str
    options: frozenset[str]
    operands: tuple[str, ...]
    """Those behind the sub-command."""

    source: str = ""
    """The commit that `--source` names."""

    def has(self, *names: str) -> bool:
        return not self.options.isdisjoint(names)


class GitUnknown(Exception):
    """It cannot be told what the command would change; the text says why."""


def changed_by(call: GitCall) -> list[str]:
    """The files that a command would change, delete or make, from the top of the repository on; absolute."""
    question = QUESTIONS.get(call.sub)
    if question is None:
        return []
    if any(word.startswith("-") for word in (*call.operands, call.source)):
        raise GitUnknown("a name begins like an option")
    top = _ask(call.folder, "rev-parse", "--show-toplevel")
    if not top:
        raise GitUnknown("git does not say where the repository begins")
    root = top[0].rstrip("\n")
    names = dict.fromkeys(question(call))
    return [f"{root}/{name}" for name in list(names)[:MAX_NAMES]]


def _reset(call: GitCall) -> list[str]:
    if not call.has("--hard", "--merge", "--keep"):
        return []
    return [*_changes(call), *_towards(call, call.operands[:1])]


def _checkout(call: GitCall) -> list[str]:
    """Either to another commit, or files out of one."""
    operands = list(call.operands)
    source: list[str] = []
    if operands and (call.has("-b", "-B", "--orphan", "-c", "-C") or _is_commit(call.folder, operands[0])):
        source = [operands.pop(0)]
    if operands:
        return _differing(call, source, operands)
    if call.has("-f", "--force", "-m", "--merge", "--discard-changes"):
        return [*_changes(call), *_towards(call, source)]
    return _towards(call, source)


def _restore(call: GitCall) -> list[str]:
    if call.has("--staged", "-S") and not call.has("--worktree", "-W"):
        return []
    return _differing(call, [call.source] if call.source else [], call.operands)


def _switch(call: GitCall) -> list[str]:
    changes = _changes(call) if call.has("-f", "--force", "--discard-changes", "-m", "--merge") else []
    return [*changes, *_towards(call, call.operands[:1])]


def _clean(call: GitCall) -> list[str]:
    if call.has("-n", "--dry-run"):
        return []
    which = ["--exclude-standard"]
    if call.has("-x"):
        which = []
    elif call.has("-X"):
        which = ["--ignored", "--exclude-standard"]
    # Like `git clean`, from the folder of the call downwards.
    return _ask(call.folder, "ls-files", "--others", "-z", "--full-name", *which, "--", *call.operands)


def _stash(call: GitCall) -> list[str]:
    verb = call.operands[0] if call.operands else "push"
    if verb in ("list", "show", "drop", "clear", "create", "store"):
        return []
    if verb in ("pop", "apply", "branch"):
        stash = call.operands[1] if len(call.operands) > 1 and verb != "branch" else "stash@{0}"
        kept = _ask(call.folder, *DIFF, f"{stash}^1", stash)
        untracked = _ask(call.folder, "ls-tree", "-r", "-z", "--name-only", "--full-tree", f"{stash}^3", may_fail=True)
        return [*kept, *untracked]
    everything = call.has("-u", "--include-untracked", "-a", "--all")
    others = _ask(call.folder, "ls-files", "--others", "-z", "--full-name", "--exclude-standard", ":/")
    return [*_changes(call), *(others if everything else [])]


def _towards_operand(call: GitCall) -> list[str]:
    """To another commit, by way of what is merged, picked or turned back."""
    if not call.operands:
        raise GitUnknown(f"what `git {call.sub}` changes is only known when it runs")
    names: list[str] = []
    for commit in call.operands:
        against = [f"{commit}^", commit] if call.sub in ("cherry-pick", "revert") else ["HEAD", commit]
        names += _ask(call.folder, *DIFF, *against)
    return names


def _removed_by_git(call: GitCall) -> list[str]:
    if call.has("--cached", "-n", "--dry-run"):
        return []
    return _ask(call.folder, "ls-files", "-z", "--full-name", "--", *call.operands)


def _unknown(call: GitCall) -> list[str]:
    raise GitUnknown(f"what `git {call.sub}` changes is only known when it runs")


QUESTIONS: dict[str, Callable[[GitCall], list[str]]] = {
    "reset": _reset,
    "checkout": _checkout,
    "restore": _restore,
    "switch": _switch,
    "clean": _clean,
    "stash": _stash,
    "merge": _towards_operand,
    "rebase": _towards_operand,
    "cherry-pick": _towards_operand,
    "revert": _towards_operand,
    "rm": _removed_by_git,
    "pull": _unknown,
    "am": _unknown,
    "filter-branch": _unknown,
    "checkout-index": _unknown,
    "read-tree": _unknown,
}


def _changes(call: GitCall) -> list[str]:
    """The files that differ from the last commit, those that are new in the index too."""
    return _ask(call.folder, *DIFF, "HEAD")


def _differing(call: GitCall, source: Sequence[str], pathspecs: Sequence[str]) -> list[str]:
    """The files among the pathspecs that are not as in a commit, in the last one or in the index."""
    sides = ([], ["HEAD"], list(source)) if source else ([], ["HEAD"])
    return [name for side in sides for name in _ask(call.folder, *DIFF, *side, "--", *pathspecs)]


def _towards(call: GitCall, target: Sequence[str]) -> list[str]:
    """The files that differ between the present commit and another."""
    return _ask(call.folder, *DIFF, "HEAD", target[0]) if target else []


def _is_commit(folder: str, name: str) -> bool:
    return bool(_ask(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", may_fail=True))


def _ask(folder: str, *words: str, may_fail: bool = False) -> list[str]:
    """The zero-separated answer of a read-only question to git."""
    if configures_filters(folder):
        # Filters run for any question about changed files, and no option switches all of them off.
        raise GitUnknown("the settings of the repository start programs")
    try:
        done = subprocess.run(
            ["git", *READ_ONLY, "-C", folder, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
            env={**child_environment(environment()), "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitUnknown(f"git cannot be asked ({error})") from error
    if done.returncode != 0:
        if may_fail:
            return []
        raise GitUnknown("git does not answer: " + " ".join(done.stderr.decode(errors="replace").split())[:200])
    return [name for name in done.stdout.decode(errors="surrogateescape").split("\0") if name]
