"""Checks of single commands: exit codes, output, input, quoting."""

from __future__ import annotations

from toolcrib.core.environments import CommandRequest
from toolcrib.environments.conformance.check import Printed, Trial, check, equal, expect

ALL_BYTES = bytes(range(256))
ODD_TEXTS = (
    "plain",
    "it's",
    'say "hi"',
    "a  b\tc",
    "$HOME ${x} $(id) `id`",
    "back\\slash \\n",
    "line\nbreak\n\nend",
    "*?[a-z]{1,2}~!#&|;<>()",
    "ünïcödé ☃ 日本語 🦊",
    "-n -e --",
    "%s %d \\x41",
    "",
)


@check("exit-codes")
async def exit_codes(trial: Trial) -> None:
    """The exit code of a command is handed on as it is; a signal counts as 128 and its number."""
    for code in (0, 1, 2, 3, 124, 126, 130, 200, 255):
        equal(f"exit code of (exit {code})", (await trial.run(f"(exit {code})")).ended.exit_code, code)
        equal(f"exit code of exit {code}", (await trial.run(f"exit {code}")).ended.exit_code, code)
    equal("exit code of false", (await trial.run("false")).ended.exit_code, 1)
    equal("exit code of a missing program", (await trial.run("no-such-program-here")).ended.exit_code, 127)
    equal("exit code after a signal", (await trial.run("bash -c 'kill -KILL $$'")).ended.exit_code, 137)
    equal("exit code of a pipe", (await trial.run("false | true")).ended.exit_code, 0)


@check("syntax-error")
async def syntax_error(trial: Trial) -> None:
    """A command that bash cannot read is an error that says so, and the session goes on."""
    outcome = await trial.run("if true; then echo (")
    expect(outcome.ended.exit_code != 0, "an exit code that is not 0", outcome.ended.exit_code)
    expect("syntax error" in outcome.text, "'syntax error' in the output", outcome.text)
    await trial.prints("echo next", "next\n")
    for unfinished in ("echo 'open", "cat <<EOF\nno end", "echo $("):
        await trial.run(unfinished)
    await trial.prints("echo next", "next\n")


@check("empty-command")
async def empty_command(trial: Trial) -> None:
    """Nothing, blanks and a comment are commands that print nothing and work."""
    for command in ("", "  \n ", "# a comment", "true # trailing", ":\n"):
        await trial.prints(command, "")


@check("output-order")
async def output_order(trial: Trial) -> None:
    """Standard output and standard error arrive together, in the order in which they were written."""
    await trial.prints("echo a; echo b >&2; echo c; bash -c 'echo d >&2'; printf e", "a\nb\nc\nd\ne")
    many = "for i in {1..200}; do echo out$i; echo err$i >&2; done"
    await trial.prints(many, "".join(f"out{i}\nerr{i}\n" for i in range(1, 201)))


@check("output-without-line-end")
async def output_without_line_end(trial: Trial) -> None:
    """Output is handed on byte by byte: no line end is added and none is taken away."""
    await trial.prints("printf x", "x")
    await trial.prints(r"printf '\n\n x \n\n'", "\n\n x \n\n")


@check("binary-output")
async def binary_output(trial: Trial) -> None:
    """All bytes arrive as they were written, zero bytes too."""
    escapes = "".join(f"\\x{byte:02x}" for byte in ALL_BYTES)
    await trial.prints(f"printf '{escapes}{escapes}'", ALL_BYTES * 2)
    await trial.prints("head -c 300000 /dev/zero", bytes(300_000))


@check("stdin-given")
async def stdin_given(trial: Trial) -> None:
    """What is given as standard input is read as it is, then ends."""
    await trial.prints("cat", ALL_BYTES * 10, stdin=ALL_BYTES * 10)
    await trial.prints("read -r a; read -r b; echo $b $a; cat", "two one\nrest", stdin=b"one\ntwo\nrest")
    large = b"0123456789abcdef" * 65_536
    await trial.prints("wc -c | tr -d ' '", f"{len(large)}\n", stdin=large)
    await trial.prints("echo unread", "unread\n", stdin=large)
    await trial.prints("cat", "", stdin=b"")


