"""The syntax tree of shell text: complete, with spans, within limits, and the same text that bash would read."""

from __future__ import annotations

import pytest

from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.syntax import (
    LiteralText,
    Redirection,
    Script,
    SimpleCommand,
    Substitution,
    SyntaxNode,
    Word,
    walk,
)

POSITIONS = {
    "command word": "{}",
    "argument": "ls {}",
    "inside a word": "ls a{}b",
    "double quotes": 'ls "a {} b"',
    "translated quotes": 'ls $"a {}"',
    "assignment": "x={}",
    "assignment before a command": "x={} ls",
    "subscript of an assignment": "x[{}]=1",
    "array": "x=(a {})",
    "array element": "x=([{}]=a)",
    "value of an array element": "x=([a]={})",
    "declared value": "declare x={}",
    "declared array": "declare -a x=({})",
    "declared subscript": "declare x[{}]=1",
    "default": "ls ${{x:-{}}}",
    "default in quotes": 'ls "${{x:-{}}}"',
    "default in single quotes in double quotes": "ls \"${{x:-'{}'}}\"",
    "default in a default": "ls ${{x:-${{y:-{}}}}}",
    "assigned default": ": ${{x:={}}}",
    "alternative": "ls ${{x:+{}}}",
    "error text": "ls ${{x:?{}}}",
    "removed pattern": "ls ${{x#{}}}",
    "replaced pattern": "ls ${{x/{}/b}}",
    "replacement": "ls ${{x//a/{}}}",
    "substring": "ls ${{x:{}:1}}",
    "changed case": "ls ${{x^^{}}}",
    "subscript": "ls ${{x[{}]}}",
    "subscript in quotes": 'ls "${{x[{}]}}"',
    "length": "ls ${{#x[{}]}}",
    "indirection": "ls ${{!x[{}]}}",
    "arithmetic": "ls $((1 + {}))",
    "old arithmetic": "ls $[1 + {}]",
    "arithmetic subscript": "ls $((x[{}]))",
    "arithmetic in single quotes": "ls $(('{}'))",
    "subscript in single quotes": "x['{}']=1",
    "arithmetic command": "((x = {}))",
    "counter": "for ((i = 0; i < {}; i++)); do ls; done",
    "redirection": "ls > {}",
    "redirection of a group": "{{ ls; }} 2> {}",
    "redirection of a subshell": "(ls) < {}",
    "redirection of a loop": "while read a; do ls; done < {}",
    "redirection of a condition": "if a; then b; fi > {}",
    "redirection of a test": "[[ a ]] 2> {}",
    "redirection of a function": "f() {{ ls; }} > {}",
    "redirection alone": "> {}",
    "here-string": "ls <<< {}",
    "here-document": "cat <<E\na {} b\nE",
    "here-document with tabs": "cat <<-E\n\ta {}\n\tE",
    "second here-document": "cat <<A <<B\na\nA\n{}\nB",
    "here-document in a substitution": "ls $(cat <<E\n{}\nE\n)",
    "process substitution": "ls <({})",
    "process substitution for output": "ls > >({})",
    "substitution": "ls $(ls {})",
    "backticks": "ls `ls {}`",
    "backticks with escapes": "ls `ls \\`ls {}\\``",
    "backticks in quotes": 'ls "`ls "{}"`"',
    "extended glob": "ls @(a|{})",
    "extended glob in an extended glob": "ls !(a|+({}))",
    "brace expansion": "ls a{{b,{}}}",
    "pipeline": "ls | {}",
    "pipeline with errors": "ls |& {}",
    "negation": "! {}",
    "timed": "time -p {}",
    "coprocess": "coproc {{ {}; }}",
    "background": "{} & ls",
    "and": "ls && {}",
    "or": "ls || {}",
    "after a newline": "ls\n\n{}",
    "subshell": "( {} )",
    "group": "{{ {}; }}",
    "if": "if {}; then ls; fi",
    "then": "if ls; then {}; fi",
    "elif": "if a; then b; elif {}; then ls; fi",
    "then of elif": "if a; then b; elif c; then {}; fi",
    "else": "if a; then b; else {}; fi",
    "while": "while {}; do ls; done",
    "until": "until {}; do ls; done",
    "loop body": "while ls; do {}; done",
    "for words": "for x in a {}; do ls; done",
    "for body": "for x in a; do {}; done",
    "for body in braces": "for x in a; {{ {}; }}",
    "select words": "select x in {}; do ls; done",
    "case subject": "case {} in a) ls;; esac",
    "case pattern": "case a in {}) ls;; esac",
    "second case pattern": "case a in b|{}) ls;; esac",
    "case pattern in parentheses": "case a in ({}) ls;; esac",
    "case body": "case a in a) {};; esac",
    "case body that falls through": "case a in a) ls;& b) {};;& esac",
    "function body": "f() {{ {}; }}; f",
    "function body with its keyword": "function f {{ {}; }}; f",
    "function that is never called": "f() ( {} )",
    "test": "[[ -n {} ]]",
    "test operand": "[[ a == {} ]]",
    "test regex": "[[ a =~ ^({}|b)$ ]]",
    "test in parentheses": "[[ a && ( ! b || {} ) ]]",
}
"""Every place in which a command can stand; `{}` is replaced by one."""


