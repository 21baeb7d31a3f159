"""Checks of single commands: exit codes, output, input, quoting, terminals."""

from __future__ import annotations

import asyncio
import resource
import sys
import time

from toolcrib.core.environments import CommandRequest, Execution, TerminalSize
from toolcrib.environments.conformance.check import (
    CheckContext,
    ConformanceFailure,
    OutputRecorder,
    check,
    equal,
    expect,
    new_marker,
)
from toolcrib.environments.foreground import CommandLimits, run_foreground

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
async def exit_codes(ctx: CheckContext) -> None:
    """The exit code of a command is passed on unchanged; a signal counts as 128 plus its number."""
    for code in (0, 1, 2, 3, 124, 126, 130, 200, 255):
        equal(f"exit code of (exit {code})", (await ctx.run(f"(exit {code})")).ended.exit_code, code)
        equal(f"exit code of exit {code}", (await ctx.run(f"exit {code}")).ended.exit_code, code)
    equal("exit code of false", (await ctx.run("false")).ended.exit_code, 1)
    equal("exit code of a missing program", (await ctx.run("no-such-program-here")).ended.exit_code, 127)
    equal("exit code after a signal", (await ctx.run("bash -c 'kill -KILL $$'")).ended.exit_code, 137)
    equal("exit code of a pipe", (await ctx.run("false | true")).ended.exit_code, 0)


@check("syntax-error")
async def syntax_error(ctx: CheckContext) -> None:
    """A command that bash cannot parse reports a syntax error, and the session continues."""
    outcome = await ctx.run("if true; then echo (")
    expect(outcome.ended.exit_code != 0, "an exit code that is not 0", outcome.ended.exit_code)
    expect("syntax error" in outcome.text, "'syntax error' in the output", outcome.text)
    await ctx.expect_output("echo next", "next\n")
    for unfinished in ("echo 'open", "cat <<EOF\nno end", "echo $("):
        await ctx.run(unfinished)
    await ctx.expect_output("echo next", "next\n")


@check("empty-command")
async def empty_command(ctx: CheckContext) -> None:
    """An empty command, blanks and a comment print nothing and succeed."""
    for command in ("", "  \n ", "# a comment", "true # trailing", ":\n"):
        await ctx.expect_output(command, "")


@check("output-order")
async def output_order(ctx: CheckContext) -> None:
    """Standard output and standard error arrive together, in the order in which they were written."""
    await ctx.expect_output("echo a; echo b >&2; echo c; bash -c 'echo d >&2'; printf e", "a\nb\nc\nd\ne")
    many = "for i in {1..200}; do echo out$i; echo err$i >&2; done"
    await ctx.expect_output(many, "".join(f"out{i}\nerr{i}\n" for i in range(1, 201)))


@check("output-without-line-end")
async def output_without_line_end(ctx: CheckContext) -> None:
    """Output is passed on unchanged: no newline is added or removed."""
    await ctx.expect_output("printf x", "x")
    await ctx.expect_output(r"printf '\n\n x \n\n'", "\n\n x \n\n")


@check("binary-output")
async def binary_output(ctx: CheckContext) -> None:
    """All bytes arrive as written, including NUL bytes."""
    escapes = "".join(f"\\x{byte:02x}" for byte in ALL_BYTES)
    await ctx.expect_output(f"printf '{escapes}{escapes}'", ALL_BYTES * 2)
    await ctx.expect_output("head -c 300000 /dev/zero", bytes(300_000))


@check("stdin-given")
async def stdin_given(ctx: CheckContext) -> None:
    """Standard input is delivered unchanged, then ends."""
    await ctx.expect_output("cat", ALL_BYTES * 10, stdin=ALL_BYTES * 10)
    await ctx.expect_output("read -r a; read -r b; echo $b $a; cat", "two one\nrest", stdin=b"one\ntwo\nrest")
    large = b"0123456789abcdef" * 65_536
    await ctx.expect_output("wc -c | tr -d ' '", f"{len(large)}\n", stdin=large)
    await ctx.expect_output("echo unread", "unread\n", stdin=large)
    await ctx.expect_output("cat", "", stdin=b"")


@check("stdin-unread")
async def stdin_unread(ctx: CheckContext) -> None:
    """Input that a command does not read is discarded: it is never run, and the command's output is complete."""
    large = b"0123456789abcdef" * 65_536
    lines = "".join(f"{number}\n" for number in range(1, 5001))
    await ctx.expect_output("exec 0<&-; sleep 0.1; seq 5000; exit 3", lines, stdin=large, exit_code=3)
    await ctx.expect_output("read -r -N 10 x; seq 5000", lines, stdin=large)
    await ctx.expect_output("exec seq 5000", lines, stdin=large)
    async with ctx.folder() as folder:
        text = f"touch {folder}/run\n"
        for unread in (text, f"{len(text)}\n{text}", f"- {len(text)}\n{text}", f"\0- {len(text)}\n{text}"):
            await ctx.expect_output("echo on", "on\n", stdin=unread.encode() * 3)
        await ctx.expect_output(f"ls {folder}", "")


