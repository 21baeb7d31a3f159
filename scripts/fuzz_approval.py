"""Looks for commands that crash the analyser or hold it up: `scripts/fuzz_approval.py [--seconds 600] [--seed N]`.

Commands are analysed as strings; nothing is ever run. What shows a new mixture of findings is kept in
`tests/approval/shell/fuzz_corpus.jsonl`, which the tests analyse again. Time is the processor time of this thread, so
that other work on the machine makes no false alarms. `--save FOLDER` writes each failing command to a file in full.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

from toolcrib.approval.shell.findings import Assessment

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "approval" / "data"
CORPUS = ROOT / "tests" / "approval" / "shell" / "fuzz_corpus.jsonl"
SLOW_SECONDS = 0.25
MAX_KEPT = 400
MAX_KEPT_CHARS = 300
PIECES = (
    *("$(", ")", "`", "'", '"', "\\", "\n", ";", "&&", "||", "|", "&", ">", ">>", "<<EOF\n", "\nEOF\n", "<(", "{", "}"),
    *("${", "$IFS", "$'\\x72'", "*", "~", "--", "#", "eval ", "sudo ", "env -i ", "sh -c ", "xargs ", "find / -exec "),
    *("\0", "\r", "\x1b[2K", "\u202e", "\u200b", "if true; then ", "fi", "for x in a b; do ", "done", "case x in "),
    *("function f() {", "f(){ f|f& };", "[[ a ]]", "((", "))", "<<<", "2>&1", "/dev/sda", "/etc/passwd", "base64 -d"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write every failing command to a file there")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    seeds = [json.loads(line)["command"] for path in sorted(DATA.glob("*.jsonl")) for line in path.open()]
    kept: dict[str, str] = {}
    tried, failures, slowest = 0, [], (0.0, "")
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        command = mutated(chance.choice(seeds), seeds, chance)
        assessment, seconds, error = analysed(command)
        tried += 1
        slowest = max(slowest, (seconds, command[:200]))
        if error or seconds > SLOW_SECONDS:
            failures.append((error or f"{seconds:.3f} s for {len(command)} characters", command[:300]))
            if options.save is not None:
                save(options.save / f"{options.seed}-{len(failures):03}.txt", command)
        elif assessment is not None and len(command) <= MAX_KEPT_CHARS and len(kept) < MAX_KEPT:
            rules = ",".join(sorted({finding.rule for finding in assessment.findings}))
            kept.setdefault(f"{assessment.verdict} {rules} {bool(assessment.not_understood)}", command)
    CORPUS.write_text("".join(json.dumps({"command": command}) + "\n" for command in sorted(kept.values())))
    print(f"{tried} commands in {options.seconds:.0f} s, {len(failures)} failures, {len(kept)} kept")
    print(f"slowest: {slowest[0] * 1000:.1f} ms: {slowest[1]!r}")
    for problem, command in failures[:20]:
        print(f"{problem}: {command!r}")
    return 1 if failures else 0


def analysed(command: str) -> tuple[Assessment | None, float, str]:
    started = time.thread_time()
    try:
        assessment = analyse(command, cwd="/work/project", home="/home/user")
    except Exception as error:  # noqa: BLE001 - a crash is what is looked for
        return None, 0.0, f"{type(error).__name__}: {error}"
    return assessment, time.thread_time() - started, ""


def save(path: Path, command: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A command may hold half of a surrogate pair, which UTF-8 alone cannot write.
    path.write_text(command, encoding="utf-8", errors="surrogatepass", newline="")


def mutated(command: str, seeds: list[str], chance: random.Random) -> str:
    for _ in range(chance.randint(1, 6)):
        place = chance.randint(0, len(command))
        match chance.randint(0, 7):
            case 0 | 1:
                command = command[:place] + chance.choice(PIECES) + command[place:]
            case 2:
                end = min(len(command), place + chance.randint(1, 8))
                command = command[:place] + command[end:]
            case 3:
                other = chance.choice(seeds)
                command = command[:place] + other[chance.randint(0, len(other)) :]
            case 4:
                command = f"{chance.choice(PIECES)}{command}{chance.choice(PIECES)}"
            case 5:
                odd = chr(chance.choice((0, 7, 13, 27, 127, 0x202E, 0xFF52, 0xD800)))
                command = command[:place] + odd + command[place:]
            case 6:
                piece = command[place : place + chance.randint(1, 20)] or chance.choice(PIECES)
                times = chance.choice((2, 3, 10, 100, 2000)) if chance.random() < 0.2 else 2
                command = command[:place] + piece * times + command[place:]
            case _:
                command = chance.choice((f"sh -c '{command}'", f'eval "{command}"', f"$({command})", f"({command})"))
        if len(command) > 200_000:
            break
    return command


if __name__ == "__main__":
    from toolcrib.approval import analyse

    sys.exit(main())