def planted(script: Script) -> list[SimpleCommand]:
    return [node for node in walk(script) if isinstance(node, SimpleCommand) and words_of(node)[:2] == ["rm", "-rf"]]


def words_of(command: SimpleCommand) -> list[str | None]:
    return [word.literal for word in command.words]


SUBSTITUTIONS = ["$(rm -rf storage)", "`rm -rf storage`", '"$(rm -rf storage)"']


@pytest.mark.parametrize("name", POSITIONS)
def test_every_substitution_is_in_the_tree(name: str) -> None:
    """A command in a substitution is found by `walk`, wherever the substitution stands."""
    for substitution in SUBSTITUTIONS:
        # Backticks in backticks need escapes.
        if "backticks" in name and "`" in substitution:
            continue
        script = parse(POSITIONS[name].format(substitution))

        assert not script.error, substitution
        assert len(planted(script)) == 1, substitution


@pytest.mark.parametrize("name", POSITIONS)
def test_every_substitution_is_judged(name: str) -> None:
    """The analyser asks about a command in a substitution, wherever that stands."""
    findings = analyse(POSITIONS[name].format("$(rm -rf storage)")).findings

    assert "recursive_delete" in [finding.rule for finding in findings]


@pytest.mark.parametrize("name", POSITIONS)
def test_spans_cut_the_nodes_out_of_the_text(name: str) -> None:
    """A node lies inside the node above it, and the span of a command is its text."""
    script = parse(POSITIONS[name].format("$(rm -rf storage)"))
    (command,) = planted(script)
    sources = [node.source for node in walk(script) if isinstance(node, Substitution) and command in walk(node)]

    assert sources[-1][command.start : command.end] == "rm -rf storage"
    if all(source is script.text for source in sources):
        check_nesting(script.body)


def check_nesting(node: SyntaxNode) -> None:
    bodies = {id(each.target) for each in walk(node) if isinstance(each, Redirection) and each.delimiter is not None}
    for each in walk(node):
        below = [other for other in walk(each) if hasattr(other, "start") and id(other) not in bodies]
        here_documents = [other for other in walk(each) if id(other) in bodies]
        if here_documents:
            continue  # A body stands behind the command that it belongs to.
        assert all(each.start <= other.start <= other.end <= each.end for other in below), each


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("rm$IFS-rf$IFS/", ["rm$IFS-rf$IFS/"]),
        ("{rm,-rf,/}", ["{rm,-rf,/}"]),
        ("time { a; }", ["a"]),
        ("cat <<A <<B; b\n1\nA\n2\nB\nc", ["cat <<A <<B", "b", "c"]),
        ("a; b & c && d || e | f\ng", ["a", "b", "c", "d", "e", "f", "g"]),
        ("{ { a; } } && ( (b) )", ["a", "b"]),
        ("((a); (b))", ["a", "b"]),
        ("(($(a <<E) ); b)\nx\nE\nc", ["$(a <<E)", "a <<E", "b", "c"]),
        ("((`a 'b'` ); c); d", ["`a 'b'`", "a 'b'", "c", "d"]),
        ("case a in (esac) b;; c) esac", ["b"]),
        ("for x; do a; done; for y do b; done", ["a", "b"]),
        ("if a;then b;fi;f(){ c;}", ["a", "b", "c"]),
        ("a # b; c\nd #e", ["a", "d"]),
        ("a#b c\\#d $#", ["a#b c\\#d $#"]),
        ("x=1 y=(a b) z[1 + 2]=3 a", ["x=1 y=(a b) z[1 + 2]=3 a"]),
        ("cat <<'E F'\n$(a)\nE F\nb", ["cat <<'E F'", "b"]),
        ("cat <<-E\n\tx\n\tE\nb", ["cat <<-E", "b"]),
        ("cat <<E $(a\nb)\nx\nE\nc", ["cat <<E $(a\nb)", "a", "b", "c"]),
        ("$(cat <<E\nx\nE) a", ["$(cat <<E\nx\nE) a", "cat <<E"]),
        ("a \"${x:-'}'}\" b", ["a \"${x:-'}'}\" b"]),
        ("[[ a < b && c =~ d|e(f g) ]] && h", ["h"]),
        ("2>&1 a >b {fd}<c &>>d <<<e", ["2>&1 a >b {fd}<c &>>d <<<e"]),
        ("in\\fi a; \\if b; 'then' c", ["in\\fi a", "\\if b", "'then' c"]),
    ],
)
def test_commands_are_split_as_bash_does(text: str, commands: list[str]) -> None:
    """The simple commands of a text, in its order."""
    script = parse(text)

    assert not script.error
    assert [text[node.start : node.end] for node in walk(script) if isinstance(node, SimpleCommand)] == commands


