"""Protected paths among a command's arguments: they need approval unless the program is known to only read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolcrib.approval.paths import is_inside
from toolcrib.approval.shell.captures import judge_capture
from toolcrib.approval.shell.command_options import HALF_KNOWN, TEXTS, judge_options, judge_unlisted
from toolcrib.approval.shell.handlers.wrappers import RUNNERS, WRAPPERS
from toolcrib.approval.shell.local_services import judge_connection
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, name_set
from toolcrib.approval.shell.option_table import READS_OPTIONS
from toolcrib.approval.shell.options import parse_arguments
from toolcrib.approval.shell.paths import DISK, is_protected, place, reached, resolve
from toolcrib.approval.shell.planted_code import EDITS, RUN_LATER, judge_edited
from toolcrib.approval.shell.rules import BY_PROGRAM
from toolcrib.approval.shell.rules.base import SPECS, CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.state import ShellState
from toolcrib.core.git_metadata import EXECUTED_PATH
from toolcrib.core.own_commands import OWN_PROGRAMS, kind_of

READERS = name_set(
    # They print, compare, count or look for something.
    "cat tac less more most head tail bat batcat nl strings xxd od hexdump hexyl base64 base32 grep "
    "egrep fgrep zgrep rg ag "
    "ack awk gawk mawk nawk sed gsed cut sort gsort uniq jq yq wc stat file ls dir vdir eza exa lsd tree "
    "du df diff sdiff "
    "colordiff cmp comm paste join column fold pr fmt expand unexpand rev tr md5 md5sum sha1sum sha224sum sha256sum "
    "sha384sum sha512sum b2sum cksum sum shasum readlink realpath basename dirname test [ [[ (( which "
    "type whereis locate "
    "find gfind fd fdfind lsattr getfacl namei shellcheck lsof fuser getent id echo printf print say true false "
    ": cd pushd popd dirs pwd export declare typeset local readonly unset set shift read mapfile "
    "readarray alias unalias "
    "source . eval trap command builtin hash complete compgen bind enable exit return wait jobs let test "
    "history man info "
    "tldr help open xdg-open code codium subl zed gnome-open explorer.exe glow mdcat highlight "
    "pygmentize tokei cloc scc "
    "xargs gxargs time gpg gpg2 age ssh scp sftp rsync ssh-add ssh-keygen ssh-keyscan ssh-copy-id "
    "ssh-agent sshfs mosh "
    # Other rules judge what they write.
    "cp mv ln install tee touch truncate rm unlink shred mkdir rmdir dd chmod chown chgrp setfacl chattr "
    "sponge sudoedit "
    "gcp gmv ditto nano vi vim nvim emacs ed ex srm wipe mktemp tar bsdtar gtar zip "
    "su crontab systemctl launchctl journalctl loginctl"
)
"""Programs that leave the files they are given as they are, or whose writes other rules judge."""
WRITES_WITH: dict[str, frozenset[str]] = {
    **dict.fromkeys(("sort", "gsort"), name_set("-o --output")),
    **dict.fromkeys(("less", "more"), name_set("-o -O --log-file --LOG-FILE")),
    **dict.fromkeys(("yq", "shfmt", "jq"), name_set("-i --inplace --in-place -w --write")),
    **dict.fromkeys(("awk", "gawk"), name_set("-o --pretty-print -p --profile -d --dump-variables -i --include")),
    **dict.fromkeys(("base64", "tree", "bat", "gpg", "gpg2", "age", "xxd"), name_set("-o --output")),
    **dict.fromkeys(("time", "strace", "ltrace", "perf"), name_set("-o --output")),
    **dict.fromkeys(("find", "gfind"), name_set("-fprint -fprint0 -fprintf -fls")),
    "ssh": name_set("-E"),
    "valgrind": name_set("--log-file --xml-file --log-fd --trace-children-skip"),
    "script": name_set("-O --log-out -I --log-in -B --log-io -T --log-timing"),
    "rsync": name_set("--log-file --backup-dir --partial-dir -T --temp-dir"),
    "diff": name_set("--output"),
    **dict.fromkeys(("tar", "bsdtar", "gtar"), name_set("-C --directory --one-top-level --index-file")),
    "zip": name_set("-O --out -b --temp-path -lf --logfile-path"),
    "systemd-run": name_set("--working-directory"),
}
"""Options with which a reader or a wrapper writes a file."""
WRITES_OPERAND = {"sftp": 1, "uniq": 1, "xxd": 1, "script": 0, "zip": 0, "logsave": 0, "setlock": 0}
"""The first operand that a reader writes."""
IN_PLACE = re.compile(r"(?:-[a-zA-Z]*[iw]|--in-?place|--write|inplace)")
EDITS_IN_PLACE = name_set("yq jq gawk awk shfmt")
INTERPRETERS = name_set(
    "sh bash dash zsh ksh mksh ash fish python python2 python3 pypy pypy3 perl ruby node nodejs php lua "
    "luajit Rscript deno "
    "bun tsx ts-node java tclsh expect osascript pwsh"
)
"""Programs whose first operand is a script to read and run."""
GIT_READS = name_set(
    "status log diff show add commit branch tag blame grep ls-files ls-tree ls-remote rev-parse rev-list "
    "describe shortlog "
    "reflog cat-file check-ignore check-attr remote fetch config var help version diff-tree diff-index "
    "name-rev merge-base "
    "count-objects fsck verify-pack whatchanged range-diff cherry for-each-ref symbolic-ref hash-object push"
)
UNPACKERS = name_set("tar bsdtar gtar unzip 7z 7za 7zz cpio patch unar unrar ar pax unsquashfs restic borg")
INTO_FOLDER = name_set("-C --directory -d -D --output-directory --target -dest")
MAX_LOOKED_AT = 400


def judge_words(runner: Runner, call: CommandCall, site: CommandLocation, *, handled: bool) -> None:
    """Judge the words of a command beyond its rules: what they run, what they may change, and what nobody knows."""
    judge_options(runner, call, site)
    judge_connection(runner, call, site)
    judge_capture(runner, call, site)
    judge_protected(runner, call, site)
    if call.program in TEX and any(TEX_RUNS.search(word.text) for word in call.words):
        runner.report("unknown_code", f"makes {call.program} run a command", site)
    if call.program in EDITS or (call.program not in READERS and call.program not in TEXTS and call.program != "git"):
        judge_edited(runner, call, site)
    if call.state.fetched and call.program in BUILDS:
        judge_fresh_clone(runner, call, site)
    if call.program in STARTS_WITH_FILES and not CONFIG_FOLDERS.isdisjoint(call.state.variables):
        judge_start_files(runner, call, site)
    if (not handled or call.program in HALF_KNOWN) and call.program not in READERS:
        judge_unlisted(runner, call, site)


TEX = name_set("tex latex pdftex pdflatex xetex xelatex luatex lualatex context latexmk bibtex")
TEX_RUNS = re.compile(r"write18|\\input\s*\{?\s*\"?\||\\directlua|\\openout|ShellEscape")
BUILDS = name_set(
    "make gmake cmake ninja pip pip3 uv npm pnpm yarn bun cargo go python python3 bash sh node ruby rake mvn "
    "gradle just task "
    "docker composer bundle gem poetry tox nox pytest"
)


def judge_fresh_clone(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report a program that builds or runs what was just cloned from a host that few people use."""
    places = [call.state.cwd, *(resolve(word, call.state) for word in call.words[:20] if word.text[:1] != "-")]
    for folder in call.state.fetched:
        unusual = call.state.aliases.get("fetched " + folder)
        if unusual and any(path == folder or path.startswith(folder + "/") for path in places):
            runner.report("remote_code", f"builds or runs what was just cloned from {unusual[:80]}", site)
            return


