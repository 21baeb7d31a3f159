"""Clients of databases: the SQL that they run, and their own commands, which run programs and touch files."""

from __future__ import annotations

import re

from toolcrib.approval.shell.command_options import SENDS_ON, judge_variable
from toolcrib.approval.shell.judge import judge_write
from toolcrib.approval.shell.model import UNKNOWN, ExpandedWord, Origin, StreamData, name_set
from toolcrib.approval.shell.options import option_values
from toolcrib.approval.shell.paths import is_protected, is_secret, resolve
from toolcrib.approval.shell.rules.base import CommandCall
from toolcrib.approval.shell.runner import CommandLocation, Handler, Runner
from toolcrib.approval.shell.script_code import judge_script_code, run_from_code
from toolcrib.approval.shell.sql import MAX_SQL, sql_danger
from toolcrib.approval.shell.state import ShellState

SQL_OPTIONS: dict[str, tuple[str, ...]] = {
    "psql": ("-c", "--command"),
    "pgcli": ("-c", "--command"),
    "cockroach": ("-e", "--execute"),
    "mysql": ("-e", "--execute", "--init-command"),
    "mariadb": ("-e", "--execute"),
    "mycli": ("-e", "--execute"),
    "sqlite3": ("-cmd",),
    "litecli": ("-e", "--execute"),
    "duckdb": ("-c", "-cmd", "-s"),
    "sqlcmd": ("-Q", "-q"),
    "clickhouse-client": ("-q", "--query"),
    "clickhouse": ("-q", "--query"),
    "cqlsh": ("-e", "--execute"),
    "sqlplus": (),
    "bq": (),
    "snowsql": ("-q",),
    "trino": ("--execute",),
    "presto": ("--execute",),
    "hive": ("-e",),
    "beeline": ("-e",),
    "impala-shell": ("-q",),
    "influx": ("-execute",),
    "usql": ("-c", "--command"),
    "osql": ("-Q", "-q"),
    "bcp": (),
    "isql": (),
    "spark-sql": ("-e",),
    "turso": (),
    "wrangler": ("--command",),
    "heroku": ("-c", "--command"),
    "supabase": (),
}
MAX_COMMANDS = 200
POSITIONAL_SQL = frozenset({"sqlite3", "duckdb", "bq", "turso"})
ESCAPE = re.compile(r"\\!\s*(.+)$|^[ \t]*(?:\.sh(?:ell)?\b|\.sys(?:tem)?\b|system\b|!|host\b)\s*+(.+)$", re.MULTILINE)
"""What a client passes to a shell."""
TARGET = re.compile(
    r"^[ \t]*\.(?:output|once|save|backup|log|excel|www|read|import|clone|cd|open"
    r"|archive)\b(?:[ \t]+-\S+)*[ \t]+(?P<sqlite>.+)$"
    r"|\\(?:o|out|w|write|g|gx|i|ir|include|include_relative|s|T|P|\.|lo_import|lo_export"
    r"|cd)\b(?:[ \t]*\([^)(]{0,100}\))?[ \t]*(?:\d+[ \t]+)?"
    r"(?P<psql>\|.+|'[^']*'|\"[^\"]*\"|[^\s\\;]+)"
    r"|^[ \t]*(?:tee|pager|source|spool|nopager|edit)\b[ \t]+(?P<mysql>[^;\n]+)",
    re.MULTILINE,
)
"""What a client's own command writes to, reads from, or pipes to: a file, or a command after a bar."""
COPY = re.compile(
    r"\\copy\b[^\\]{1,200}?\b(?:to|from)\s+(?P<program>program\s+)?(?P<target>'(?:[^']|'')*'|\"[^\"]*\"|\S+)",
    re.I | re.S,
)
BACKTICKS = re.compile(r"\\\w+[^\n`\\]{0,200}`([^`]+)`")
SETS_VARIABLE = re.compile(r"\\setenv\s+(\w+)\s+('[^']*'|\"[^\"]*\"|\S+)")
RUNS_RESULTS = re.compile(r"\\gexec\b")
LOADS = re.compile(
    r"load_extension\s*\(|^[ \t]*\.load\b|\binstall\s+plugin\b|\bcreate\s+function\b.{1,120}?\bsoname\b"
    r"|\binstall\s+\S+\s+from\s+'"
    r"|\bcreate\s+(?:or\s+replace\s+)?(?:function|procedure|language|extension)\b.{0,200}?\b(?:plpython\w*|plperlu|pltclu|plsh|language\s+c)\b"
    r"|^[ \t]*load\s+'[^']*/",
    re.IGNORECASE | re.MULTILINE,
)
EDITS = re.compile(r"\bedit\s*\(\s*[^,()]+,\s*'([^']+)'", re.IGNORECASE)
WRITES = re.compile(
    r"\b(?:into\s+(?:out|dump)file|vacuum\s+(?:\w+\s+)?into|attach(?:\s+database)?|export\s+database|writefile\s*\("
    r"|backup\s+(?:database\s+\w+\s+)?to(?:\s+disk\s*=)?|restore\s+from|lo_export\s*\(\s*\d+\s*,|\bcopy\b[^;]{1,120}?\bto)\s*\(?\s*'([^']{1,400})'",
    re.IGNORECASE,
)
STRING = re.compile(r"'([^'\n]{2,400})'|\"([^\"\n]{2,400})\"")
REMOTE_TARGET = re.compile(r"\bcopy\b[^;]{1,120}?\bto\s+'(?:s3|gs|gcs|r2|https?|az|abfss)://", re.IGNORECASE)
SENDING_SHELL = re.compile(
    r"\s*(?:\w+=\S*\s+)*(?:\S*/)?(?:ba|z|da|k|a|fi)?sh\b(?!.*\s-c)|\s*(?:\S*/)?(?:python[\d.]*|perl|ruby|node|php)\s*-?$"
)