@check("stdin-absent")
async def stdin_absent(ctx: CheckContext) -> None:
    """A command without input sees the end of file at once, and cannot hang."""
    await ctx.expect_output("cat; echo end", "end\n")
    await ctx.expect_output("read -r x; echo $?", "1\n")
    await ctx.expect_output("bash -c 'cat; echo inner'", "inner\n")


@check("quotes")
async def quotes(ctx: CheckContext) -> None:
    """A command reaches bash exactly as written, whatever quotes and characters it contains."""
    for text in ODD_TEXTS:
        quoted = "'" + text.replace("'", "'\\''") + "'"
        await ctx.expect_output(f"printf %s {quoted}", text)
    await ctx.expect_output(
        r"""echo $'tab\tquote\' nl\n' "it's \"x\" \$y \`z\`" 'a"b' \' \" \\""",
        'tab\tquote\' nl\n it\'s "x" $y `z` a"b \' " \\\n',
    )
    await ctx.expect_output("echo ünï ☃ '日本'  🦊", "ünï ☃ 日本 🦊\n")
    await ctx.expect_output("echo one\n\n# comment\necho two \\\n  three", "one\ntwo three\n")
    await ctx.expect_output("x=5; echo $((x * 2)) ${x:+yes} {a,b}$x", "10 yes a5 b5\n")


@check("carriage-returns")
async def carriage_returns(ctx: CheckContext) -> None:
    """A carriage return inside quotes is preserved; no line ending is converted."""
    await ctx.expect_output("printf '%s' 'a\rb\r\nc'", b"a\rb\r\nc")


@check("heredocs")
async def heredocs(ctx: CheckContext) -> None:
    """Here-documents of every kind work, also several in a row and at the end of a command."""
    await ctx.expect_output('cat <<EOF\none $((1 + 1))\n  it\'s "two"\nEOF', 'one 2\n  it\'s "two"\n')
    await ctx.expect_output("cat <<'EOF'\n$HOME `id` \\\nEOF\n", "$HOME `id` \\\n")
    await ctx.expect_output("cat <<-A; cat <<B\n\ttabbed\n\tA\nsecond\nB\necho after", "tabbed\nsecond\nafter\n")
    await ctx.expect_output("cat <<<'here string'", "here string\n")
    await ctx.expect_output("bash <<'EOF'\nread -r x <<< inner\necho $x\nEOF", "inner\n")


@check("long-commands")
async def long_commands(ctx: CheckContext) -> None:
    """A command may be far longer than the kernel's limit for one argument."""
    text = "0123456789abcdé\n" * 13_000
    await ctx.expect_output(f"cat <<'EOF'\n{text}EOF\n", text)
    many = "\n".join(f": line {number}" for number in range(20_000))
    await ctx.expect_output(f"{many}\necho end", "end\n")
    printed = OutputRecorder()
    request = CommandRequest(command=f"{many}\necho end", mode="background")
    await ctx.ended(await ctx.environment.start(request, printed))
    equal("output in the background", bytes(printed.data), b"end\n")


@check("own-streams")
async def own_streams(ctx: CheckContext) -> None:
    """A command that redirects or closes its own streams still ends, with its exit code and state preserved."""
    await ctx.expect_output("exec >/dev/null 2>&1; echo unseen; export STREAMS=moved; (exit 7)", "", exit_code=7)
    await ctx.expect_output("echo $STREAMS", "moved\n")
    await ctx.expect_output("exec 1>&- 2>&- 0<&-; export STREAMS=closed; (exit 8)", "", exit_code=8)
    await ctx.expect_output("echo $STREAMS", "closed\n")
    await ctx.expect_output("exec 3>&1 4>&2 5</dev/null; echo three >&3", "three\n")


@check("own-descriptors")
async def own_descriptors(ctx: CheckContext) -> None:
    """A command may use and close every descriptor: nothing is added to its output, and its state is preserved."""
    closing = 'for ((i = {}; i < 260; i++)); do eval "exec $i>&-"; done; '
    await ctx.expect_output(closing.format(3) + "cd /usr; export CLOSED=1; echo on; (exit 7)", "on\n", exit_code=7)
    await ctx.expect_output("pwd; echo $CLOSED", "/usr\n1\n")
    await ctx.expect_output(closing.format(0) + "cd /; export CLOSED=2; (exit 8)", "", exit_code=8)
    await ctx.expect_output("pwd; echo $CLOSED", "/\n2\n")
    async with ctx.folder() as folder:
        opening = 'for i in {10..20}; do eval "exec $i>>F; echo $i >&$i"; done; echo on'.replace("F", f"{folder}/own")
        await ctx.expect_output(opening, "on\n")
        await ctx.expect_output(f"cat {folder}/own", "".join(f"{number}\n" for number in range(10, 21)))
    equal("the folder of the session", ctx.environment.cwd, "/")


