"""Runs inside a pseudo-terminal: asks one question from a JSON file, and records how it ended."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from toolcrib.approval.approvers.console import ConsoleApprover
from toolcrib.core.approvals import ApprovalRequest, Danger


class Spinner:
    """Writes without pause from its own thread, like a front end's spinner."""

    def __init__(self) -> None:
        self._may_write = threading.Lock()
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()
        self._begun.wait()

    def _spin(self) -> None:
        while not self._ended.wait(0.002):
            with self._may_write:
                sys.stdout.write("\rworking")
                sys.stdout.flush()
            self._begun.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._may_write:
            yield

    def end(self) -> None:
        sys.stdin.readline()
        self._ended.set()
        self._thread.join()


def made_request(told: dict[str, Any], number: int) -> ApprovalRequest:
    dangers = tuple(
        Danger(
            **{**danger, "paths": tuple(danger.get("paths", ())), "span": danger.get("span") and tuple(danger["span"])}
        )
        for danger in told["dangers"]
    )
    return ApprovalRequest(
        id=f"r{number}",
        tool="terminal",
        command=told["command"] if number == 0 else f"{told['command']} {number}",
        dangers=dangers,
        cwd=told.get("cwd", "/w"),
        may_be_permanent=told.get("may_be_permanent", True),
    )


def broken_preview(request: ApprovalRequest) -> list[str]:
    raise PermissionError(request.id)


async def run(told: dict[str, Any], approver: ConsoleApprover) -> list[Any]:
    if "secret" in told:
        return [await approver.ask_secret(told["secret"], told.get("timeout_seconds", 60))]
    if "line" in told:
        return [await approver.ask_line(told["line"])]
    asked = [asyncio.ensure_future(approver.ask(made_request(told, number))) for number in range(told.get("count", 1))]
    if told.get("cancel_on_input"):
        # The parent asks for the cancellation by writing into a named pipe.
        await asyncio.to_thread(Path(told["cancel_on_input"]).read_bytes)
        asked[0].cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [asdict(each) if not isinstance(each, BaseException) else type(each).__name__ for each in answers]


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    # The terminal becomes ours, so that Ctrl-C would be a signal if nobody took care.
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if told.get("ignore_hang_up"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = termios.tcgetattr(0)
    spinner = Spinner() if told.get("spinner") else None
    approver = ConsoleApprover(
        sys.stdin,
        sys.stdout,
        timeout_seconds=told.get("timeout_seconds", 60),
        colour=told.get("colour", False),
        display=spinner,
        **({"preview": broken_preview} if told.get("broken_preview") else {}),
    )
    answers = asyncio.run(run(told, approver))
    threads = [thread.name for thread in threading.enumerate() if not thread.daemon]
    if spinner:
        spinner.end()
    restored = told.get("ignore_hang_up") or before == termios.tcgetattr(0)
    result = {"answers": answers, "restored": restored, "threads": threads}
    Path(sys.argv[2]).write_text(json.dumps(result))
    if told.get("ignore_hang_up"):
        # The terminal is gone, so what is left in the buffer of stdout has nowhere to go at exit.
        os._exit(0)


main()
