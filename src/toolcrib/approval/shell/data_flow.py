"""Judges one command by where its data comes from and goes: secrets that it reads, shows or sends."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import option_values
from toolcrib.approval.shell.paths import (
    DATABASE_FILE,
    is_own_record,
    is_personal,
    is_private,
    is_secret,
    reached,
    resolve,
)
from toolcrib.approval.shell.rules import BY_PROGRAM
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.secret_files import is_workspace, secret_in_text, secrets_by_pattern, walked_secret
from toolcrib.approval.shell.secret_variables import (
    INTERPRETERS,
    LOCAL_HOST,
    URL_HOST,
    USES_NETWORK,
    code_of,
    leaked_variable,
)

SENDERS = name_set(
    "curl wget nc ncat netcat socat ssh scp sftp rsync ftp tftp lftp mail mailx mutt sendmail "
    "swaks telnet http https xh rclone s3cmd gsutil "
    "dig nslookup host ping openssl aws az gcloud azcopy croc wormhole magic-wormhole transfer "
    "w3m lynx links elinks slack telegram-send signal-cli apprise "
    "bore gh ntfy slack-cli logger restic duplicity magick mc kubectl docker"
)
RAW_SENDERS = name_set("curl wget nc ncat netcat socat telnet http https xh openssl ftp tftp lftp")
RESOLVERS = name_set("dig nslookup host ping ping6 drill kdig resolvectl getent traceroute")
LOOKED_UP = re.compile(UNKNOWN + r"[\w.-]*\.[A-Za-z]{2,}")
DATA = Origin.PROGRAM | Origin.FILE | Origin.DECODED | Origin.SECRET | Origin.PRIVATE
HERE = re.compile(r"(?:^|//|@)(?:localhost|127\.|0\.0\.0\.0|\[?::1\b|host\.docker\.internal)|^/")
REVEALERS = name_set(
    "cat tac less more head tail bat nl strings xxd od hexdump base64 base32 grep egrep fgrep "
    "rg ag ack awk gawk sed cut sort uniq jq yq cp mv "
    "tar zip 7z gzip bzip2 xz dd diff comm paste tee rsync scp sftp cpio ln pr fold column "
    "view most openssl gpg age python python3 perl ruby node pbcopy xclip"
)
LOOKERS = name_set(
    "ls stat wc file test [ [[ du chmod chown chgrp getent rm find fd md5sum sha1sum sha256sum sha512sum b2sum cksum "
    "cmp id echo printf cd pushd mkdir rmdir touch basename dirname realpath readlink exa eza tree lsattr getfacl "
    "which true : set export declare local readonly typeset read unset shift"
)
KEY_USERS = name_set(
    "ssh scp sftp ssh-add ssh-keygen ssh-copy-id ssh-keyscan git kubectl oc helm k9s aws gcloud az docker podman "
    "terraform tofu ansible ansible-playbook gpg gpg2 source . sudo env xargs npm pnpm yarn pip twine psql mysql mosh "
    "rsync gh glab vault step certbot nginx apachectl kubectx kubens stern skaffold minikube kind tar zip cp mv"
)
"""Programs that use a key or a settings file with one without showing it, or that are judged on their own."""
SYSTEM_SECRET = re.compile(r"/etc/g?shadow|/proc/[^/]+/(?:environ|mem)$")
GIT_READERS = name_set("diff hash-object add apply am grep archive update-index stash blame")
TAKES_NAMES = name_set("cpio pax afio tar zip rsync")
QUIET = frozenset({"-l", "-c", "-q", "-L", "-lr", "-rl"})


GIT_PACKS = name_set("archive bundle")
PACKERS = name_set("cp mv gcp gmv install rsync tar gtar bsdtar zip 7z 7za gzip bzip2 xz zstd gpg openssl age")


def remember_copies(call: CommandCall) -> None:
    """Note that files which this command makes hold whole folders, or files of the user from outside the workspace."""
    operands = call.arguments.operands
    archive = packed_into(call)
    if archive is not None:
        call.state.files[reached(archive, call.state)] = StreamData(None, Origin.FILE | Origin.ARCHIVE)
    if any(is_personal(reached(word, call.state), call.state) for word in operands):
        named = call.arguments.value("-f", "--file", "-o", "--output")
        for word in (*operands[:2], *operands[-1:], *([named] if named is not None else [])):
            path = reached(word, call.state)
            if word.text and not is_personal(path, call.state):
                call.state.files[path] = StreamData(None, Origin.FILE | Origin.PERSONAL)


def packed_into(call: CommandCall) -> ExpandedWord | None:
    """The file that this command packs others into."""
    operands, texts = call.arguments.operands, [word.text for word in call.words[:3]]
    if call.program in ("tar", "gtar", "bsdtar"):
        if not any(re.fullmatch(r"-?[A-Za-z]*c[A-Za-z]*|--create", text) for text in texts[:2]):
            return None
        bundled = operands[1] if texts[:1] and "f" in texts[0] and texts[0][0] != "-" and len(operands) > 1 else None
        return bundled or call.arguments.value("-f", "--file")
    if call.program == "git":
        bundle = operands[2:3] if texts[:2] == ["bundle", "create"] else []
        return call.arguments.value("-o", "--output") if texts[:1] == ["archive"] else bundle[0] if bundle else None
    if call.program in ("zip", "7z", "7za") and operands:
        operands = operands[1:] if operands[0].text == "a" else operands
        return operands[0] if operands else None
    return None


def judge_flow(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report secrets that this command prints or sends."""
    if call.program in PACKERS or (call.program == "git" and call.words and call.words[0].text in GIT_PACKS):
        remember_copies(call)
    origin = call.stdin.origin if call.stdin is not None else 0
    for word in call.words:
        origin |= word.origin
    secrets = secret_paths(call)
    walked = walked_secret(call)
    if call.program in SENDERS and sends(call):
        sent = tuple(dict.fromkeys((*secrets, *([walked] if walked else []))))
        if origin & (Origin.SECRET | Origin.PRIVATE | Origin.SECRET_FILE) or sent or names_secret_in_input(call):
            runner.report("exfiltration", "sends a secret over the network", site, paths=sent)
            return
        judge_personal(runner, call, site)
    elif call.program not in BY_PROGRAM and says_it_sends(call):
        judge_personal(runner, call, site)
        if any(word.origin & (Origin.SECRET | Origin.PRIVATE) for word in call.words):
            runner.report("exfiltration", "may send a secret over the network", site)
    if call.program in BULK_SENDERS:
        judge_bulk(runner, call, site)
    piped = call.stdin.origin if call.program in RAW_SENDERS and call.stdin is not None else 0
    if piped & Origin.MACHINE and not any(HERE.search(word.text) for word in call.words):
        runner.report("exfiltration", "sends what programs tell about this machine over the network", site)
    if call.program in RESOLVERS and any(
        word.origin & DATA and (LOOKED_UP.search(word.text) or before.text == "-p")
        for before, word in zip([*call.words[:1], *call.words], call.words, strict=False)
    ):
        runner.report("exfiltration", "sends data in the name that it looks up", site)
    if call.program in INTERPRETERS and (by_code := sent_by_code(call)):
        runner.report("exfiltration", by_code, site)
    may_leak = origin & Origin.KEY or call.program in INTERPRETERS or call.program == "ssh"
    variable = leaked_variable(call) if may_leak else ""
    if variable:
        runner.report("exfiltration", f"sends {variable} over the network", site)
        return
    system = tuple(path for path in secrets if SYSTEM_SECRET.match(path))
    if system and call.program not in REVEALERS and call.program not in LOOKERS:
        runner.report("credential", f"reads the secret {system[0]}", site, paths=system)
    elsewhere = secrets and any(path[:1] == "/" and not is_workspace(path, call.state) for path in secrets)
    if not elsewhere and not walked and (hidden := secret_in_text(call)):
        runner.report("credential", f"may read the secret {hidden}", site, paths=(hidden,))
    if walked:
        shown = walked.replace(UNKNOWN, "…")
        runner.report("credential", f"reads every file in {shown}, which holds secrets", site, paths=(walked,))
    elif call.program in REVEALERS and not lists_names_only(call):
        judge_revealed(runner, call, secrets, site)
    elif call.program not in LOOKERS and not uses_keys(call):
        judge_named(runner, call, secrets, site)
    else:
        judge_shown(runner, call, site)