COMMAND_CHECKS = (
    exit_codes,
    syntax_error,
    empty_command,
    output_order,
    output_without_line_end,
    binary_output,
    stdin_given,
    stdin_unread,
    stdin_absent,
    quotes,
    carriage_returns,
    heredocs,
    long_commands,
    own_streams,
    own_descriptors,
)


LIMIT_BYTES = 50_000
BIG_BYTES = 100_000_000
MAY_GROW_BYTES = 40_000_000
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
INPUT_SECONDS = 60.0


@check("big-output", seconds=300)
async def big_output(ctx: CheckContext) -> None:
    """100 MB of output use bounded memory, with the right head and tail."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = f"echo BEGIN; head -c {BIG_BYTES} /dev/zero | tr '\\0' x; echo; echo END"
    result = await run_foreground(
        ctx.environment, CommandRequest(command=command), CommandLimits(timeout_seconds=240, limit_bytes=LIMIT_BYTES)
    )
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * PEAK_UNIT
    equal("exit code", result.exit_code, 0)
    expect(result.text.startswith("BEGIN\nxxx"), "the beginning of the output", result.text[:40])
    expect(result.text.rstrip().endswith("xxx\nEND"), "the end of the output", result.text[-40:])
    expect(len(result.text) < LIMIT_BYTES * 2, f"at most about {LIMIT_BYTES} characters", len(result.text))
    expect(grown < MAY_GROW_BYTES, f"memory to grow by less than {MAY_GROW_BYTES} bytes", grown)


@check("whole-output-arrives", seconds=300)
async def whole_output_arrives(ctx: CheckContext) -> None:
    """Every byte written before the end is delivered before the exit is reported."""
    for _ in range(5):
        outcome = await ctx.run("head -c 3000000 /dev/zero | tr '\\0' y; printf END")
        equal("bytes", len(outcome.output), 3_000_003)
        equal("the end", outcome.output[-4:], b"yEND")


@check("output-arrives-while-running")
async def output_arrives_while_running(ctx: CheckContext) -> None:
    """Output is delivered when it is written, not at the end."""
    printed = OutputRecorder()
    async with ctx.started(CommandRequest(command="echo early; sleep 600"), printed):
        await printed.wait_for(b"early\n")


@check("split-characters")
async def split_characters(ctx: CheckContext) -> None:
    """A character whose bytes arrive separately stays one character; invalid bytes are replaced."""
    request = CommandRequest(
        command=r"printf '\xe2\x82'; sleep 0.1; printf '\xac|\xf0\x9f'; sleep 0.1; printf '\xa6\x8a|\xff|'"
    )
    result = await run_foreground(ctx.environment, request, CommandLimits(timeout_seconds=60))
    expect(result.text.startswith("€|🦊|"), "'€|🦊|'", result.text)
    expect(result.text.rstrip().endswith("|"), "what follows a byte that is no character", result.text)


async def _becomes_waiting(execution: Execution, wanted: bool) -> None:
    """Wait until the environment says that the command waits for input."""
    deadline = time.monotonic() + INPUT_SECONDS
    while await execution.waits_for_input() is not wanted:
        if time.monotonic() > deadline:
            raise ConformanceFailure(
                f"expected waits_for_input() to become {wanted}; it did not in {INPUT_SECONDS:.0f} s"
            )
        await asyncio.sleep(0.05)


@check("waits-for-input", "pty")
async def waits_for_input(ctx: CheckContext) -> None:
    """A command that waits for input is distinguished from one that works or sleeps, and continues on input."""
    printed = OutputRecorder()
    request = CommandRequest(command="read -r -p 'name? ' name; echo hello $name; sleep 600", terminal=TerminalSize())
    async with ctx.started(request, printed) as execution:
        await printed.wait_for(b"name? ")
        await _becomes_waiting(execution, True)
        await execution.write(b"Ada\n")
        await printed.wait_for(b"hello Ada")
        await _becomes_waiting(execution, False)


@check("waits-for-input-in-a-child", "pty")
async def waits_for_input_in_a_child(ctx: CheckContext) -> None:
    """A child of the command that waits for input is detected too."""
    printed = OutputRecorder()
    request = CommandRequest(command="bash -c 'echo ready; cat; :'", terminal=TerminalSize())
    async with ctx.started(request, printed) as execution:
        await printed.wait_for(b"ready")
        await _becomes_waiting(execution, True)


@check("waits-for-keys", "pty")
async def waits_for_keys(ctx: CheckContext) -> None:
    """Line editors, pagers and full-screen programs are recognised as waiting; one that works quietly is not."""
    waiting = (
        "read -e -p 'shown: ' line",
        "exec 3</dev/tty; printf 'shown: '; head -c 1 <&3",
        "stty -icanon -echo; printf 'shown: '; head -c 1",
        "stty -echo; printf 'shown: '; bash -c 'read -r secret </dev/tty'",
        "seq 9 | { printf 'shown: '; head -c 1 </dev/tty; }",
    )
    for command in waiting:
        await _shown_and_waiting(ctx, command, True)
    for command in (
        "printf 'shown: '; sleep 600",
        "printf 'shown: '; sleep 600 | cat",
        "echo 'shown: '; x=$(sleep 600)",
    ):
        await _shown_and_waiting(ctx, command, False)


async def _shown_and_waiting(ctx: CheckContext, command: str, wanted: bool) -> None:
    printed = OutputRecorder()
    async with ctx.started(CommandRequest(command=command, terminal=TerminalSize()), printed) as execution:
        await printed.wait_for(b"shown: ")
        if wanted:
            await _becomes_waiting(execution, True)
        else:
            expect(not await execution.waits_for_input(), f"{command!r} not to wait for input", "it seems to")


@check("terminal", "pty")
async def terminal(ctx: CheckContext) -> None:
    """On a terminal all streams are the terminal, with the requested size, and the exit code is the command's."""
    printed = OutputRecorder()
    command = '[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; stty size; [ -n "$TERM" ] && echo named; exit 7'
    request = CommandRequest(command=command, terminal=TerminalSize(rows=41, columns=133))
    ended = await ctx.ended(await ctx.environment.start(request, printed))
    equal("output", bytes(printed.data).replace(b"\r\n", b"\n"), b"all\n41 133\nnamed\n")
    equal("exit code", ended.exit_code, 7)
    await ctx.expect_output("[ -t 1 ] || echo none", "none\n")


