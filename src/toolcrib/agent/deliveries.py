"""What becomes of the result of a run besides being kept; one function for each kind of destination."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Awaitable, Callable

import msgspec

from toolcrib.agent.shell_call import run_in_shell
from toolcrib.core.context import CancelToken
from toolcrib.core.errors import ToolcribError
from toolcrib.cron.delivery import Destination, leave_notice, stored_destination
from toolcrib.cron.jobs import JobError, RunOutcome, format_moment
from toolcrib.cron.store import Claim, JobStore
from toolcrib.registry.results import untrusted
from toolcrib.runtime import Runtime

MAX_NOTICE_CHARS = 4_000
OWNER_FILE = 0o600


class Delivery(msgspec.Struct, frozen=True):
    """A result on its way."""

    runtime: Runtime | None
    """None where the run could not begin."""
    store: JobStore
    claim: Claim
    report: RunOutcome
    cancel: CancelToken

    @property
    def text(self) -> str:
        """What is delivered: the result, and what went wrong."""
        report = self.report
        parts = [report.output, f"It failed: {report.error}" if report.state != "ok" else ""]
        return "\n".join(part for part in parts if part) or "It ended without a result."

    @property
    def heading(self) -> str:
        run = self.claim.run
        return f"{self.claim.job.name}, {format_moment(run.started_at)}, {self.report.state}"


async def deliver(delivery: Delivery) -> str:
    """What became of the delivery, as a note for the run; a failure does not make the run fail."""
    try:
        destination = stored_destination(delivery.claim.job.deliver)
        return await DELIVERIES[destination.kind](delivery, destination)
    except (ToolcribError, OSError) as error:
        said = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return f"not delivered to {delivery.claim.job.deliver}: {said}"


async def _keep(_delivery: Delivery, _destination: Destination) -> str:
    return ""


async def _tell_origin(delivery: Delivery, _destination: Destination) -> str:
    job, run = delivery.claim.job, delivery.claim.run
    text = delivery.text[:MAX_NOTICE_CHARS]
    if len(delivery.text) > MAX_NOTICE_CHARS:
        text += f"\n… (`toolcrib cron show {job.id}` shows all of it)"
    notice = f"[Result of the scheduled job {delivery.heading}]\n{untrusted(text, 'job')}"
    leave_notice(delivery.store.database, job.origin, run.number, notice)
    return f"left for session {job.origin}"


async def _append_to_file(delivery: Delivery, destination: Destination) -> str:
    await asyncio.to_thread(_append, destination.target, f"--- {delivery.heading}\n{delivery.text}\n")
    return f"added to {destination.target}"


def _append(path: str, text: str) -> None:
    """Put a text at the end of a regular file; a link in the way was not there when the job was agreed to."""
    if os.path.realpath(path) != path:
        raise JobError(f"there is a link in the way to {path!r} that was not there when the job was made")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, OWNER_FILE)
    with os.fdopen(descriptor, "ab") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise JobError(f"{path!r} is no regular file")
        stream.write(text.encode("utf-8", "replace"))


async def _give_to_command(delivery: Delivery, destination: Destination) -> str:
    """Run the command with the result on its input, where commands run; the gate judges all of it."""
    if delivery.runtime is None:
        raise JobError("there is nowhere to run the command, because the run could not begin")
    mark = f"RESULT_{secrets.token_hex(8)}"
    command = f"{{ {destination.target}\n}} <<'{mark}'\n{delivery.text}\n{mark}"
    session, call_id = delivery.report.session_id, f"delivery_{delivery.claim.run.number}"
    outcome = await run_in_shell(delivery.runtime, command, session, call_id, delivery.cancel)
    if outcome.problem:
        raise JobError(outcome.problem)
    return f"given to `{destination.target}`"


DELIVERIES: dict[str, Callable[[Delivery, Destination], Awaitable[str]]] = {
    "local": _keep,
    "origin": _tell_origin,
    "file": _append_to_file,
    "command": _give_to_command,
}