SOCKETS = name_set("nc ncat netcat socat telnet websocat openssl")
"""Programs that connect to any address, without a login and without saying what they send."""
MAILERS = name_set("mail mailx mutt sendmail swaks s-nail")
BULK_SENDERS = RAW_SENDERS | SOCKETS | MAILERS
THIS_MACHINE = re.compile(r"(?:^|//|@|:)(?:localhost\b|127\.|0\.0\.0\.0|\[?::1\b|host\.docker\.internal)")
SOCKET_FILE = re.compile(r"(?i)(?:file|open|gopen):|/|\./")
SOCKET_HOST = re.compile(r"(?i)(?:tcp|udp|ssl|openssl|sctp|proxy|socks)[46]?[a-z-]*:")


MANY = re.compile(r"\*|\{[^}]*,[^}]*\}")
"""A wildcard that a loop passes on, or that curl reads itself."""
DROPS = re.compile(
    r"(?:^|//|\.)(?:transfer\.sh|0x0\.st|file\.io|webhook\.site|pastebin\.com|paste\.rs|ix\.io|sprunge\.us|termbin\.com|temp\.sh"
    r"|bashupload\.com|gofile\.io|catbox\.moe|dpaste\.\w+|hastebin\.com|requestbin\.\w+|requestcatcher\.com|pipedream\.net"
    r"|beeceptor\.com|oast\.\w+|interact\.sh|burpcollaborator\.net|ngrok(?:-free)?\.\w+|trycloudflare\.com|loca\.lt|serveo\.net"
    r"|anonfiles\.com|wetransfer\.com|filebin\.net|send\.vis\.ee|tmpfiles\.org|clbin\.com)(?:[:/?]|$)"
)
"""Hosts that keep what anybody sends them without a login, or show it to whoever waits there."""