@check("terminal-resize", "pty")
async def terminal_resize(ctx: CheckContext) -> None:
    """A change of the terminal's size reaches the program."""
    printed = OutputRecorder()
    request = CommandRequest(
        command="trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done", terminal=TerminalSize()
    )
    async with ctx.started(request, printed) as execution:
        await printed.wait_for(b"ready")
        await execution.resize(TerminalSize(rows=50, columns=99))
        await printed.wait_for(b"50 99")


@check("terminal-keys", "pty")
async def terminal_keys(ctx: CheckContext) -> None:
    """Typed text is read; Ctrl-C interrupts the program, and the command exits with 130."""
    mark = new_marker()
    request = CommandRequest(command=f"sleep {mark}; echo on", terminal=TerminalSize())
    async with ctx.started(request, OutputRecorder()) as running:
        # A key that arrives before bash has started its program goes to bash itself.
        await ctx.becomes_running(mark, 1)
        await running.write(b"\x03")
        ended = await ctx.ended(running, what="a command after Ctrl-C")
        equal("exit code", ended.exit_code, 130)
    typed = OutputRecorder()
    async with ctx.started(CommandRequest(command="cat; echo end", terminal=TerminalSize()), typed) as execution:
        await execution.write("ünï\n".encode())
        await typed.wait_for("ünï\r\nünï\r\n".encode())
        await execution.write(b"\x04")
        await typed.wait_for(b"end")
        equal("exit code", (await ctx.ended(execution)).exit_code, 0)


@check("terminal-state", "pty")
async def terminal_state(ctx: CheckContext) -> None:
    """A command on a terminal starts from the session's folder, variables and functions, and changes none of them."""
    await ctx.run_ok("export SHOWN='a b'; shown() { echo \"<$SHOWN>\"; }; cd /")
    printed = OutputRecorder()
    request = CommandRequest(command="shown; pwd; export SHOWN=changed; cd /tmp", terminal=TerminalSize())
    await ctx.ended(await ctx.environment.start(request, printed))
    equal("output", bytes(printed.data).replace(b"\r\n", b"\n"), b"<a b>\n/\n")
    await ctx.expect_output("shown; pwd; unset -f shown; unset SHOWN", "<a b>\n/\n")


STREAM_CHECKS = (
    big_output,
    whole_output_arrives,
    output_arrives_while_running,
    split_characters,
    waits_for_input,
    waits_for_input_in_a_child,
    waits_for_keys,
    terminal,
    terminal_resize,
    terminal_keys,
    terminal_state,
)
