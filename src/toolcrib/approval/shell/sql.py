"""Splits SQL into tokens and tells whether it destroys data."""

from __future__ import annotations

import re

from toolcrib.approval.shell.model import name_set

_TOKEN = re.compile(
    r"--[^\n]*|#(?![>\-])[^\n]*|/\*.*?(?:\*/|$)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|"
    r"\$(\w*)\$.*?\$\1\$|\w+(?:\.\w+)*|[;(),=<>!]+|\S",
    re.DOTALL,
)
DROPS = name_set(
    "table database schema user role index view materialized sequence function procedure "
    "trigger type extension tablespace column keyspace collection "
    "constraint policy owned publication subscription server login partition domain event foreign external dictionary"
)
RUNS_TEXT = name_set("do execute exec prepare immediate sp_executesql")
MAX_SQL = 60_000


def sql_danger(text: str) -> str:
    """A one-line reason if the SQL destroys data or grants privileges; empty otherwise."""
    for statement in statements(text):
        reason = statement_danger(statement)
        if reason:
            return reason
    return ""


CLIENT_COMMAND = re.compile(
    r"^[ \t]*(?:\\[a-z]|\.[a-z]|(?:use|delimiter)[ \t]+\S+[ \t]*$)[^\n]*(?:\n|\Z)|[ \t]\\g\w*[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
"""`\\timing`, `.headers on`, `use shop` and `delimiter //` on a line of their own, and `\\g` at the end of one."""


def statements(text: str) -> list[list[str]]:
    """The statements as lists of lower-case tokens, without comments."""
    result: list[list[str]] = [[]]
    # A client's own command ends with its line, so that what follows is a statement.
    for match in _TOKEN.finditer(CLIENT_COMMAND.sub(";\n", text)):
        token = match.group()
        # MySQL runs the contents of `/*! … */`.
        if token.startswith("/*!"):
            result[-1].extend(inner.group().lower() for inner in _TOKEN.finditer(re.sub(r"^/\*!\d*|\*/$", "", token)))
        elif token.startswith(("--", "/*", "#")):
            continue
        elif token.startswith(";"):
            result.append([])
        else:
            result[-1].append(token.lower())
    return [statement for statement in result if statement]


def statement_danger(words: list[str]) -> str:
    verb = words[0]
    if verb in ("explain", "describe", "desc", "show") and not ("analyze" in words[:3] and "delete" in words):
        return ""
    if verb == "drop" and len(words) > 1:
        return f"drops a {words[1]}"
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if (
            word == "drop"
            and following in DROPS
            and (number == 0 or verb in ("alter", "begin", "do", "execute", "with", "drop", "if", "use", "start"))
        ):
            return f"drops a {following}"
        if word == "truncate" and number in (0, 1) and following not in ("(",):
            return "empties a table"
        if (
            word == "delete"
            and following in ("from", "low_priority", "quick", "ignore")
            and starts_statement(words, number)
        ):
            reason = unfiltered(words[number:])
            if reason:
                return f"deletes {reason}"
        if word == "update" and starts_statement(words, number) and "set" in words[number:]:
            reason = unfiltered(words[number:])
            if reason:
                return f"changes {reason}"
        if word in RUNS_TEXT:
            reason = quoted_danger(words[number + 1 : number + 5])
            if reason:
                return reason
        if word in ("pg_terminate_backend", "xp_cmdshell", "pg_read_file", "lo_export", "load_file", "sys_exec"):
            return f"calls {word}"
    if verb == "grant" and ("all" in words or "superuser" in words):
        return "grants all privileges"
    if verb in ("revoke", "shutdown") or (
        verb == "alter" and words[1:2] in (["user"], ["role"], ["system"], ["login"])
    ):
        return f"changes the server or its users ({verb})"
    if verb == "copy" and "program" in words:
        return "runs a program on the database server"
    if verb == "into" or ("into" in words and ("outfile" in words or "dumpfile" in words)):
        return "writes a file on the database server"
    if verb == "reset" and words[1:2] in (["master"], ["slave"]):
        return "resets replication"
    if verb == "flushall" or verb == "flushdb":
        return "empties the database"
    return ""


def quoted_danger(words: list[str]) -> str:
    """The danger in the first string among these words, since the server runs it as SQL."""
    for word in words:
        body = re.fullmatch(r"n?'(.*)'|\$(\w*)\$(.*)\$\2\$", word, re.DOTALL)
        if body:
            return sql_danger(body.group(3) or (body.group(1) or "").replace("''", "'"))
    return ""


def starts_statement(words: list[str], number: int) -> bool:
    """True where a verb acts: at the start, or after a common table expression."""
    return (
        number == 0
        or words[0] in ("with", "begin", "explain", "do", "start")
        or words[number - 1] in (")", "(", "as", "then", "begin")
    )


def unfiltered(words: list[str]) -> str:
    """Why a DELETE or UPDATE touches every row; empty when its WHERE limits it."""
    if "where" not in words:
        return "every row (no WHERE)" if "limit" not in words and "using" not in words and "join" not in words else ""
    condition = words[words.index("where") + 1 :]
    condition = [word for word in condition if word not in ("(", ")")]
    if always_true(condition):
        return "every row (the WHERE is always true)"
    return ""


def always_true(condition: list[str]) -> bool:
    """True for `1=1`, `true`, `'a'='a'`, and for `… OR 1=1`."""
    for part in split_on(condition, "or"):
        if part in (["true"], ["1"]) or (len(part) == 3 and part[1] in ("=", "like") and part[0] == part[2]):
            return True
        if (
            len(part) == 3
            and part[1] in ("<>", "!=")
            and part[0] != part[2]
            and part[0].isdecimal()
            and part[2].isdecimal()
        ):
            return True
        if len(part) == 3 and part[1] in ("<", ">") and part[0].isdecimal() and part[2].isdecimal():
            return True
        if part in (["not", "false"], ["1", "is", "not", "null"]):
            return True
    return False


def split_on(words: list[str], separator: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == separator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
