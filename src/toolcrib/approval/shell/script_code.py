"""Finds dangerous calls in one-liners of perl, ruby, node, php, awk and others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.local_services import judge_service_code
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Origin, Severity, StreamData, name_set
from toolcrib.approval.shell.paths import is_protected, is_secret, place, reached, resolve
from toolcrib.approval.shell.rules import BY_PROGRAM
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.sql import sql_danger

MAX_CODE = 20_000
RUNS = re.compile(
    r"\b(?:system|exec|popen|Popen|shell_exec|passthru|proc_open|execSync|spawnSync|spawn|"
    r"execFile|execFileSync|IO\.popen|Open3\.\w+|os\.execute|io\.popen|"
    r"do shell script|shell|Process\.(?:spawn|run)|Runtime\.\w+\(\)\.exec|run_shell_command|"
    r"call-process|shell-command|System\.cmd|os:cmd|callCommand|pcntl_exec|Sys\.command|iex|Invoke-Expression)\b\s*+[(\[]?\s*+([\"'`]|q[qx]?[{(]|%x[({])"
)
BACKTICKS = re.compile(r"(`|qx[/{(]|%x[({])")
RUNS_SOMETHING = re.compile(
    r"\b(?:system|exec|popen|shell_exec|passthru|proc_open|execSync|spawnSync|child_process|"
    r"os\.execute|io\.popen)\b\s*\(\s*[$@A-Za-z_]"
)
DOWNLOADS = re.compile(r"\b(?:download\.file|getstore|URLDownloadToFile|DownloadFile|copy\(\s*['\"]https?:)")
RUNS_DECODED = re.compile(
    r"\b(?:system|exec|popen|shell_exec|passthru|execSync|spawnSync|eval|qx|os\.execute|io\.popen|spawn|loadstring|Function)\b"
    r"[^;\n]{0,60}\b(?:pack|unpack\w*|decode\w*|hex2bin|base64_decode|str_rot13|gzinflate|atob|fromCharCode|Buffer\.from"
    r"|urlsafe_decode64|strict_decode64|reverse|strrev|chr|rot13)\b"
)
ARGUMENT_LIST = re.compile(
    r"\b(?:system|exec|spawn|spawnSync|execFile|execFileSync|"
    r"popen)\b\s*+\(?\s*+((?:[\[]?\s*+(?:\"[^\"]*\"|'[^']*')\s*+[\],]*+\s*+){2,})"
)
DELETES = re.compile(
    r"\b(?:rmtree|remove_tree|rm_rf|rm_r|remove_dir|remove_entry_secure|rimraf|rmSync|rmdirSync|"
    r"fs\.rm\b|fs\.promises\.rm\b|removeSync|emptyDirSync|unlink\s*+\(?\s*+(?:(?:glob|map|for|foreach|while)\b|<[^>\n]{0,60}[*?])|"
    r"array_map\(\s*['\"]unlink|Remove-Item|Directory\.Delete|RemoveDirectory|"
    r"Deno\.remove(?:Sync)?\([^)]{0,200}recursive|Dir\.glob.{0,200}(?:delete|unlink)|"
    r"\.rm\([^)]{0,200}recursive|find\(\s*sub\s*\{[^}]{0,200}unlink|Dir\[.{0,200}(?:delete|unlink)|delete-directory|File\.rm_rf|\bdelete\([^)]{0,200},\s*['\"]rf|file\s+delete\s+-force|"
    r"removeItem|removeDir\b|deleteDir\(|rmdir\s*\([^)]{0,200},\s*['\"]s['\"]|file\.remove\(|Directory\.Delete|FileUtils\.delete|removeFile|deleteDirectory|deleteRecursively|deltree|remove_dir_all|removeDirectoryRecursive|del_dir_r|"
    r"fs/promises['\"]\)\.rm\b|(?:glob|readdir\w*|listdir|scandir|\w*DirectoryIterator|lines|entries|popen|<\*[^>]*>)(?!\w).{0,200}\b(?:unlink\w*|os\.remove|File\.delete|rm)\b|"
    r"rm(?:Sync)?\([^)]{0,200}recursive\s*[:=]\s*(?:true|!0|1)|unlink\([^)]{0,200}recursive\s*=\s*T)"
    r"|<[^>\n]{0,40}\*[^>\n]{0,40}>.{0,200}\bunlink\b|\bunlink\b.{0,120}\bfor(?:each)?\b.{0,40}\b(?:glob|readdir)\b"
)
NETWORK_SHELL = re.compile(
    r"\b(?:IO::Socket|sockaddr_in|inet_aton|TCPSocket|fsockopen|net\.Socket|net\.connect|createConnection|"
    r"socket\.socket|/inet/tcp|stream_socket_client|Socket::INET|UDPSocket)\b|/inet/"
)
FETCHES = re.compile(
    r"\b(?:LWP::Simple|LWP::UserAgent|HTTP::Tiny|Net::HTTP|open-uri|URI\.open|"
    r"file_get_contents\(\s*['\"]https?|https?\.get|fetch\(|require\(['\"]https?['\"]\)|"
    r"curl_exec|DownloadString|Invoke-WebRequest|iwr|URI\.parse|get\s*+\(?\s*+['\"]https?)"
)
EVALUATES = re.compile(
    r"\b(?:eval|instance_eval|class_eval|Function|vm\.runIn\w+|assert|create_function|iex|"
    r"Invoke-Expression|loadstring|load)\b(?:\s*[(\s]|$)|\(\s*eval\s*\)"
)
FORKS = re.compile(
    r"\bfork\s+while\s+fork|\bfork\s+while\s*1|while\s*+\(?\s*+(?:1|"
    r"true)\s*+\)?\s*+\{?\s*+(?:Process\.)?fork|loop\s*(?:\{|do)\s*(?:Process\.)?fork|"
    r"fork\(\)?\s*while|while\s+true\s+do\s+fork|until\s+0.{0,200}fork|"
    r"for\s*\(;;\)\s*+\{?\s*+(?:pcntl_)?fork|fork\s+loop"
)
KILLS = re.compile(
    r"\bkill\s*+\(?\s*+(?:'?KILL'?|'?TERM'?|9|-9|15|:KILL|SIGKILL)\s*,\s*-\s*1|"
    r"process\.kill\(\s*-1|Process\.kill\([^,]++,\s*-1|posix_kill\(\s*-1"
)
CHMODS = re.compile(r"\bchmod(?:Sync|_R)?\b\s*+\(?[^;]{0,200}\b(?:0o?777|0o?666|511|438|['\"]777['\"])")
WRITES = re.compile(
    r"(?:\bopen\s*+\(?\s*+(?:my\s*+)?\$?\w*+\s*+,?\s*+['\"]\s*+>{1,2}\s*([^'\",]{1,400})|"
    r"\b(?:writeFileSync|writeFile|appendFileSync|file_put_contents|File\.write|IO\.write|"
    r"createWriteStream|Deno\.writeTextFile\w*|unlinkSync|unlink|os\.re(?:move|name)|File\.(?:delete|unlink|rename)|rename(?:Sync)?|"
    r"truncateSync)\s*+\(?\s*+['\"]([^'\"]+)"
    r"|\b(?:File\.open|open|fopen|io\.open)\s*\(\s*['\"]([^'\"]{1,400})['\"]\s*,\s*['\"][wa]|"
    r">{1,2}\s*\"(/[^\"]+)\"|open\s*+\(?[^;]{0,200}['\"]>{1,2}['\"]\s*,\s*['\"]([^'\"]+))"
)
PATHS = re.compile(
    r"['\"]((?:~|/|\.{1,2}/)[^'\"\s]*)['\"]|['\"]((?>[^'\"\s]*?\.(?:ssh|aws|gnupg|netrc))[^'\"\s]*+)['\"]"
)
SENDS = re.compile(
    r"\b(?:post|put|fetch|request|Request|sendmail|send|upload|HTTP::Tiny|LWP|Net::HTTP|axios|"
    r"curl_exec|Invoke-RestMethod|Invoke-WebRequest)\b"
)
PRIVATE_FILES = re.compile(
    r"['\"`/\s]\.env\b(?!\.example)|\.ssh/(?!known_hosts|config)|\.aws/|\.gnupg|id_rsa|"
    r"id_ed25519|\.netrc|/etc/shadow|\.kube/config|JSON\.stringify\(process\.env\)|%ENV\b|"
    r"ENV\.to_(?:h|a|json)"
)
ORM_DELETES = re.compile(
    r"\.(?:delete_all|destroy_all|truncate!?)\b|\.all\.(?:each|map)\(&:(?:delete|destroy)\)|"
    r"::truncate\(|deleteMany\(\s*+(?:\{\s*\})?\s*+\)|destroy\(\s*\{\s*(?:where:\s*\{\s*\}|"
    r"truncate)"
)
SQL_TEXT = re.compile(
    r"""(?:execute|query|do|exec|prepare|run|raw|executescript|exec_query)\s*+\(?\s*+(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|`([^`]*)`)"""
)
TCL = re.compile(r"(?:^|[;\[{\n])[^\S\n]*+(?:exec|spawn|system)\s+([^\n;\]}]+)")
Endings = dict[str, tuple[re.Pattern[str], str]]
"""For each way to open a string, its content and the characters that may close it."""
_TO_BRACKET = (re.compile(r"([^)}]*)[)}]"), ")}")
STRING_ENDINGS: Endings = {
    '"': (re.compile(r'((?:[^"\\]|\\.)*)"'), '"'),
    "'": (re.compile(r"((?:[^'\\]|\\.)*)'"), "'"),
    "`": (re.compile(r"((?:[^`\\]|\\.)*)`"), "`"),
    **dict.fromkeys(("q{", "qq{", "qx{"), (re.compile(r"([^}]*)\}"), "}")),
    **dict.fromkeys(("q(", "qq(", "qx("), (re.compile(r"([^)]*)\)"), ")")),
    **dict.fromkeys(("%x(", "%x{"), _TO_BRACKET),
}
COMMAND_ENDINGS: Endings = {
    "`": (re.compile(r"([^`]+)`"), "`"),
    **dict.fromkeys(("qx/", "qx{", "qx("), (re.compile(r"([^/})]*)[/})]"), "/})")),
    **dict.fromkeys(("%x(", "%x{"), _TO_BRACKET),
}
LITERAL = re.compile(r"\"([^\"\n]{0,200})\"|'([^'\n]{0,200})'|`([^`\n]{0,200})`")
STARTS_PROCESSES = re.compile(
    r"\b(?:\w*system\w*|\w*exec\w*|\w*spawn\w*|popen\w*|shell\w*|run\w*|cmd|command|[pP]rocess\w*|execute|child\w*|fork|call\w*|getline"
    r"|open\w*|sh|bash|eval)\b|\||\$\w+\s*\(\s*['\"]"
)
LOADS_FOREIGN = re.compile(
    r"\b(?:fork|require|import|include|include_once|require_once|load|dofile|source|do|Worker|run_path)\b\s*\(?\s*['\"]"
    r"((?:/tmp|/var/tmp|/dev/shm|https?:/)/[^'\"]*)"
)
NATIVE = re.compile(
    r"\bprocess\.dlopen\b|['\"](?:ffi-napi|ref-napi|koffi|bun:ffi|ffi)['\"]|\bDeno\.dlopen\b|\bFiddle\b|\bDynaLoader\b|\bsyscall\s*\(|\bFFI::"
    r"|\bpackage\.loadlib\b|\bdl_open\b|\bdyn\.load\b|\bccall\s*\("
)
"""What loads or calls native code, which nothing here can read."""
LOGIN_ITEM = re.compile(r"login item|keystroke|key code")
APPLE_DELETES = re.compile(r"\b(?:delete|empty (?:the )?trash|erase|move .{1,60} to (?:the )?trash)\b")
WORD_LIST = re.compile(r"\bqw\s*[({\[/<]([^)}\]/>]{1,400})")
CHANGES_FILES = re.compile(
    r"(?<![=\-])>(?!=)|\b(?:\w*[wW]rite\w*|append\w*|copy\w*|cp\w*|rename\w*|move\w*|mv|sym_?link\w*|link\w*|unlink\w*|delete\w*"
    r"|rm\w*|remove\w*|file_put_contents|save\w*|touch|truncate\w*|chmod\w*|spit|download\w*|mkdir\w*)\b|['\"][wa]\+?b?['\"]"
)
HOME_VARIABLE = re.compile(r"\$ENV\{['\"]?HOME['\"]?\}|\$\{?HOME\}?|#\{(?:Dir\.home|ENV\[.HOME.\])\}|~(?=/)")
INTERPRETERS = name_set("sh bash dash zsh ksh python python3 perl ruby node")
MAX_LITERALS = 60
POWERSHELL_ENCODED = re.compile(r"[A-Za-z0-9+/=]{16,}$")


def judge_script_code(runner: Runner, language: str, code: str, call: CommandCall, site: CommandLocation) -> None:
    """Report dangerous calls in a one-liner, and judge the shell commands inside it."""
    if len(code) > MAX_CODE:
        runner.report("unknown_code", f"runs more {language} code than can be analysed", site)
        return
    runner.spend(len(code) // 60)
    code = folded(code, call.state.home)
    if code.strip() == UNKNOWN:
        runner.report("unknown_code", f"runs {language} code that is only known at run time", site)
        return
    ran = _run_commands(runner, language, code, call, site)
    _judge_literals(runner, code, call, site)
    if (not ran or language == "awk") and RUNS_SOMETHING.search(code):
        runner.report("unknown_code", f"runs a command from {language} that is only known at run time", site)
    if FORKS.search(code):
        runner.report("fork_bomb", f"forks endlessly in {language}", site, severity="block")
    if KILLS.search(code):
        runner.report("kill", "kills every process", site, severity="block")
    if DELETES.search(code):
        named = [(match.group(1) or match.group(2)).replace("~", call.state.home, 1) for match in PATHS.finditer(code)]
        paths = tuple(reached(name, call.state) for name in named)
        worst = any(place(path, call.state) in ("root", "home", "system_root") for path in paths)
        severity: Severity = "block" if worst else "ask"
        runner.report("recursive_delete", f"deletes a directory from {language}", site, severity=severity, paths=paths)
    if NETWORK_SHELL.search(code) and (ran or re.search(r"exec|spawn|popen|dup2|STDIN|system|/bin/|getline|\|&", code)):
        runner.report("remote_code", "connects a shell to the network", site)
    if EVALUATES.search(code) and (
        FETCHES.search(code)
        or NETWORK_SHELL.search(code)
        or re.search(r"decode|unpack|fromCharCode|Buffer\.from|pack\(|atob|\bcurl\b|\bwget\b", code)
    ):
        runner.report("remote_code", "evaluates code that was fetched or decoded", site)
    if ran and DOWNLOADS.search(code):
        runner.report("remote_code", f"downloads something and runs commands from {language}", site)
    if RUNS_DECODED.search(code):
        runner.report("remote_code", "runs a command that is encoded", site)
    if SENDS.search(code) and PRIVATE_FILES.search(code):
        runner.report("exfiltration", "sends a secret over the network", site)
    if NATIVE.search(code):
        runner.report("unknown_code", "calls native code, which cannot be analysed", site)
    if ORM_DELETES.search(code):
        runner.report("sql", "deletes every row of a table", site)
    for statement in SQL_TEXT.finditer(code):
        reason = sql_danger(next(group for group in statement.groups() if group))
        if reason:
            runner.report("sql", reason, site)
    if CHMODS.search(code):
        runner.report("permissions", "makes a file world-writable", site)
    if language in ("pwsh", "powershell") and POWERSHELL_ENCODED.match(code):
        runner.report("remote_code", "runs encoded PowerShell", site)
    _judge_files(runner, code, call, site)
    judge_service_code(runner, code, call, site)


HOME_FOLDER = re.compile(
    r"\$ENV\{['\"]?HOME['\"]?\}|ENV\[['\"]HOME['\"]\]|ENV\.fetch\(['\"]HOME['\"]\)|Dir\.home(?:\(\))?|File\.expand_path\(['\"]~['\"]\)"
    r"|process\.env\.HOME|process\.env\[['\"]HOME['\"]\]|(?:require\(['\"](?:node:)?os['\"]\)|os)\.homedir\(\)"
    r"|(?:os\.)?getenv\(['\"]HOME['\"]\)|\$_(?:SERVER|ENV)\[['\"]?HOME['\"]?\]|ENVIRON\[['\"]HOME['\"]\]"
    r"|Sys\.getenv\(['\"]HOME['\"]\)|path\.expand\(['\"]~['\"]\)|homedir\(\)|Deno\.env\.get\(['\"]HOME['\"]\)"
)
"""How languages ask for the home folder."""
JOINED = re.compile(r"(['\"])((?:(?!\1)[^\\\n])*)\1\s*+(?:\+|\.{1,2}|<>|&)\s*+(['\"])((?:(?!\3)[^\\\n])*)\3")
MAX_FOLDS = 20
ESCAPED = re.compile(r"\\\\|\\(?:x\{?([2-7][0-9a-fA-F])\}?|u\{?00([2-7][0-9a-fA-F])\}?|([01][0-7]{2}))")
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_./~|*")


def unescaped(match: re.Match[str]) -> str:
    """The letter that an escape stands for; signs that could end a string stay escaped."""
    if match[0] == "\\\\":
        return match[0]
    letter = chr(int(match[3], 8) if match[3] else int(match[1] or match[2], 16))
    return letter if letter in PLAIN else match[0]


def folded(code: str, home: str) -> str:
    """The code with the home folder in its place, letters as such, and strings that it joins written as one."""
    if "\\" in code:
        code = ESCAPED.sub(unescaped, code)
    if "home" in code.lower() or "~" in code:
        pieces, at = [], 0
        for found in HOME_FOLDER.finditer(code):
            # Inside a string it is text; elsewhere it is a string itself.
            quotes = (code.count('"', 0, found.start()) % 2) or (code[found.start() - 1 : found.start()] in ("{", "/"))
            pieces += [code[at : found.start()], home if quotes else f'"{home}"']
            at = found.end()
        code = "".join([*pieces, code[at:]])
    for _ in range(MAX_FOLDS):
        joined = JOINED.sub(r"\1\2\4\1", code)
        if joined == code:
            break
        code = joined
    return code


def _run_commands(runner: Runner, language: str, code: str, call: CommandCall, site: CommandLocation) -> bool:
    ran = False
    for match in ARGUMENT_LIST.finditer(code):
        words = [ExpandedWord(a or b) for a, b in re.findall(r"\"([^\"]*)\"|'([^']*)'", match.group(1))]
        if len(words) > 1:
            runner.invoke(words, call.state.copy(), None, site)
            ran = True
    for text in quoted(code, RUNS, STRING_ENDINGS):
        if text.strip():
            run_from_code(runner, _unquote(text), call, site)
            ran = True
    if language == "awk":
        for text in re.findall(r"\"([^\"]+)\"\s*\|&?\s*getline|\|&?\s*\"([^\"]+)\"", code):
            runner.run_text(text[0] or text[1], call.state.copy(), StreamData(None, Origin.PROGRAM), site)
            ran = True
    if language == "node":
        for text in re.findall(r"\$`([^`]+)`", code):
            runner.run_text(text, call.state.copy(), None, site)
            ran = True
    if language in ("perl", "ruby", "php", "julia"):
        for text in quoted(code, BACKTICKS, COMMAND_ENDINGS):
            runner.run_text(text, call.state.copy(), None, site)
            ran = True
    if language in ("tclsh", "expect", "wish"):
        for match in TCL.finditer(code):
            runner.run_text(match.group(1), call.state.copy(), None, site)
            ran = True
    debugger = DEBUGGER_SHELL.match(code) if language in ("gdb", "lldb") else None
    if debugger is not None:
        run_from_code(runner, debugger.group(1), call, site)
    elif language in ("gdb", "lldb") and re.match(r"\s*(?:python|py|script|pi|source|command script)\b", code):
        runner.report("unknown_code", "runs code inside the debugger", site)
    return ran


BARE_SHELL = re.compile(r"\s*(?:exec\s+)?(?:/\S*/)?(?:ba|z|da|k|c|tc|fi|a)?sh(?:\s+-[ilps]+)*[\s0-9<>&;]*$")


def run_from_code(runner: Runner, text: str, call: CommandCall, site: CommandLocation) -> None:
    """Judge a command that code or an editor runs; a shell without a command there is a way around what is judged."""
    if BARE_SHELL.match(text):
        runner.report("unknown_code", f"opens a shell from inside {call.program}", site)
    runner.run_text(text, call.state.copy(), None, site)


DEBUGGER_SHELL = re.compile(r"\s*(?:(?:platform\s+)?shell|make|!|pipe\b[^|]*\||\|[^|]*\|)\s*(.+)", re.DOTALL)


def _judge_literals(runner: Runner, code: str, call: CommandCall, site: CommandLocation) -> None:
    """Judge strings that are commands or protected paths, whatever function of the language takes them."""
    literals = literals_of(code)
    foreign = LOADS_FOREIGN.search(code)
    if foreign is not None:
        runner.report("remote_code", f"runs the code in {foreign.group(1)[:80]}", site)
    if call.program == "osascript" and LOGIN_ITEM.search(code):
        runner.report("system_config", "types into other programs, or starts a program at every login", site)
    if call.program == "osascript" and APPLE_DELETES.search(code):
        runner.report("recursive_delete", "deletes something through another program", site)
    for words in WORD_LIST.findall(code):
        literals += [words]
    if STARTS_PROCESSES.search(code):
        judge_literal_commands(runner, literals, call, site)
    for text in literals if CHANGES_FILES.search(code) is not None else []:
        path = HOME_VARIABLE.sub(call.state.home, text).lstrip("<>+| ")
        # The home folder may have been put before it: `ENV["HOME"] + "/.profile"`.
        for one in (path, f"{call.state.home}/{path.lstrip('/')}") if path.lstrip("/")[:1] == "." else (path,):
            if "/" in one and is_protected(resolve(one, call.state), call.state):
                reason = f"may change {one.replace(UNKNOWN, '…')}, which the user's programs run or read commands from"
                runner.report("system_config", reason, site, paths=(one,))
                return


def literals_of(code: str) -> list[str]:
    found = (next((group for group in groups if group), "") for groups in LITERAL.findall(code))
    return [text for text in found if text][:MAX_LITERALS]


def judge_literal_commands(runner: Runner, literals: list[str], call: CommandCall, site: CommandLocation) -> None:
    """Report strings that would be dangerous commands, and lists of strings that are the words of one."""
    for number, text in enumerate(literals):
        words = text.strip("|! ").split(None, 1)
        program = words[0].rpartition("/")[2] if words else ""
        if program in INTERPRETERS and text.strip().startswith("|"):
            runner.report("unknown_code", f"passes data to {program}, which runs it", site)
        following = literals[number + 1 : number + 5]
        if program not in BY_PROGRAM and program not in INTERPRETERS:
            continue
        suspect = False
        if len(words) > 1:
            suspect = runner.suspects(text.strip("|! "), call.state, site)
        elif following and following[0].startswith("-"):
            given = [ExpandedWord(each) for each in (text, *" ".join(following).split())]
            suspect = runner.suspects(given, call.state, site)
        if suspect:
            runner.report("unknown_code", f"may run the command {text[:80]!r} that it contains", site)
            return


def quoted(code: str, opening: re.Pattern[str], endings: Endings) -> Iterator[str]:
    """The strings that start where `opening` matches; skips one that is never closed."""
    last = {signs: max(code.rfind(sign) for sign in signs) for _, signs in endings.values()}
    at = 0
    while (found := opening.search(code, at)) is not None:
        rest, signs = endings[found.group(1)]
        # Searching for a missing end would scan from every opening to the end of the code.
        closed = rest.match(code, found.end()) if found.end() <= last[signs] else None
        if closed is not None:
            yield closed.group(1)
        at = closed.end() if closed is not None else found.start() + 1


LINE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: LINE_ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


def _judge_files(runner: Runner, code: str, call: CommandCall, site: CommandLocation) -> None:
    for match in WRITES.finditer(code):
        path = next((group for group in match.groups() if group), "").strip()
        if path:
            judge_write(runner, reached(path, call.state), ExpandedWord(path), call.state, site)
    for match in PATHS.finditer(code):
        path = reached((match.group(1) or match.group(2)).replace("~", call.state.home, 1), call.state)
        if is_secret(path):
            runner.report("credential", f"reads the secret {path}", site, paths=(path,))
