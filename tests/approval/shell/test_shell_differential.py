"""What an independent shell parser accepts, the analyser reads or asks about."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.approval.shell.shell_rows import read_rows, tables
from toolcrib.approval.analyse import analyse

SHFMT = shutil.which("shfmt") or str(Path(sys.executable).parent / "shfmt")
SEPARATOR = "\n"

words = st.sampled_from(
    ["a", "b.txt", "-x", "'q r'", '"$v"', "$v", "${v:-d}", "$(c d)", "`c`", "a{b,c}", "*.py", "x=1", "~/x", "\\;"]
)
simple = st.lists(words, min_size=1, max_size=4).map(lambda parts: "echo " + " ".join(parts))
redirected = st.tuples(simple, st.sampled_from(["> f", "2>&1", "< f", "&> f", "<<< w", ">> f", "2>/dev/null"])).map(
    " ".join
)
commands = st.recursive(
    simple | redirected,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["; ", " && ", " || ", " | ", " & ", "\n", " |& "]), inner).map("".join),
        inner.map("( {} )".format),
        inner.map("{{ {}; }}".format),
        inner.map("if {0}; then {0}; else {0}; fi".format),
        inner.map("for i in a b; do {}; done".format),
        inner.map("while {0}; do {0}; done".format),
        inner.map("case x in a|b) {0};; *) {0};; esac".format),
        inner.map("f() {{ {}; }}".format),
        inner.map("x=$({})".format),
        inner.map("time {}".format),
        inner.map("[[ -n $x ]] && {}".format),
        inner.map("cat <({})".format),
        inner.map("! {}".format),
    ),
    max_leaves=6,
)


@pytest.mark.skipif(not Path(SHFMT).exists(), reason="shfmt is not installed")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(commands, min_size=1, max_size=10))
def test_accepted_commands_are_read_or_asked_about(batch: list[str]) -> None:
    """A generated harmless command that shfmt parses is safe here, or asked about as not understood."""
    done = subprocess.run([SHFMT, "-ln", "bash"], input="\n".join(batch), capture_output=True, text=True, check=False)
    if done.returncode:
        return

    for command in batch:
        assessment = analyse(command)
        assert assessment.verdict in ("safe", "ask")
        assert not [reason for reason in assessment.not_understood if "analyser failed" in reason], command
        assert not assessment.not_understood, (command, assessment.not_understood)


@pytest.mark.skipif(not Path(SHFMT).exists(), reason="shfmt is not installed")
@pytest.mark.parametrize("table", tables())
def test_what_shfmt_rejects_is_never_safe(table: str) -> None:
    """A labelled command that is no valid shell syntax is asked about."""
    rejected = [
        row.command for row in read_rows(table) if len(row.command) < 2_000 and analyse(row.command).not_understood
    ]

    for command in rejected[:50]:
        assert analyse(command).verdict == "ask", command