def judge_bulk(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report whole folders and databases that go to a host without a login, and any file that goes to a socket."""
    if any(THIS_MACHINE.search(word.text) for word in call.words):
        return
    origin = call.stdin.origin if call.stdin is not None else 0
    for word in uploaded(call):
        path = reached(word.text, call.state)
        known = call.state.files.get(path)
        listed = UNKNOWN in path and (word.origin & Origin.LISTED or call.state.many)
        origin |= Origin.ARCHIVE if word.glob or listed or MANY.search(path) else 0
        origin |= known.origin & Origin.ARCHIVE if known is not None else 0
        origin |= Origin.DATABASE if DATABASE_FILE.search(path) else 0
    if origin & Origin.ARCHIVE:
        runner.report("exfiltration", "sends a whole folder over the network", site)
    elif origin & Origin.DATABASE:
        runner.report("exfiltration", "sends a database over the network", site)
    elif any(DROPS.search(word.text) for word in call.words) and (uploaded(call) or origin & DATA):
        runner.report("exfiltration", "sends a file to a host where anybody can collect it", site)
    elif call.program in SOCKETS and sends_file(call):
        runner.report("exfiltration", "sends a file to a network connection", site)


def sends_file(call: CommandCall) -> bool:
    """Whether a program that opens a connection sends a file or what another program printed."""
    texts = [word.text for word in call.words]
    if call.program == "openssl" and texts[:1] != ["s_client"]:
        return False
    if call.program == "socat":
        if not any(SOCKET_HOST.match(text) for text in texts):
            return False
        if any(SOCKET_FILE.match(text) for text in texts):
            return True
    elif call.arguments.has("-z", "-U", "--unixsock", "-h", "--help"):
        return False
    data = call.stdin
    if data is None or data.origin & Origin.MACHINE:
        return False
    return bool(data.origin & (Origin.FILE | Origin.DECODED)) or (
        data.text is None and bool(data.origin & Origin.PROGRAM)
    )


OPENS_SOCKET = re.compile(
    r"create_connection\(|socket\(|net\.(?:connect|createConnection)|TCPSocket|fsockopen|IO::Socket"
)
READS_FILE = re.compile(
    r"\bopen\(|read_(?:text|bytes)\(|readFile|createReadStream|File\.|file_get_contents|`cat |<FH?>"
)
NAMES_DATABASE = re.compile(r"[\"'][^\"']*\.(?:sql|dump|sqlite3?|db|bak)(?:\.gz)?[\"']")
PACKS_FOLDER = re.compile(r"make_archive\(|tarfile\.open\([^)]*[\"']w|ZipFile\([^)]*[\"']w|os\.walk\(|rglob\(")
READS_DATABASE = re.compile(r"sqlite3\.connect|create_engine|psycopg|better-sqlite3")
LOCAL_TARGET = re.compile(r"[\"'](?:localhost|127\.\d+\.\d+\.\d+|::1)[\"':]")


def sent_by_code(call: CommandCall) -> str:
    """What code on a command line sends away that a command may not send either; empty if nothing."""
    code = code_of(call)
    if not USES_NETWORK.search(code) and not OPENS_SOCKET.search(code):
        return ""
    hosts = [match.group(1).lower() for match in URL_HOST.finditer(code)]
    if LOCAL_TARGET.search(code) or (hosts and all(LOCAL_HOST.fullmatch(host) for host in hosts)):
        return ""
    if OPENS_SOCKET.search(code) and READS_FILE.search(code):
        return "sends a file to a network connection"
    if PACKS_FOLDER.search(code) and SENDS_IN_CODE.search(code):
        return "sends a whole folder over the network"
    stored = NAMES_DATABASE.search(code) and READS_FILE.search(code) and not READS_DATABASE.search(code)
    return "sends a database over the network" if stored else ""


SENDS_IN_CODE = re.compile(
    r"\.(?:post|put|request|patch)\(|data=|files=|body:|method:|\.send(?:all)?\(|STOR|storbinary"
)


def judge_personal(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report files of the user that leave the machine although they do not belong to the workspace."""
    piped = call.program in TAKES_DATA and call.stdin is not None and call.stdin.origin & Origin.PERSONAL
    given = uploaded(call)
    if not (piped or given) or any(word.text[:1] != "/" and HERE.search(word.text) for word in call.words):
        return
    if piped:
        runner.report("exfiltration", "sends a file from outside the workspace over the network", site)
        return
    for word in given:
        path = reached(word.text, call.state)
        known = call.state.files.get(path)
        if is_personal(path, call.state) or (known is not None and known.origin & Origin.PERSONAL):
            shown = path.replace(UNKNOWN, "…")
            runner.report("exfiltration", f"sends {shown} from outside the workspace", site, paths=(path,))
            return


TAKES_DATA = RAW_SENDERS | name_set("ssh mail mailx mutt sendmail swaks ntfy croc wormhole transfer")
"""Programs that send what they get on their input."""
UPLOADS = {
    "curl": ("-T", "--upload-file"),
    "wget": ("--post-file", "--body-file"),
    **dict.fromkeys(("mail", "mailx", "mutt"), ("-A", "-a", "--attach")),
    "az": ("-f", "--file", "-s", "--source"),
    "swaks": ("--attach", "--body"),
    "telegram-send": ("--file", "-f", "--image", "-i"),
}
SENDS_OPERANDS = name_set(
    "scp rsync rclone s3cmd gsutil azcopy mc croc wormhole magic-wormhole transfer aws gcloud gh ftp tftp"
)
SENT_DATA = re.compile(r"(?:[\w.\[\]-]*=)?[@<](.+)|[\w.-]+@(/.+)")
"""A value of curl or HTTPie that names a file whose content is sent."""


SENDING = re.compile(
    r"-{0,2}(?:upload|put|send|push|share|publish|sync|backup|post|attach|export|transfer|mirror)(?:[-_:]\w+)?"
)
"""Sub-commands and options that say that a program sends something."""
NAMED_SENDER = re.compile(r"(?:^|[-_.])(?:put|upload(?:er)?|send|share)(?:$|[-_.])|send$")


def says_it_sends(call: CommandCall) -> bool:
    """True for a program that nothing is known about, if a sub-command says that it sends what it is given."""
    if call.program in LOOKERS or call.program in REVEALERS:
        return False
    return NAMED_SENDER.search(call.program) is not None or any(SENDING.fullmatch(word.text) for word in call.words[:3])


def uploaded(call: CommandCall) -> list[ExpandedWord]:
    """The words of a network program that name what it sends."""
    if call.program not in SENDERS:
        return call.arguments.operands
    found = option_values(call.words, UPLOADS[call.program]) if call.program in UPLOADS else []
    if call.program in ("curl", "http", "https", "xh"):
        data = ((word, SENT_DATA.fullmatch(word.text)) for word in call.words)
        found += [word.with_text((match[1] or match[2]).partition(";")[0]) for word, match in data if match is not None]
    if call.program in SENDS_OPERANDS:
        operands = call.arguments.operands
        # What is fetched ends with a place on this machine.
        found += operands[:-1] if operands and REMOTE_PLACE.match(operands[-1].text) else []
        found += operands if call.program in ("gh", "croc", "wormhole", "magic-wormhole", "transfer") else []
    return found


REMOTE_PLACE = re.compile(r"[\w.@-]+:|\w+://")


def judge_revealed(runner: Runner, call: CommandCall, secrets: list[str], site: CommandLocation) -> None:
    """Report secrets that a program shows or copies."""
    paths = tuple(path for path in secrets if is_secret(path) or is_own_record(path, call.state))
    if paths:
        runner.report("credential", f"reads the secret {paths[0].replace(UNKNOWN, '…')}", site, paths=paths)
    elif any(word.origin & Origin.SECRET_FILE for word in call.words):
        runner.report("credential", "reads files that may be secrets", site)
    elif call.stdin is not None and call.stdin.origin & Origin.SECRET and call.stdin.origin & Origin.FILE:
        runner.report("credential", "reads a secret", site)
    elif call.stdin is not None and call.stdin.origin & Origin.SECRET_FILE and call.program in TAKES_NAMES:
        runner.report("credential", "reads files that may be secrets", site)


def judge_shown(runner: Runner, call: CommandCall, site: CommandLocation) -> None:
    """Report a secret that a program does not read as a key, but as text or names, which it then shows or stores."""
    options = SHOWS_FILE.get(call.program)
    if options is None:
        return
    given = option_values(call.words, options) if options else call.words[:1]
    for word in given:
        path = reached(candidates(word.text)[-1], call.state) if candidates(word.text) else ""
        if path and is_secret(path):
            runner.report("credential", f"shows the content of {path.replace(UNKNOWN, '…')}", site, paths=(path,))


SHOWS_FILE: dict[str, tuple[str, ...]] = {
    "git": ("-F", "--file", "--contents", "--pathspec-from-file", "--template"),
    "file": ("-f", "--files-from", "-m", "--magic-file"),
    "wc": ("--files0-from",),
    "du": ("--files0-from", "-X", "--exclude-from"),
    "find": ("-files0-from",),
    **dict.fromkeys(("xargs", "gxargs"), ("-a", "--arg-file")),
    **dict.fromkeys(("ssh", "scp", "sftp"), ("-F", "-b")),
    **dict.fromkeys(("kubectl", "oc"), ("--from-file", "--from-env-file")),
    **dict.fromkeys(("docker", "podman"), ("--env-file", "--secret", "--build-context")),
    **dict.fromkeys(("pip", "pip3"), ("-r", "--requirement", "-c", "--constraint")),
    **dict.fromkeys(("psql", "mysql"), ("-f", "--file")),
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "b2sum", "cksum"), ("-c", "--check")),
    **dict.fromkeys(("ansible", "ansible-playbook"), ("-i", "--inventory", "-e", "--extra-vars")),
    "terraform": ("-var-file",),
    "helm": ("-f", "--values", "--set-file"),
    "gh": ("-F", "--body-file", "--notes-file"),
    **dict.fromkeys(("source", "."), ()),
}
"""Options whose file is shown, stored or named in messages, of programs that otherwise keep files to themselves."""