def sql_client(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge the SQL that a client gets from options, operands or standard input."""
    texts = option_values(call.words, SQL_OPTIONS[call.program])
    if call.program in POSITIONAL_SQL:
        texts += call.arguments.operands[1:]
    stdin = call.stdin
    if stdin is not None and stdin.text is not None and not texts:
        texts.append(ExpandedWord(stdin.text))
    elif stdin is not None and stdin.origin & (Origin.NETWORK | Origin.DECODED):
        runner.report("remote_code", "runs SQL from the network", site)
    elif (
        stdin is not None
        and stdin.origin & Origin.PROGRAM
        and not texts
        and call.program in ("psql", "mysql", "mariadb")
    ):
        runner.report("sql", "runs SQL that is only known at run time", site)
    for value in call.arguments.values("-f", "--file", "-i", "-init"):
        data = call.state.files.get(resolve(value, call.state))
        if data is not None and data.text is not None:
            texts.append(ExpandedWord(data.text))
        elif data is not None and data.origin & (Origin.NETWORK | Origin.DECODED):
            runner.report("remote_code", "runs SQL from the network", site)
    for text in texts:
        judge_sql(runner, call, text.text, site)
    dumps = any(DOT_DUMP.match(text.text) for text in texts)
    return StreamData(None, Origin.PROGRAM | (Origin.PRIVATE if dumps else 0))


DOT_DUMP = re.compile(r"\s*\.dump\b")
"""What makes SQLite print a whole database, as `pg_dump` does."""


def judge_sql(runner: Runner, call: CommandCall, text: str, site: CommandLocation) -> None:
    if text.strip() == UNKNOWN or len(text) > MAX_SQL:
        runner.report("sql", "runs SQL that is only known at run time", site)
        return
    runner.spend(1 + len(text) // 120)
    reason = sql_danger(text)
    if reason:
        runner.report("sql", reason, site)
    judge_client_commands(runner, call, text, site)
    for target in WRITES.findall(text):
        write(runner, target, call, site)
    for editor in EDITS.findall(text):
        pipe_to(runner, editor, call, site)
    if "://" in text and REMOTE_TARGET.search(text):
        runner.report("exfiltration", "copies data to an address on the network", site)
    if LOADS.search(text):
        runner.report("unknown_code", "loads a library or a language into the database", site)
    if "'" in text or '"' in text:
        judge_strings(runner, call, text, site)


def judge_client_commands(runner: Runner, call: CommandCall, text: str, site: CommandLocation) -> None:
    """Judge what is not SQL, but a command of the client itself."""
    if text.find("\\") < 0 and not CLIENT_LINE.search(text):
        return
    for escaped in ESCAPE.findall(text):
        run_from_code(runner, escaped[0] or escaped[1], call, site)
    for code in BACKTICKS.findall(text):
        runner.run_text(code, call.state.copy(), None, site)
    for name, value in SETS_VARIABLE.findall(text):
        judge_variable(runner, name, ExpandedWord(value.strip("'\"")), call, site)
    if RUNS_RESULTS.search(text):
        runner.report("sql", "runs the results of a query as SQL", site)
    for copied in COPY.finditer(text):
        target = copied.group("target").strip("'\"").replace("''", "'")
        if copied.group("program"):
            pipe_to(runner, target, call, site)
        else:
            write(runner, target, call, site)
    for number, found in enumerate(TARGET.finditer(text)):
        if number >= MAX_COMMANDS:
            runner.report("sql", "has more commands of the client than can be analysed", site)
            return
        target = (found.group("sqlite") or found.group("psql") or found.group("mysql") or "").strip()
        if target.startswith(("|", "'|", '"|')) or found.group().lstrip().startswith(("pager", "\\P")):
            pipe_to(runner, target.strip("'\"").lstrip("|").strip("'\""), call, site)
        else:
            # Tables and options may follow; only a path is a file.
            for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", target)[:4]:
                write(runner, word.strip("'\""), call, site)


CLIENT_LINE = re.compile(
    r"^[ \t]*(?:\.[a-z]|!|(?:tee|pager|source|spool|edit|system|host)\b)", re.MULTILINE | re.IGNORECASE
)


def pipe_to(runner: Runner, command: str, call: CommandCall, site: CommandLocation) -> None:
    """Judge a command that gets rows of the database as its input."""
    if SENDING_SHELL.match(command):
        runner.report("unknown_code", "runs data of the database as code", site)
    sender = SENDS_ON.search(command)
    if sender is not None:
        runner.report("exfiltration", f"passes data of the database to {sender.group()}", site)
    runner.run_text(command, call.state.copy(), StreamData(None, Origin.PROGRAM), site)


def write(runner: Runner, name: str, call: CommandCall, site: CommandLocation) -> None:
    path = resolve(at_home(name, call.state), call.state)
    if is_secret(path):
        runner.report("credential", f"reads or replaces the secret {name[:80]}", site, paths=(path,))
    else:
        judge_write(runner, path, ExpandedWord(name), call.state, site)


def judge_strings(runner: Runner, call: CommandCall, text: str, site: CommandLocation) -> None:
    """Report a secret or a protected file that a string names, whatever function of the database takes it."""
    for single, double in STRING.findall(text)[:200]:
        name = (single or double).removeprefix("file://")
        if name[:1] not in "/~":
            continue
        path = resolve(at_home(name, call.state), call.state)
        if is_secret(path):
            runner.report("credential", f"may read the secret {name[:80]}", site, paths=(path,))
            return
        if is_protected(path, call.state):
            runner.report("system_config", f"may change {name[:80]}, which the user's programs run or read", site)
            return


def at_home(name: str, state: ShellState) -> str:
    return state.home + name[1:] if name.startswith("~/") else name


def document_client(runner: Runner, call: CommandCall, site: CommandLocation) -> StreamData:
    """Judge the JavaScript that a shell for documents runs."""
    texts = [each.text for each in call.arguments.values("--eval")]
    if call.stdin is not None and call.stdin.text is not None:
        texts.append(call.stdin.text)
    for text in texts:
        judge_script_code(runner, "node", text, call, site)
    return StreamData(None, Origin.PROGRAM)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(SQL_OPTIONS, sql_client),
    **dict.fromkeys(name_set("mongosh mongo arangosh"), document_client),
}
