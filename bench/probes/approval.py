"""Judges the command lines that it reads as JSON, with ours or the peer's functions, and prints verdicts and times.

Nothing is run: a command line is only text here. One that takes longer than the limit counts as `timeout`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 5.0


class TooSlow(Exception):
    """The command line was not judged within the limit."""


def main() -> None:
    judge = judge_of(sys.argv[1])
    signal.signal(signal.SIGALRM, give_up)
    results = []
    for command in json.loads(sys.stdin.read()):
        results.append(timed(judge, command))
    print(json.dumps(results))


def timed(judge: Callable[[str], str], command: str) -> tuple[str, float]:
    # Processor time: other programs on the machine do not count.
    start = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        verdict = judge(command)
    except TooSlow:
        verdict = "timeout"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return verdict, time.process_time() - start


def give_up(*_: object) -> None:
    raise TooSlow


def judge_of(side: str) -> Callable[[str], str]:
    if side == "ours":
        from toolcrib.approval.analyse import analyse

        analyse("true | true")
        return lambda command: analyse(command).verdict
    if side == "files":
        return judge_with_files()
    from tools.approval import detect_dangerous_command, detect_hardline_command

    def judge(command: str) -> str:
        if detect_hardline_command(command)[0]:
            return "block"
        return "ask" if detect_dangerous_command(command)[0] else "safe"

    judge("true")
    return judge


def judge_with_files() -> Callable[[str], str]:
    """Ours as the gate calls it: in a folder with files and a link, which it looks at."""
    from toolcrib.approval.command_reader import read_command

    home = Path.cwd()
    work = home / "project"
    (work / "src").mkdir(parents=True)
    (home / ".ssh").mkdir()
    for number in range(40):
        (work / "src" / f"m{number}.py").touch()
    (work / "l").symlink_to(work / "src")
    read_command("true | true")
    return lambda command: read_command(command, cwd=str(work), home=str(home), here=True).assessment.verdict


if __name__ == "__main__":
    main()