def uses_keys(call: CommandCall) -> bool:
    """True for a program that uses a key without showing it; some commands of git show files."""
    if call.program == "git" and call.words and call.words[0].text in GIT_READERS:
        return False
    return call.program in KEY_USERS


def judge_named(runner: Runner, call: CommandCall, secrets: list[str], site: CommandLocation) -> None:
    """Report secrets elsewhere that are given to a program of which nobody knows that it keeps them to itself."""
    paths = tuple(
        path
        for path in secrets
        if path[:1] == "/"
        and (is_own_record(path, call.state) or (is_secret(path) and not is_workspace(path, call.state)))
    )
    if paths:
        runner.report("credential", f"may read the secret {paths[0].replace(UNKNOWN, '…')}", site, paths=paths)
    elif any(word.origin & Origin.SECRET_FILE for word in call.words):
        runner.report("credential", "may read files that are secrets", site)


def lists_names_only(call: CommandCall) -> bool:
    return call.program in ("grep", "rg", "egrep") and call.arguments.has(*QUIET)


def secret_paths(call: CommandCall) -> list[str]:
    """The secret files among the words of a command, and those that their wildcards may match."""
    found: list[str] = []
    identity = False
    for word in call.words:
        text = word.text
        if identity or len(text) > 20_000:
            identity = False
            continue
        identity = (
            call.program in ("ssh", "scp", "sftp", "curl", "openssl")
            and text in ("-keyout", "-out", "-i", "--key", "-E", "--cert", "-F", "--cacert")
            and not (call.program == "curl" and text == "-F")
        )
        pattern = secrets_by_pattern(word, call.state, private=call.program in SENDERS) if word.glob else ""
        if pattern:
            found.append(pattern)
        for candidate in candidates(text):
            path = reached(candidate, call.state)
            known = call.state.files.get(path)
            carried = known is not None and bool(known.origin & (Origin.SECRET | Origin.PRIVATE | Origin.KEY))
            if (
                is_secret(path)
                or is_own_record(path, call.state)
                or (call.program in SENDERS and (carried or is_private(path)))
            ):
                found.append(path)
                break
    return found


