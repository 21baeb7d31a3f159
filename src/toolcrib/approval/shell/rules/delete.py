"""Deleting data that cannot be recovered."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import Origin, name_set
from toolcrib.approval.shell.paths import place, resolve, trimmed
from toolcrib.approval.shell.rules.base import CommandCall, DangerClass, Rule

DANGERS = (
    DangerClass(
        "recursive_delete", "recursive delete", "inside the workspace", r"\brm\s+(?:-\w+\s+)*-\w*[rR]", "rm -rf build"
    ),
)

CATASTROPHIC = ("root", "home", "system_root")
WHOLE_DIRECTORY = re.compile(r"(?:^|/)(?:\*|\.\*|\*\*|\.\[!\.\]\*)$")


def catastrophic_operand(call: CommandCall) -> bool:
    return any(
        place(resolve(each, call.state), call.state) in CATASTROPHIC for each in call.arguments.operands if each.text
    )


def empties_directory(call: CommandCall) -> bool:
    return any(each.glob and WHOLE_DIRECTORY.search(each.text) for each in call.arguments.operands)


def empties_system_directory(call: CommandCall) -> bool:
    return any(
        each.glob
        and WHOLE_DIRECTORY.search(each.text)
        and place(trimmed(resolve(each, call.state)), call.state) in CATASTROPHIC
        for each in call.arguments.operands
    )


NARROWING = name_set("-name -iname -path -regex -size -mtime -mmin -newer -user -perm -empty -ipath -wholename")
MATCHES_ALL = re.compile(r"[*.?/]*\*[*.?/]*|\.\*")


def is_find_from_root(call: CommandCall) -> bool:
    """`find / -delete` without a test that narrows it down."""
    texts = [word.text for word in call.words]
    roots = [word for word in call.words if not word.text.startswith("-")][:1]
    pairs = zip(texts, [*texts[1:], ""], strict=True)
    # A test that everything passes narrows nothing down.
    tests = [test for test, value in pairs if test in NARROWING and not MATCHES_ALL.fullmatch(value)]
    return bool(roots) and not tests and place(resolve(roots[0], call.state), call.state) in CATASTROPHIC


def deletes_listed_paths(call: CommandCall) -> bool:
    """True after `find | xargs`, or for paths that another command lists, unless `-i` asks about each."""
    if call.arguments.has("-i") and not call.arguments.has("-f", "--force"):
        return False
    return call.state.many or any(each.origin & Origin.LISTED and not each.known for each in call.arguments.operands)


def mirrors_onto_the_top(call: CommandCall) -> bool:
    target = call.arguments.operands[-1:]
    return mirrors_with_delete(call) and any(
        place(resolve(each, call.state), call.state) in CATASTROPHIC for each in target
    )


def mirrors_with_delete(call: CommandCall) -> bool:
    return any(name.startswith(("--del", "--remove-source")) for name, _ in call.arguments.options)


def moves_the_top(call: CommandCall) -> bool:
    return any(place(resolve(each, call.state), call.state) in CATASTROPHIC for each in call.arguments.operands[:-1])


def moves_to_nowhere(call: CommandCall) -> bool:
    return bool(call.arguments.operands) and call.arguments.operands[-1].text == "/dev/null"


def copies_nothing(call: CommandCall) -> bool:
    texts = [each.text for each in call.arguments.operands]
    if call.program == "dd":
        return "if=/dev/null" in texts and any(text.startswith("of=") for text in texts) and "conv=notrunc" not in texts
    return len(texts) > 1 and "/dev/null" in texts[:-1]


def empties_file(call: CommandCall) -> bool:
    size = call.arguments.value("-s", "--size")
    return size is not None and size.text in ("0", "=0", "0K", "0M") and bool(call.arguments.operands)


EVERY_LINE = re.compile(r"(?:1,\$)?d|\$!d|/\^?\.?\*?\$?/d")


RULES = (
    Rule(
        "sed gsed",
        reason="deletes every line of a file",
        flags="-i --in-place",
        where=lambda call: any(EVERY_LINE.fullmatch(word.text) for word in call.words[:4]),
        key="recursive_delete",
        yes="sed -i d notes.txt",
        no="sed -i 3d notes.txt",
    ),
    Rule(
        "rm grm srm unlink shred",
        reason="deletes every file that another command finds",
        where=deletes_listed_paths,
        yes="find . -name '*.o' | xargs rm",
        no="find . -name '*.o' | xargs ls",
    ),
    Rule(
        "truncate gtruncate",
        reason="discards the contents of a file",
        where=empties_file,
        yes="truncate -s 0 app.db",
        no="truncate -s 10M test.img",
    ),
    Rule(
        "rm grm srm",
        reason="deletes the root, home or a system directory",
        flags="-r -R --recursive",
        where=catastrophic_operand,
        severity="block",
        yes="rm -rf /etc",
        no="rm /tmp/x",
    ),
    Rule(
        "rm grm srm",
        reason="deletes directories and everything in them",
        flags="-r -R --recursive",
        yes="rm -r build",
        no="rm a.txt",
    ),
    Rule(
        "rm grm srm",
        reason="deletes everything in a system directory",
        where=empties_system_directory,
        severity="block",
        yes="rm -f /etc/*",
        no="rm -f ./out/*.o",
    ),
    Rule(
        "rm grm", reason="deletes everything in a directory", where=empties_directory, yes="rm -f *", no="rm -f *.pyc"
    ),
    Rule(
        "find gfind",
        reason="deletes everything under the root or a system directory",
        flags="-delete",
        where=is_find_from_root,
        severity="block",
        yes="find / -delete",
        no="find / -name x",
    ),
    Rule(
        "find gfind",
        reason="deletes every file that find matches",
        flags="-delete",
        yes="find . -name '*.log' -delete",
        no="find . -name '*.log'",
    ),
    Rule(
        "shred srm wipe",
        reason="destroys files beyond recovery",
        unless="--help --version",
        where=lambda call: bool(call.arguments.operands),
        yes="shred -u secrets.txt",
        no="shred --version",
    ),
    Rule(
        "rsync",
        reason="deletes files that the source does not have",
        where=mirrors_with_delete,
        unless="-n --dry-run",
        yes="rsync -a --delete src/ dst/",
        no="rsync -a src/ dst/",
    ),
    Rule(
        "rsync",
        reason="deletes files in the root, home or a system directory",
        where=mirrors_onto_the_top,
        unless="-n --dry-run",
        severity="block",
        yes="rsync -a --delete /tmp/empty/ /",
        no="rsync -a --delete --dry-run /tmp/empty/ build/",
    ),
    Rule(
        "tar bsdtar gtar",
        reason="deletes files after archiving them",
        flags="--remove-files",
        yes="tar cf a.tar --remove-files uploads",
        no="tar cf a.tar uploads",
    ),
    Rule(
        "zip",
        reason="deletes files after archiving them",
        flags="-m --move",
        yes="zip -rm a.zip x",
        no="zip -r a.zip x",
    ),
    Rule(
        "7z 7za 7zz 7zr",
        reason="deletes files after archiving them",
        where=lambda call: any(word.text == "-sdel" for word in call.words),
        yes="7z a -sdel a.7z x",
        no="7z a a.7z x",
    ),
    Rule(
        "rclone",
        "purge|delete|sync|rmdirs|deletefile",
        reason="deletes remote files",
        unless="--dry-run -n",
        yes="rclone purge remote:x",
        no="rclone ls remote:x",
    ),
    Rule("gio", "trash", reason="empties the trash", flags="--empty", yes="gio trash --empty", no="gio trash --list"),
    Rule("trash-empty rimraf del-cli", reason="deletes permanently", yes="rimraf dist", no="rimraf --help"),
    Rule(
        "mv",
        reason="moves the root, home or a system directory away",
        where=moves_the_top,
        severity="block",
        yes="mv /etc /tmp/x",
        no="mv a b",
    ),
    Rule(
        "cp dd install",
        reason="discards the contents of a file",
        where=copies_nothing,
        yes="cp /dev/null app.log",
        no="cp a.log b.log",
    ),
    Rule("mv", reason="discards files", where=moves_to_nowhere, yes="mv a /dev/null", no="mv a b"),
    Rule(
        "busybox toybox",
        "rm",
        reason="deletes directories and everything in them",
        flags="-r -R",
        yes="busybox rm -r x",
        no="busybox ls",
    ),
    Rule(
        "unlink rmdir",
        reason="removes a system directory",
        where=catastrophic_operand,
        yes="rmdir /etc",
        no="rmdir build",
    ),
    Rule(
        "btrfs",
        "subvolume|su|sub delete|del",
        reason="deletes a subvolume",
        yes="btrfs subvolume delete /mnt/x",
        no="btrfs subvolume list /",
    ),
    Rule(
        "restic borg duplicity tarsnap",
        "forget|prune|delete|compact|key",
        reason="deletes backups",
        unless="--dry-run -n",
        yes="restic forget --prune --keep-last 1",
        no="restic snapshots",
    ),
    Rule(
        "tmutil",
        "delete|deletelocalsnapshots|disable",
        reason="deletes backups",
        yes="tmutil delete /x",
        no="tmutil status",
    ),
    Rule(
        "snapper timeshift",
        reason="deletes snapshots",
        where=lambda call: any(word.text in ("delete", "--delete", "--delete-all") for word in call.words),
        yes="snapper delete 5",
        no="snapper list",
    ),
)