@pytest.mark.parametrize(
    "text",
    [
        *(
            "if",
            "if a; then fi",
            "a;; b",
            "; a",
            "a &&",
            "a |",
            "( )",
            "{ }",
            "{ a }",
            "a)",
            "(a",
            "(a) b",
            "f() a",
            "f(",
        ),
        *(
            "done",
            "then a",
            "case a in b",
            "for a in b c; d; done",
            "a < ",
            "echo a=(b)",
            "a (b)",
            "'a",
            '"a',
            "`a",
            "$(a",
        ),
        *("${a", "${a b}", "$((1", "[[ a", "[[ a b ]]", "[[ -f ]]", "a=(b", "$'a", "a[1"),
        *("in a", "a | ! b", "a && }"),
    ],
)
def test_malformed_text_is_not_understood(text: str) -> None:
    """What bash refuses has an error that says why, and is asked about."""
    assert parse(text).error
    assert analyse(text).verdict == "ask"


def test_the_commands_before_an_error_are_kept() -> None:
    """A shell reads line by line, so what stands before an error may run."""
    script = parse("a b\nc; d\nif")

    assert script.error
    assert [words_of(each) for each in script.body.commands if isinstance(each, SimpleCommand)] == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("e\\\ncho a\\\nb", ["echo", "ab"]),
        ("a 'b\\\nc' d\\\ne", ["a", "b\\\nc", "de"]),
        ('a "b\\\nc\'\\\n"', ["a", "bc'"]),
        ("a $'b\\\nc'", ["a", "b\\\nc"]),
        ("a \\\\\\\nb", ["a", "\\b"]),
        ("a # b\\\nc \\\nd", ["a", "c", "d"]),
        ("a <<'E'; b\\\nc\nd\\\ne\nE\nf", ["a", "d\\\ne\n", "bc", "f"]),
        ("a <<E\nd\\\ne\nE\nf", ["a", "de\n", "f"]),
        ("a <<E #\\\nE\nf", ["a", "f"]),
        ("a `b 'c\\\nd'`", ["a", "b", "c\\\nd"]),
        ("a $\\\n(b)&\\\n& c", ["a", "b", "c"]),
    ],
)
def test_line_continuations_are_joined_where_bash_joins_them(text: str, words: list[str]) -> None:
    """`\\`-newline vanishes everywhere but in single quotes, comments and quoted here-documents."""
    script = parse(text)

    assert not script.error
    literals = [
        "".join(part.text for part in node.parts if isinstance(part, LiteralText))
        for node in walk(script)
        if isinstance(node, Word)
    ]
    delimiters = [node.delimiter for node in walk(script) if isinstance(node, Redirection)]
    named = [each.literal for each in delimiters if each is not None] or (["E"] if delimiters else [])
    assert [literal for literal in literals if literal and literal not in [*named, "E"]] == words


NESTING = [
    "(",
    "$(",
    "{ ",
    "if ",
    '"$(',
    "`",
    "${x:-",
    "$((",
    "((",
    "case x in a) ",
    "while ",
    "f(){ ",
    "[[ (",
    "<(",
    "a=(",
]
NESTING += ["a[$(", "! ", "time ", "$[", "@(", "x=([$(", 'ls "${x:-', "if a; then b; elif c; ", "for((", "cat <<E\n$("]


@pytest.mark.parametrize("unit", NESTING)
def test_no_depth_of_nesting_is_too_much(unit: str) -> None:
    """Text decides how deep it nests, but it cannot exhaust the stack: deep text is not understood."""
    assert parse(unit * 100_000).error


def test_forty_levels_are_understood() -> None:
    """The limit is far above what people write."""
    assert not parse("(" * 39 + "a" + ")" * 39).error
    assert not parse("$(" * 39 + "a" + ")" * 39).error
    assert not parse("if a; then " * 39 + "b; " + "fi; " * 39).error
    assert not parse("! " * 30 + "a").error


def test_a_long_chain_does_not_nest() -> None:
    """Thousands of `&&`, `|`, `elif` and assignments are read in one go."""
    assert not parse(" && ".join(["a"] * 3_000)).error
    assert not parse(" | ".join(["a"] * 3_000)).error
    assert not parse("if a; then b; " + "elif a; then b; " * 3_000 + "fi").error
    assert not parse("x=1 " * 3_000 + "a").error


def test_the_tree_cannot_be_changed() -> None:
    """One tree is shared by everything that looks at a command."""
    script = parse("a <<E\nb\nE")

    with pytest.raises(AttributeError):
        script.error = "x"  # type: ignore[misc]
    assert parse("a <<E\nb\nE") == script