def judge_start_files(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report a program that is made to read its start-up files from a folder where anybody may have put them."""
    logs_in = call.program == "zsh" or any(
        re.fullmatch(r"-[A-Za-z]*[il][A-Za-z]*|--login", word.text) for word in call.words[:4]
    )
    for name in CONFIG_FOLDERS:
        folder = call.state.variables.get(name, [ExpandedWord("")])[0]
        path = reached(folder, call.state) if folder.text else ""
        if not path or path == call.state.home:
            continue
        if call.program in SHELLS_THAT_START and not logs_in:
            continue
        if call.program in SHELLS_THAT_START or place(f"{path}/x", call.state) == "temporary":
            shown = path.replace(UNKNOWN, "…")
            runner.report("unknown_code", f"makes {call.program} run its start-up files from {shown}", site)


CONFIG_FOLDERS = name_set("HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_CONFIG_DIRS")
SHELLS_THAT_START = name_set("sh bash zsh ksh dash fish csh tcsh")
STARTS_WITH_FILES = SHELLS_THAT_START | name_set(
    "git vim nvim vi emacs tmux screen psql mysql sqlite3 gdb lldb less ssh scp sftp rsync mutt irb pry "
    "ipython python python3 R Rscript "
    "direnv mise hg tig lazygit"
)
"""Programs that run commands from files in the home or the config folder when they start."""


def judge_protected(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report protected paths that a command may write, because its program is not known to only read them."""
    for word in written_words(call):
        for text in named(word.text, call.state.home):
            # Many programs expand a tilde that the shell leaves alone, as in `--output=~/x`.
            text = call.state.home + text[1:] if text.startswith("~/") else text
            path = reached(text, call.state) if text else ""
            if DISK.match(path) and not knows_disks(call.program):
                runner.report("disk_write", f"gives the disk {path} to {call.program}", site, paths=(path,))
                return
            if may_not_change(path, call.state) or (call.program in MAKES_PROGRAMS and makes_programs(call, path)):
                shown = path.replace(UNKNOWN, "…")
                reason = f"{call.program} may change {shown}, which the user's programs run or read commands from"
                runner.report("system_config", reason, site, paths=(path,))
                return
    state = call.state
    if state.cwd != state.start and call.program not in READERS and in_protected_folder(call):
        reason = f"runs {call.program} in {state.cwd}, which the user's programs run or read commands from"
        runner.report("system_config", reason, site, paths=(state.cwd,))
    if call.program in UNPACKERS and unpacks_anywhere(call):
        runner.report("system_config", "unpacks files to wherever the archive says", site)
    if copies_over_home(call) or (call.program in UNPACKERS and unpacks_over_home(call)):
        does = "unpacks" if call.program in UNPACKERS else "copies files of any name"
        runner.report(
            "system_config",
            f"{does} into the home folder, where it may replace start-up files",
            site,
            paths=(state.home,),
        )


def knows_disks(program: str) -> bool:
    """True for a program that only shows what a disk is, or whose rules say when it changes one."""
    rules = BY_PROGRAM.get(program) or BY_PROGRAM.get(program.partition(".")[0] + ".*") or ()
    return program in LOOKS_AT_DISKS or any(rule.key in ("disk_write", "format") for rule in rules)


LOOKS_AT_DISKS = name_set(
    "lsblk blkid smartctl udevadm findmnt lsscsi sg_inq sg_vpd hwinfo iostat blockdev partx ioping fio testdisk "
    "photorec filefrag dumpe2fs e2label xfs_info btrfs-find-root ntfsinfo lvmdiskscan"
)


MAKES_PROGRAMS = name_set("python python3 pypy3 virtualenv uv conda mamba micromamba")


def makes_programs(call: CommandCall, path: str) -> bool:
    """True for an environment that is made in a folder whose programs the user starts: it replaces `bin`."""
    texts = [word.text for word in call.words[:3]]
    makes = call.program == "virtualenv" or "venv" in texts or "create" in texts
    return makes and may_not_change(f"{path}/bin/x", call.state)


def may_not_change(path: str, state: ShellState) -> bool:
    if RUN_LATER.search(path) or EXECUTED_PATH.search(path):
        return True
    # Whoever works in a folder of start-up files means them.
    at_work = is_inside(path, state.start) and is_protected(state.start, state)
    return not at_work and is_protected(path, state)


def in_protected_folder(call: CommandCall) -> bool:
    if call.program in WRAPPERS or (call.program == "git" and git_only_reads(call)):
        return False
    return call.state.cwd.startswith("/") and is_protected(call.state.cwd, call.state)


def written_words(call: CommandCall) -> Iterator[ExpandedWord]:
    """The words of a command that may name a file it writes."""
    program, words = call.program, call.words[:MAX_LOOKED_AT]
    if not any(could_name(word.text, call.state) for word in words):
        return
    options = WRITES_WITH.get(program)
    if program in EDITS_IN_PLACE and any(IN_PLACE.fullmatch(word.text) for word in words):
        yield from call.arguments.operands
    elif program in READERS or program in WRAPPERS:
        if options is not None or program in WRITES_OPERAND:
            yield from written_by_reader(call, options or frozenset())
    elif program == "git":
        if not git_only_reads(call):
            yield from others(words)
    elif program in RUNNERS and call.arguments.operands and RUNNERS[program].match(call.arguments.operands[0].text):
        return
    elif program in INTERPRETERS:
        yield from after_script(call)
    elif program not in OWN_PROGRAMS or kind_of([word.text for word in call.words]) != "reads":
        yield from others(words)


def could_name(text: str, state: ShellState) -> bool:
    """A quick look: protected files are in the home folder, and their names start with a dot or are folders' names."""
    if state.links or (state.view is not None and text[:1] != "-"):
        return True
    return "/" in text or text[:1] in ".~" or text.endswith(".pth") or state.cwd.startswith(state.home)


def written_by_reader(call: CommandCall, options: frozenset[str]) -> Iterator[ExpandedWord]:
    known = SPECS.get(call.program)
    values = options.union(known.values) if known is not None else options
    if call.program in WRAPPERS:
        values |= WRAPPERS[call.program].values
    if call.program in ("tar", "bsdtar", "gtar") and not unpacks(call):
        options = options - INTO_FOLDER
    single_dash = call.program in ("find", "gfind")
    arguments = parse_arguments(call.words, values, single_dash=single_dash, stop_early=call.program in WRAPPERS)
    yield from arguments.values(*options)
    first = WRITES_OPERAND.get(call.program)
    if first is not None:
        end = None if call.program in ("uniq", "xxd", "sftp") else first + 1
        yield from (word for word in arguments.operands[first:end])


def after_script(call: CommandCall) -> Iterator[ExpandedWord]:
    """The arguments of a script; the script itself is only read."""
    known = SPECS.get(call.program)
    operands = parse_arguments(call.words, known.values if known is not None else frozenset(), stop_early=True).operands
    inline = any(re.fullmatch(r"-[A-Za-z]*[cer]|-m|--eval", word.text) for word in call.words[:4])
    yield from others(operands if inline else operands[1:])


def others(words: list[ExpandedWord]) -> Iterator[ExpandedWord]:
    """The words that are not values of options for reading."""
    before = ""
    for word in words:
        if before not in READS_OPTIONS and word.text.partition("=")[0] not in READS_OPTIONS:
            yield word
        before = word.text


def named(text: str, home: str) -> Iterator[str]:
    """The parts of a word that may name a file: `file`, `--output=file`, `-ofile`, `key=file`, and home paths in it."""
    if len(text) > MAX_WORD:
        return
    if text[:1] != "-":
        yield text
    elif text[:2] != "--":
        yield text[2:]
    if "=" in text:
        yield text.partition("=")[2].lstrip("@<>")
    device = text.find("/dev/", 1)
    if device > 0 and text[device - 1] in "=,:":
        yield DELIMITER.split(text[device:], maxsplit=1)[0]
    at = text.find(home + "/", 1)
    while at > 0:
        yield DELIMITER.split(text[at:], maxsplit=1)[0]
        at = text.find(home + "/", at + len(home))


DELIMITER = re.compile(r"[\s,:;'\"|<>()]")
MAX_WORD = 4096


def git_only_reads(call: CommandCall) -> bool:
    operands = call.arguments.operands
    if operands and operands[0].text not in GIT_READS:
        return False
    texts = [word.text for word in call.words]
    return not any(GIT_OUTPUT.match(text) for text in texts) and not (
        operands and operands[0].text == "config" and sets_in_file(texts)
    )


GIT_OUTPUT = re.compile(r"--out(?:p|pu|put)?(?:=|$)")
"""What `git log`, `diff` and others write their output with."""
READS_SETTINGS = re.compile(r"--get.*|-l|--list|get|list")


def sets_in_file(texts: list[str]) -> bool:
    """True for `git config` that changes a file which it names."""
    files = [text for text in texts if re.match(r"-f|--file(?:=|$)", text)]
    if not files or any(READS_SETTINGS.fullmatch(text) for text in texts):
        return False
    names = [text for text in texts[texts.index("config") + 1 :] if text[:1] != "-"]
    # A key alone asks for its value; the file is one more word if it is not part of its option.
    return len(names) > 1 + sum(text in ("-f", "--file") for text in files) or any(
        text.startswith(("--unset", "--re", "-e", "--edit")) for text in texts
    )


def unpacks(call: CommandCall) -> bool:
    return call.arguments.has("-x", "--extract", "--get") or any(
        re.fullmatch(r"[a-zA-Z]*x[a-zA-Z]*", word.text) for word in call.words[:1]
    )


def unpacks_over_home(call: CommandCall) -> bool:
    """True for an archive or a patch that is unpacked in the home folder itself."""
    state = call.state
    if call.program in ("tar", "bsdtar", "gtar") and not unpacks(call):
        return False
    if call.arguments.has("-l", "-t", "--list", "--dry-run", "-p") and call.program != "patch":
        return False
    if call.program in ("restic", "borg") and not any(word.text in ("restore", "extract") for word in call.words):
        return False
    texts = [word.text for word in call.words]
    given = [texts[at + 1] for at, text in enumerate(texts[:-1]) if text in INTO_FOLDER]
    given += [text[2:] for text in texts if text.startswith("-o") and call.program.startswith("7z")]
    folders = [resolve(each, state) for each in given if each]
    if not folders:
        return state.cwd == state.home and state.start != state.home
    return any(folder == state.home + end for folder in folders for end in HOLDS_PROTECTED) or any(
        place(folder, state) in ("root", "system_root", "system", "home") for folder in folders
    )


def unpacks_anywhere(call: CommandCall) -> bool:
    """True for an archive whose absolute paths are kept."""
    if call.program in ("tar", "bsdtar", "gtar"):
        absolute = call.arguments.has("-P", "--absolute-names", "--absolute-paths") or any(
            re.fullmatch(r"[a-zA-Z]*P[a-zA-Z]*", word.text) for word in call.words[:1]
        )
        return absolute and unpacks(call)
    if call.program in ("cpio", "pax"):
        extracts = any(re.fullmatch(r"-[a-zA-Z]*[ir][a-zA-Z]*|--extract", word.text) for word in call.words)
        return extracts and any(word.text.startswith(("--absolute", "--no-preserve-root_")) for word in call.words)
    return False


def copies_over_home(call: CommandCall) -> bool:
    """True for a copy of everything in a folder, hidden files included, over the home folder itself."""
    if call.program not in COPIERS or len(call.arguments.operands) < 2:
        return False
    *sources, target = call.arguments.operands
    holds = [call.state.home + end for end in HOLDS_PROTECTED]
    if resolve(target, call.state) not in holds:
        return False
    everything = HIDDEN_TOO if call.program != "rsync" else HIDDEN_TOO_FOR_RSYNC
    return any(everything.search(each.text) and resolve(each, call.state) not in holds for each in sources)


COPIERS = name_set("cp gcp mv gmv rsync ditto")
HIDDEN_TOO = re.compile(r"(?:^|/)\.(?:\*.*|\[.*|/*)$")
HIDDEN_TOO_FOR_RSYNC = re.compile(r"(?:^|/)\.(?:\*.*|\[.*|/*)$|/$")
HOLDS_PROTECTED = ("", "/.config", "/.local", "/.local/share", "/.cargo")
"""The home folder and those in it that are not protected themselves, but hold what is."""
