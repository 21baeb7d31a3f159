"""Makes shell text for the tests of the parser: well-formed by a grammar, or any row of tokens."""

from __future__ import annotations

import random

WORDS = (
    *("a", "b.txt", "-x", "'q r'", '"$v"', "$v", "${v:-d}", "$(c d)", "`c`", "a{b,c}", "*.py", "x=1", "~/x", "\\;"),
    *(
        '"a $(b "c") d"',
        "${v[$(b)]}",
        "${v//a/$(b)}",
        "$((1 + $(b)))",
        "$'x\\n'",
        '$"y"',
        "a\\\nb",
        "'a\\\nb'",
        "<(a b)",
    ),
    *(
        '"${v:-"a b"}"',
        "@(a|b)",
        "$[1 + 2]",
        "a#b",
        "\\#",
        "${#v}",
        "${!v}",
        "${v%.*}",
        '"it\'s"',
        "é",
        "2",
        "in",
        "fi",
    ),
)
REDIRECTIONS = (
    "> f",
    "2>&1",
    "< f",
    "&> f",
    "<<< w",
    ">> f",
    "2>/dev/null",
    "< <(a)",
    "> >(a)",
    "{fd}<f",
    ">|f",
    ">&-",
)
ASSIGNMENTS = ("x=1", "x=", "x=$(a b)", "x=(a 'b c')", "x[1 + 2]=3", "x+=y", "x=([a b]=c [1]=$(d))")
JOINTS = ("; ", " && ", " || ", " | ", " & ", "\n", " |& ", " &&\n", " |\n\n", " # c\n", " \\\n; ", ";")
TESTS = ("-n $x", "a == b*", "$a < b && -f c", "( a || ! b ) && c", "$x =~ ^(a|b)+$", "a -eq 1", "$(a) != @(b|c)")
TOKENS = (
    *("a", "b", "x=1", "x=(a b)", "a[1]=2", "'q'", '"d $v"', "$v", "${v:-d}", "$(a)", "`a`", "$((1+2))", "<(a)", "if"),
    *(
        "then",
        "else",
        "elif",
        "fi",
        "while",
        "until",
        "do",
        "done",
        "for",
        "in",
        "case",
        "esac",
        "{",
        "}",
        "(",
        ")",
        "((",
    ),
    *(
        "))",
        "[[",
        "]]",
        "!",
        "time",
        "function",
        "f()",
        "select",
        "coproc",
        "&&",
        "||",
        "|",
        "|&",
        "&",
        ";",
        ";;",
        ";&",
    ),
    *(
        "\n",
        "> f",
        "2>&1",
        "<<< w",
        "<<E\nb\nE\n",
        "x+=y",
        "-f",
        "==",
        "=~",
        "#c\n",
        "\\\n",
        "\\;",
        "*.py",
        "@(a|b)",
        "1",
    ),
    *("for i in a b; do", "case a in b)", "if a; then", "while a; do", "[[ a ]]", "((1))", "declare", "a;", "; }", "~"),
    *("; done", "; fi", ";; esac", "-p", "--", "{a,b}", "a=", "<", "x", "()", "<<'E'\nq\nE\n", "$'x'", '$"y"', "&>f"),
    *("{fd}>f", "$[1]", "a\\\nb", "$\\\n(a)", "&\\\n&", "\t"),
)


def tokens(chance: random.Random) -> str:
    """A row of tokens; most are no valid shell text."""
    return "".join(chance.choice(TOKENS) + chance.choice((" ", " ", " ", "")) for _ in range(chance.randint(1, 9)))


def script(chance: random.Random, depth: int = 3) -> str:
    """A well-formed text."""
    parts = [command(chance, depth)]
    for _ in range(chance.choice((0, 0, 1, 2))):
        parts += [chance.choice(JOINTS), command(chance, depth)]
    return "".join(parts)


def command(chance: random.Random, depth: int) -> str:
    if depth == 0 or chance.random() < 0.4:
        return simple(chance, depth)
    inner = script(chance, depth - 1)
    other = script(chance, depth - 1)
    return chance.choice(
        (
            f"( {inner}\n)",
            f"{{ {inner}\n}}",
            f"if {inner}\nthen {other}\nelse\n{inner}\nfi",
            f"if a; then {inner}\nelif {other}\nthen b; fi > f",
            f"for i in {words(chance)}; do {inner}\ndone",
            f"for ((i=0; i<$(a); i++)); do {inner}\ndone",
            f"for i do {inner}\ndone",
            f"while {inner}\ndo {other}\ndone < f",
            f"until a; do {inner}\ndone",
            f"select i in a; do {inner}\ndone",
            f"case {chance.choice(WORDS)} in a|b) {inner}\n;; ('c d') {other}\n;& *) esac",
            f"f() {{ {inner}\n}}",
            f"function g\n( {inner}\n)",
            f"x=$({inner}\n) a",
            f"{{ time {simple(chance, depth)}\n}}",
            f"{{ ! {simple(chance, depth)}\n}}",
            f"[[ {chance.choice(TESTS)} ]]",
            "(( x = $(a) + y[1] ))",
            f"cat <( {inner}\n)",
            f"cat <<E {words(chance)}\nx $(a b) ${{y:-$(c)}} \\$z\nE\n{simple(chance, depth)}",
            f"cat <<'E' <<-F\n$(a)\\\nE\n\tb $(c)\n\tF\n{simple(chance, depth)}",
            f'a "$({inner}\n)"',
            f"coproc {{ {inner}\n}}",
        )
    )


def simple(chance: random.Random, depth: int) -> str:
    parts = [chance.choice(ASSIGNMENTS)] if chance.random() < 0.15 else []
    parts += ["echo", words(chance)] if not parts or depth else []
    if chance.random() < 0.25:
        parts.append(chance.choice(REDIRECTIONS))
    if chance.random() < 0.1:
        parts.insert(0, chance.choice(REDIRECTIONS))
    return " ".join(parts)


def words(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 4)))