def candidates(text: str) -> list[str]:
    """The parts of a word that may name a file: `@file`, `name=@file`, `--post-file=file`, `if=file`."""
    if text.startswith("-") and "=" not in text and "@" not in text and "/" not in text:
        return []
    pieces = [text.removeprefix("@").removeprefix("file://")]
    if "=" in text:
        pieces.append(text.partition("=")[2].lstrip("@<"))
    if "@" in text:
        pieces.append(text.partition("@")[2])
    return [piece for piece in pieces if piece]


def names_secret_in_input(call: CommandCall) -> bool:
    """True when the commands on the input of a file-transfer program name a secret."""
    text = call.stdin.text if call.stdin is not None else None
    if text is None or call.program not in ("sftp", "ftp", "lftp", "tftp"):
        return False
    return any(is_secret(resolve(word, call.state)) or is_private(word) for word in text[:4096].split())


def sends(call: CommandCall) -> bool:
    """False for uses of a network program that only fetch data or stay on the machine."""
    if call.program in ("rsync", "scp"):
        return any(re.match(r"[\w.@-]+:|rsync://", each.text) for each in call.arguments.operands)
    if call.program in ("aws", "gsutil", "gcloud", "az", "openssl", "kubectl", "docker"):
        return any(
            re.match(r"(?:s3|gs|az|https?)://|cp$|gist$|s_client$|upload$|secret$|release$", each.text)
            for each in call.words
        )
    if call.program in ("w3m", "lynx", "links", "elinks"):
        return any(word.text.lstrip("-").startswith("post") for word in call.words)
    if call.program == "logger":
        return call.arguments.has("-n", "--server") or any(word.text in ("-n", "--server") for word in call.words)
    return True
