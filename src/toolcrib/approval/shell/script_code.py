"""Finds dangerous calls in one-liners of perl, ruby, node, php, awk and others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Severity
from toolcrib.approval.shell.paths import is_secret, place, reached
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Runner
from toolcrib.approval.shell.sql import sql_danger

MAX_CODE = 20_000
RUNS = re.compile(
    r"\b(?:system|exec|popen|Popen|shell_exec|passthru|proc_open|execSync|spawnSync|spawn|"
    r"execFile|execFileSync|IO\.popen|Open3\.\w+|os\.execute|io\.popen|"
    r"do shell script|shell|Process\.(?:spawn|run)|Runtime\.\w+\(\)\.exec|run_shell_command|"
    r"call-process|shell-command|iex|Invoke-Expression)\b\s*+[(\[]?\s*+([\"'`]|q[qx]?[{(]|%x[({])"
)
BACKTICKS = re.compile(r"(`|qx[/{(]|%x[({])")
RUNS_SOMETHING = re.compile(
    r"\b(?:system|exec|popen|shell_exec|passthru|proc_open|execSync|spawnSync|child_process|"
    r"os\.execute|io\.popen)\b\s*\(\s*[$@A-Za-z_]"
)
ARGUMENT_LIST = re.compile(
    r"\b(?:system|exec|spawn|spawnSync|execFile|execFileSync|"
    r"popen)\b\s*+\(?\s*+((?:[\[]?\s*+(?:\"[^\"]*\"|'[^']*')\s*+[\],]*+\s*+){2,})"
)
DELETES = re.compile(
    r"\b(?:rmtree|remove_tree|rm_rf|rm_r|remove_dir|remove_entry_secure|rimraf|rmSync|rmdirSync|"
    r"fs\.rm\b|fs\.promises\.rm\b|removeSync|emptyDirSync|unlink\s*+\(?\s*+(?:glob|<|map|for|foreach|while)\b|"
    r"array_map\(\s*['\"]unlink|Remove-Item|Directory\.Delete|RemoveDirectory|"
    r"Deno\.remove(?:Sync)?\([^)]{0,200}recursive|Dir\.glob.{0,200}(?:delete|unlink)|"
    r"Dir\[.{0,200}(?:delete|unlink)|delete-directory|file\s+delete\s+-force|"
    r"rm\([^)]{0,200}recursive\s*=\s*true|unlink\([^)]{0,200}recursive\s*=\s*T)"
)
NETWORK_SHELL = re.compile(
    r"\b(?:IO::Socket|TCPSocket|fsockopen|net\.Socket|net\.connect|createConnection|"
    r"socket\.socket|/inet/tcp|stream_socket_client|Socket::INET|UDPSocket)\b|/inet/"
)
FETCHES = re.compile(
    r"\b(?:LWP::Simple|LWP::UserAgent|HTTP::Tiny|Net::HTTP|open-uri|URI\.open|"
    r"file_get_contents\(\s*['\"]https?|https?\.get|fetch\(|require\(['\"]https?['\"]\)|"
    r"curl_exec|DownloadString|Invoke-WebRequest|iwr|URI\.parse|get\s*+\(?\s*+['\"]https?)"
)
EVALUATES = re.compile(
    r"\b(?:eval|instance_eval|class_eval|Function|vm\.runIn\w+|assert|create_function|iex|"
    r"Invoke-Expression|loadstring|load)\b\s*[(\s]|\(\s*eval\s*\)"
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
    r"createWriteStream|Deno\.writeTextFile\w*|unlinkSync|unlink|"
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
POWERSHELL_ENCODED = re.compile(r"[A-Za-z0-9+/=]{16,}$")


def judge_script_code(runner: Runner, language: str, code: str, call: CommandCall, site: CommandLocation) -> None:
    """Report dangerous calls in a one-liner, and judge the shell commands inside it."""
    if len(code) > MAX_CODE:
        runner.report("unknown_code", f"runs more {language} code than can be analysed", site)
        return
    runner.spend(len(code) // 60)
    if code.strip() == UNKNOWN:
        runner.report("unknown_code", f"runs {language} code that is only known at run time", site)
        return
    ran = _run_commands(runner, language, code, call, site)
    if not ran and RUNS_SOMETHING.search(code):
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
        FETCHES.search(code) or re.search(r"decode|unpack|fromCharCode|Buffer\.from|pack\(|atob", code)
    ):
        runner.report("remote_code", "evaluates code that was fetched or decoded", site)
    if SENDS.search(code) and PRIVATE_FILES.search(code):
        runner.report("exfiltration", "sends a secret over the network", site)
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


def _run_commands(runner: Runner, language: str, code: str, call: CommandCall, site: CommandLocation) -> bool:
    ran = False
    for match in ARGUMENT_LIST.finditer(code):
        words = [ExpandedWord(a or b) for a, b in re.findall(r"\"([^\"]*)\"|'([^']*)'", match.group(1))]
        if len(words) > 1:
            runner.invoke(words, call.state.copy(), None, site)
            ran = True
    for text in quoted(code, RUNS, STRING_ENDINGS):
        if text.strip():
            runner.run_text(_unquote(text), call.state.copy(), None, site)
            ran = True
    if language == "awk":
        for text in re.findall(r"\"([^\"]+)\"\s*\|\s*getline|\|\s*\"([^\"]+)\"", code):
            runner.run_text(text[0] or text[1], call.state.copy(), None, site)
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
    if language == "gdb" and re.match(r"\s*(?:shell|!)\s*(.+)", code):
        runner.run_text(re.sub(r"^\s*(?:shell|!)\s*", "", code), call.state.copy(), None, site)
    return ran


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


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _judge_files(runner: Runner, code: str, call: CommandCall, site: CommandLocation) -> None:
    for match in WRITES.finditer(code):
        path = next((group for group in match.groups() if group), "").strip()
        if path:
            judge_write(runner, reached(path, call.state), ExpandedWord(path), call.state, site)
    for match in PATHS.finditer(code):
        path = reached((match.group(1) or match.group(2)).replace("~", call.state.home, 1), call.state)
        if is_secret(path):
            runner.report("credential", f"reads the secret {path}", site, paths=(path,))
