"""A dangerous substitution is found in every position of shell text: planted, judged as text, and never run."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.approval.shell.generated_shell import script
from tests.approval.shell.shell_rows import read_rows
from toolcrib.approval.analyse import analyse
from toolcrib.approval.shell.evaluate import Evaluator
from toolcrib.approval.shell.model import NotUnderstood
from toolcrib.approval.shell.parser import parse
from toolcrib.approval.shell.state import ShellState
from toolcrib.approval.shell.syntax import (
    LiteralText,
    ParameterExpansion,
    Redirection,
    Script,
    SimpleCommand,
    SyntaxNode,
    Word,
    walk,
)

DANGEROUS = "rm -rf /"
PLANTED = (
    f"$({DANGEROUS})",
    f'"$({DANGEROUS})"',
    f"`{DANGEROUS}`",
    f"<({DANGEROUS})",
    f"${{v:-$({DANGEROUS})}}",
    f"\"${{v:-'$({DANGEROUS})'}}\"",
    f"${{PATH+$({DANGEROUS})}}",
    f"${{v[$({DANGEROUS})]}}",
    f"$((v[$({DANGEROUS})]))",
    f"${{v/a/$({DANGEROUS})}}",
    f"${{v:-<({DANGEROUS})}}",
    f"${{v:=>({DANGEROUS})}}",
    f'"${{v/a/<({DANGEROUS})}}"',
    f'"${{v%%<({DANGEROUS})}}"',
)
SEEDS = 120
MAX_SEED_CHARACTERS = 240


def seeds() -> list[str]:
    chance = random.Random(19)
    harmless = [row.command for row in read_rows("corpus_safe.jsonl") if len(row.command) <= MAX_SEED_CHARACTERS]
    made = [script(chance) for _ in range(SEEDS)]
    return [*chance.sample(harmless, SEEDS), *(text for text in made if len(text) <= MAX_SEED_CHARACTERS)]


def positions(parsed: Script) -> set[int]:
    """Where something can be inserted: around every literal and word, and before the end of every `${…}`."""
    found: set[int] = set()
    # What ends a here-document is never expanded.
    delimiters = {id(node.delimiter) for node in walk(parsed.body) if isinstance(node, Redirection)}
    skipped = {id(node) for each in walk(parsed.body) if id(each) in delimiters for node in walk(each)}
    for node in walk(parsed.body):
        if id(node) in skipped:
            continue
        if isinstance(node, LiteralText | Word):
            found |= {node.start, node.end}
        elif isinstance(node, ParameterExpansion):
            found.add(node.end - 1)
    return found


def dangers(node: SyntaxNode) -> int:
    return sum(
        isinstance(each, SimpleCommand) and [word.literal for word in each.words] == DANGEROUS.split()
        for each in walk(node)
    )


def planted(seed: str, chance: random.Random) -> Iterator[str]:
    """The seed with one substitution planted, once for each position where it is one."""
    parsed = parse(seed)
    if parsed.error or parsed.text != parsed.source:
        return
    before = dangers(parsed.body)
    for at in sorted(positions(parsed)):
        text = seed[:at] + chance.choice(PLANTED) + seed[at:]
        found = parse(text)
        if not found.error and dangers(found.body) > before:
            yield text


@pytest.mark.quick_rows(4)
@pytest.mark.parametrize("part", range(4))
def test_substitution_planted_anywhere_is_judged(part: int) -> None:
    """Wherever a shell could evaluate a substitution, the verdict is at least what its command deserves."""
    chance = random.Random(part)

    missed = [text for seed in seeds()[part::4] for text in planted(seed, chance) if analyse(text).verdict == "safe"]

    assert missed == []


DELAYED = [
    "let 'x[@]=1'",
    "let y=1 'x[@]'",
    "[[ -v 'x[@]' ]]",
    "[[ a && -v 'x[@]' ]]",
    "[[ 'x[@]' -gt 1 ]]",
    "[[ 1 -lt 'x[@]' ]]",
    "test -v 'x[@]'",
    "[ ! -v 'x[@]' ]",
    "printf -v 'x[@]' a",
    "printf -v'x[@]' a",
    "read 'x[@]' <<< a",
    "read -r a 'x[@]'",
    "unset 'x[@]'",
    "unset -v a 'x[@]'",
    "declare 'x[@]=1'",
    "n='x[@]'; declare \"$n=1\"",
    "n='x[@]'; export \"$n\"",
    "typeset -i x='y[@]'",
    "declare -i x; x='y[@]'",
    "declare -i x; x+='y[@]'",
    "declare -i x; read x <<< 'y[@]'",
    "declare -i x; for x in 'y[@]'; do :; done",
    "f() { local -i n=$1; }; f 'y[@]'",
    "declare -n r='x[@]'; echo $r",
    "declare -n r='x[@]'; r=1",
    "declare -n r; r='x[@]'; r=1",
    "n='x[@]'; echo ${!n}",
    "n='x[@]'; echo ${!n:-a}",
    "x='y[@]'; echo $((x))",
    "x='y[@]'; echo $((1 + x))",
    "x='1 + y[@]'; echo $[x]",
    "x='y[@]'; ((x++))",
    "x='y[@]'; z=x; ((z))",
    "x='y[@]'; let z=x",
    "x='y[@]'; for ((i = x; i < 2; i++)); do :; done",
    "x='y[@]'; echo ${z[x]}",
    "x='y[@]'; echo ${z[x + 1]:-a}",
    "x='y[@]'; echo ${z:x}",
    "x='y[@]'; echo ${z:0:x}",
    "x='y[@]'; echo ${z:$x}",
    "x='y[@]'; z[x]=1",
    "x='y[@]'; z=([x]=1); [[ x -eq 1 ]]",
    "x=('y[@]'); echo $((x))",
    "x=(1 'y[@]'); echo $((x[1]))",
    "read x <<< 'y[@]'; echo $((x))",
    "x=$(echo 'y[@]'); echo $((x))",
    "for x in 'y[@]'; do ((x)); done",
    "f() { echo $(($1)); }; f 'y[@]'",
    "set -- 'y[@]'; echo $(($1))",
    "x='y[@]'; [[ $x -eq 1 ]]",
    "x='y[@]'; test -v \"$x\"",
    "x='y[@]'; read \"$x\" <<< 1",
    "x='y[@]'; echo {1..$((x))}",
    "compgen -W '@'",
    "wait -n -p 'x[@]'",
]
"""Text that the shell evaluates later than it reads it; `@` is the substitution."""


@pytest.mark.parametrize("text", DELAYED)
def test_substitution_in_a_value_that_the_shell_calculates_is_judged(text: str) -> None:
    """Subscripts and the values of variables in arithmetic are evaluated again, so what they run is judged."""
    assert analyse(text.replace("@", f"$({DANGEROUS})")).verdict == "block"
    assert analyse(text.replace("@", "$(date +%s)")).verdict == "safe"


@pytest.mark.parametrize(
    "text",
    [
        f"export a=1 b=$({DANGEROUS})",
        f'declare -x a "b=$({DANGEROUS})"',
        f'readonly a=1 b="$({DANGEROUS})"',
        f"command export a=1 b=$({DANGEROUS})",
        f"case x in a|$({DANGEROUS})) ;; esac",
        f'case x in a) ;; "$({DANGEROUS})") ;; esac',
        f"f() {{ :; }} > $({DANGEROUS}); f",
        f"f() {{ :; }} <<< $({DANGEROUS}); f",
        f"f() {{ cat; }} <<E\n$({DANGEROUS})\nE\nf",
        f"x=1; echo ${{x:-$({DANGEROUS})}}",
        f"echo ${{HOME:-$({DANGEROUS})}}",
        f"for i in; do $({DANGEROUS}); done",
        f'x=(); for i in "${{x[@]}}"; do $({DANGEROUS}); done',
        "${TERM+rm} -rf /",
        "${SHLVL:+rm -rf} /",
        "rm -rf ${USER+/}",
    ],
)
def test_position_that_depends_on_what_is_set_is_judged(text: str) -> None:
    """A variable that is not known may be set, and a list that is not known may have words."""
    assert analyse(text).verdict == "block"


def test_part_that_nobody_evaluated_is_not_understood() -> None:
    """The verdict needs every substitution, calculation and here-document: one that was skipped is asked about."""

    class Forgetful(Evaluator):
        def condition(self, *_: object) -> None:
            """Skip the condition of a loop."""

    parsed = parse("while $(date); do ls; done")

    with pytest.raises(NotUnderstood, match="was not evaluated"):
        Forgetful().run(parsed, ShellState(home="/home/user", cwd=""))


def test_tree_lists_what_must_be_evaluated() -> None:
    """Substitutions, calculations and here-documents are listed, but not those of a reading that was given up."""
    parsed = parse("echo $((1 + $(a))) `b` <(c) $[d] <<E\n$(e)\nE\n$((f) | (g))")

    assert len(parsed.dynamic) == 8
    assert {id(node) for node in parsed.dynamic} <= {id(node) for node in walk(parsed.body)}