@check("stdin-absent")
async def stdin_absent(trial: Trial) -> None:
    """A command that reads without being given anything sees the end at once, and cannot hang."""
    await trial.prints("cat; echo end", "end\n")
    await trial.prints("read -r x; echo $?", "1\n")
    await trial.prints("bash -c 'cat; echo inner'", "inner\n")


@check("quotes")
async def quotes(trial: Trial) -> None:
    """A command reaches bash exactly as it was written, whatever quotes and characters it has."""
    for text in ODD_TEXTS:
        quoted = "'" + text.replace("'", "'\\''") + "'"
        await trial.prints(f"printf %s {quoted}", text)
    await trial.prints(
        r"""echo $'tab\tquote\' nl\n' "it's \"x\" \$y \`z\`" 'a"b' \' \" \\""",
        'tab\tquote\' nl\n it\'s "x" $y `z` a"b \' " \\\n',
    )
    await trial.prints("echo ünï ☃ '日本'  🦊", "ünï ☃ 日本 🦊\n")
    await trial.prints("echo one\n\n# comment\necho two \\\n  three", "one\ntwo three\n")
    await trial.prints("x=5; echo $((x * 2)) ${x:+yes} {a,b}$x", "10 yes a5 b5\n")


@check("carriage-returns")
async def carriage_returns(trial: Trial) -> None:
    """A carriage return inside quotes stays one; no line end is changed on the way."""
    await trial.prints("printf '%s' 'a\rb\r\nc'", b"a\rb\r\nc")


@check("heredocs")
async def heredocs(trial: Trial) -> None:
    """Here-documents of every kind work, also in a row and at the very end of a command."""
    await trial.prints('cat <<EOF\none $((1 + 1))\n  it\'s "two"\nEOF', 'one 2\n  it\'s "two"\n')
    await trial.prints("cat <<'EOF'\n$HOME `id` \\\nEOF\n", "$HOME `id` \\\n")
    await trial.prints("cat <<-A; cat <<B\n\ttabbed\n\tA\nsecond\nB\necho after", "tabbed\nsecond\nafter\n")
    await trial.prints("cat <<<'here string'", "here string\n")
    await trial.prints("bash <<'EOF'\nread -r x <<< inner\necho $x\nEOF", "inner\n")


@check("long-commands")
async def long_commands(trial: Trial) -> None:
    """A command may be far longer than what the kernel allows for one argument."""
    text = "0123456789abcdé\n" * 13_000
    await trial.prints(f"cat <<'EOF'\n{text}EOF\n", text)
    many = "\n".join(f": line {number}" for number in range(20_000))
    await trial.prints(f"{many}\necho end", "end\n")
    printed = Printed()
    request = CommandRequest(command=f"{many}\necho end", mode="background")
    await trial.ended(await trial.environment.start(request, printed))
    equal("output in the background", bytes(printed.data), b"end\n")


@check("own-streams")
async def own_streams(trial: Trial) -> None:
    """A command that moves or closes its own streams for good still ends, with its exit code and its state kept."""
    await trial.prints("exec >/dev/null 2>&1; echo unseen; export STREAMS=moved; (exit 7)", "", exit_code=7)
    await trial.prints("echo $STREAMS", "moved\n")
    await trial.prints("exec 1>&- 2>&- 0<&-; export STREAMS=closed; (exit 8)", "", exit_code=8)
    await trial.prints("echo $STREAMS", "closed\n")
    await trial.prints("exec 3>&1 4>&2 5</dev/null; echo three >&3", "three\n")


CHECKS = (
    exit_codes,
    syntax_error,
    empty_command,
    output_order,
    output_without_line_end,
    binary_output,
    stdin_given,
    stdin_absent,
    quotes,
    carriage_returns,
    heredocs,
    long_commands,
    own_streams,
)
