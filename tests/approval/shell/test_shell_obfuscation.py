"""However a dangerous command is written, it never comes out safe."""

from __future__ import annotations

import base64
import shlex

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toolcrib.approval.analyse import analyse

DANGEROUS = [
    "rm -rf uploads",
    "git push --force",
    "chmod 777 run.sh",
    "systemctl stop nginx",
    "pkill -9 node",
    "dropdb prod",
    "kubectl delete pod web",
    "terraform destroy",
    "cat /etc/shadow",
    "useradd bob",
]
TOKENS = [
    "rm",
    "-rf",
    "/",
    "$x",
    '"',
    "'",
    "(",
    ")",
    "{",
    "}",
    ";",
    "|",
    "<<A",
    "\n",
    "&&",
    "$(",
    "`",
    "\\",
    "if",
    "do",
]
TOKENS += ["esac", "=", "é", "\x00", "case x in", "[[", "((", "f()", "<(", "${x:-"]
WORDS = st.sampled_from(DANGEROUS).map(str.split)


def split_quotes(word: str, at: int, quote: str) -> str:
    at = at % max(1, len(word))
    return f"{word[:at]}{quote}{word[at:]}{quote}" if at else f"{quote}{word}{quote}"


def ansi(word: str) -> str:
    return "$'" + "".join(f"\\x{ord(character):02x}" for character in word) + "'"


def escaped(word: str) -> str:
    return "".join("\\" + character if character.isalpha() else character for character in word)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """One dangerous command with each word written in some other way."""
    words = draw(WORDS)
    spell = st.sampled_from(["plain", "single", "double", "ansi", "escape", "empty", "continuation"])
    result = []
    for word in words:
        way = draw(spell)
        at = draw(st.integers(0, 8))
        if way == "single":
            word = split_quotes(word, at, "'")
        elif way == "double":
            word = split_quotes(word, at, '"')
        elif way == "ansi":
            word = ansi(word)
        elif way == "escape":
            word = escaped(word)
        elif way == "empty":
            word = word[:1] + "''" + word[1:]
        elif way == "continuation" and len(word) > 1:
            word = word[:1] + "\\\n" + word[1:]
        result.append(word)
    return draw(st.sampled_from([" ", "  ", "\t", " \\\n "])).join(result)


def through_variables(command: str) -> str:
    program, *rest = command.split()
    return f"p={program[:1]}; q={program[1:]}; $p$q {' '.join(rest)}"


WRAPPINGS = [
    "{}",
    "sudo {}",
    "sudo -n -u root {}",
    "env A=1 {}",
    "env -i {}",
    "timeout -k 5 30 {}",
    "nice -n 5 {}",
    "nohup {} &",
    "stdbuf -oL {}",
    "setsid {}",
    "time {}",
    "coproc {}",
    "! {}",
    "A=1 {}",
    "true && {}",
    "false || {}",
    "ls; {}",
    "ls | cat; {}",
    "( {} )",
    "{{ {}; }}",
    "if true; then {}; fi",
    "while true; do {}; done",
    "for i in 1 2; do {}; done",
    "case x in x) {};; esac",
    "f() {{ {}; }}; f",
    "f() {{ {}; }}",
    "echo $( {})",
    "echo `{}`",
    'echo "$( {})"',
    "cat <({})",
    "x=$( {})",
    "echo $(( $( {}) + 1 ))",
    "bash <<'EOF'\n{}\nEOF",
    "cat <<'EOF' | sh\n{}\nEOF",
    "ls # x\n{}",
]
QUOTED_WRAPPINGS = [
    "sh -c {}",
    "bash -lc {}",
    "eval {}",
    "bash <<< {}",
    "echo {} | sh",
    "printf '%s\\n' {} | bash",
    "ssh host {}",
    "trap {} EXIT",
    "watch {}",
    "su -c {}",
    "script -c {} /dev/null",
    "xargs -I% sh -c {}",
    "find . -exec sh -c {} \\;",
    "flock /tmp/l -c {}",
    'x={}; eval "$x"',
    "x={}; $x",
    "alias d={}; d",
    "source <(echo {})",
    "echo {} > >(bash)",
    "tee >(sh) <<< {}",
    "sort <<< {} | sh",
    "head -1 <<< {} | bash",
    "exec 3<<< {}; bash <&3",
    "bash /dev/fd/3 3<<< {}",
    "echo {} 3> >(sh) >&3",
    "declare -n r=c; c={}; $r",
    "compgen -C {}",
    "npm pkg set scripts.x={} && npm run x",
    'python3 -c "import os; os.system("{}")"',
]


@settings(max_examples=300, deadline=None)
@given(spelled(), st.sampled_from(WRAPPINGS), st.sampled_from(WRAPPINGS))
def test_spelling_and_wrapping_never_hide_a_danger(command: str, inner: str, outer: str) -> None:
    """Quotes, escapes, continuation lines and wrappers around each other leave a command dangerous."""
    # Backticks inside backticks would end them.
    assume("`" not in inner or "`" not in outer)
    wrapped = outer.format(inner.format(command)) if "\nEOF" not in inner else inner.format(command)

    assert analyse(wrapped).verdict != "safe", wrapped


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DANGEROUS), st.sampled_from(QUOTED_WRAPPINGS[:-1]), st.sampled_from(WRAPPINGS))
def test_command_in_a_string_never_hides_a_danger(command: str, wrapping: str, outer: str) -> None:
    """A dangerous command stays dangerous as a string that some program runs."""
    wrapped = outer.format(wrapping.format(shlex.quote(command)))

    assert analyse(wrapped).verdict != "safe", wrapped


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(DANGEROUS), st.sampled_from(WRAPPINGS))
def test_encoding_and_variables_never_hide_a_danger(command: str, outer: str) -> None:
    """Base64, hexadecimal digits, reversal and split variables leave a command dangerous."""
    encoded = base64.b64encode(command.encode()).decode()

    for text in (
        through_variables(command),
        f"echo {encoded} | base64 -d | sh",
        f'eval "$(echo {encoded} | base64 --decode)"',
        f"echo {command.encode().hex()} | xxd -r -p | bash",
        f"echo '{command[::-1]}' | rev | sh",
        f"a=({command}); " + '"${a[@]}"',
        f"set -- {command}; " + '"$@"',
        "{" + ",".join(command.split()) + "}",
        command.replace(" ", "${IFS}"),
    ):
        assert analyse(outer.format(text)).verdict != "safe", outer.format(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=40))
def test_random_tokens_never_raise(tokens: list[str]) -> None:
    """Any mixture of shell tokens gets a verdict."""
    assert analyse(" ".join(tokens)).verdict in ("safe", "ask", "block")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_random_text_never_raises(text: str) -> None:
    """Any text gets a verdict, and the analyser itself never fails on it."""
    assessment = analyse(text)

    assert not [reason for reason in assessment.not_understood if "analyser failed" in reason]
