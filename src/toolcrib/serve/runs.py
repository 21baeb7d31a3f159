"""Runs: an agent at work on a client's question, and the log of its events, which any number of clients follow."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from toolcrib.agent.agent import Agent
from toolcrib.agent.events import AnyEvent, RunEnded, RunResult, TextStreamed
from toolcrib.agent.host import AgentHost
from toolcrib.config.serve_settings import ServeLimits
from toolcrib.core.cancel import finish_in_thread
from toolcrib.core.errors import SessionError, ToolcribError, UnknownSession
from toolcrib.core.messages import Message
from toolcrib.serve.metrics import ServerMetrics
from toolcrib.serve.questions import PendingQuestions, QuestionAnswered, QuestionAsked, QuestionEvent
from toolcrib.serve.run_store import DAY_SECONDS, RunRecord, RunStore, StoredEvent
from toolcrib.serve.tokens import ServerTokens, TokenIdentity
from toolcrib.sessions.records import Session

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""Pieces of text that arrive within this time become one event."""
WRITE_SECONDS = 0.1
"""How often new events are written to the database."""
MOST_UNWRITTEN = 100_000
"""More events than a run has in that time: a client may have seen some that a killed server did not write, and still
gets what the next one adds."""
STOP_SECONDS = 15.0
CANCEL_SECONDS = 2.0
SHARE = 0.75
"""How much of a limit one account may use, so that others find room."""
LOST = "the server stopped while this run was working; ask again to continue"

LoggedEvent = AnyEvent | QuestionEvent
_encode = msgspec.json.Encoder().encode


class RunRefused(ToolcribError):
    """A run cannot start now. `status` is that of the HTTP response."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class LoggedRunEvent(msgspec.Struct, frozen=True):
    """An event with its number in the run's log."""

    number: int
    event: LoggedEvent
    body: str
    """As JSON, for all who follow and for the database."""


class Run:
    """One run in progress. `follow` gives its events, from the first or from any later one on."""

    def __init__(self, record: RunRecord, agent: Agent, identity: TokenIdentity) -> None:
        self.record = record
        self.agent = agent
        self.identity = identity
        """Who started it."""
        self.result: RunResult | None = None
        self.events: list[LoggedRunEvent] = []
        self.unwritten: deque[StoredEvent] = deque()
        self.open_questions: set[str] = set()
        self.clients = 0
        self._pieces: list[str] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def session_id(self) -> str:
        return self.record.session_id

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for a person."""
        return bool(self.open_questions)

    def waits_for(self, one: LoggedRunEvent) -> bool:
        """Whether this event asked a question that is still open."""
        return isinstance(one.event, QuestionAsked) and one.event.id in self.open_questions

    def number_of_question(self, question_id: str) -> int:
        """The number of the event that asked a question; 0 if this run did not ask it."""
        found = (
            one.number for one in self.events if isinstance(one.event, QuestionAsked) and one.event.id == question_id
        )
        return next(found, 0)

    @contextmanager
    def client(self) -> Iterator[None]:
        """While a client waits for the answer. When the last one leaves, the run is stopped, unless it waits for a
        person."""
        self.clients += 1
        try:
            yield
        finally:
            self.clients -= 1
            if not self.clients and self.result is None and not self.is_waiting:
                self.agent.interrupt("the client left")

    def add(self, event: LoggedEvent) -> None:
        """Append an event, from any thread."""
        if threading.get_ident() == self._thread:
            self._add(event)
        else:
            self._loop.call_soon_threadsafe(self._add, event)

    def _add(self, event: LoggedEvent) -> None:
        if isinstance(event, TextStreamed):
            self._pieces.append(event.text)
            if self._gathering is None:
                # The first piece goes out at once; those that follow soon go together.
                self._flush_text()
                self._gathering = self._loop.call_later(GATHER_SECONDS, self._gathered)
            return
        self._flush_text()
        if isinstance(event, QuestionAsked):
            self.open_questions.add(event.id)
        elif isinstance(event, QuestionAnswered):
            self.open_questions.discard(event.id)
        elif isinstance(event, RunEnded):
            self.result = event.result
        self._append(event)

    def _gathered(self) -> None:
        self._gathering = None
        if self._pieces:
            self._flush_text()
            self._gathering = self._loop.call_later(GATHER_SECONDS, self._gathered)

    def _flush_text(self) -> None:
        if self._pieces:
            text, self._pieces = "".join(self._pieces), []
            self._append(TextStreamed(text=text))

    def _append(self, event: LoggedEvent) -> None:
        number = len(self.events) + 1
        body = _encode(event).decode()
        self.events.append(LoggedRunEvent(number, event, body))
        self.unwritten.append(StoredEvent(number, time.time(), body))
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def follow(self, after: int = 0) -> AsyncIterator[LoggedRunEvent]:
        """The events after that number, as they happen, until the run has ended."""
        async for one in self.follow_with_pings(after, math.inf):
            if one is not None:
                yield one

    async def follow_with_pings(self, after: int, seconds: float) -> AsyncIterator[LoggedRunEvent | None]:
        """Like `follow`, with None now and then while nothing happens for so long."""
        clock = _PingClock(self._loop, seconds)
        try:
            while True:
                while after < len(self.events):
                    one = self.events[after]
                    after += 1
                    yield one
                if self.result is not None:
                    return
                # No task and no timer for each event: hundreds of streams have thousands of them in a second.
                waiter = self._loop.create_future()
                clock.waiter = waiter
                self._waiters.add(waiter)
                try:
                    await waiter
                finally:
                    self._waiters.discard(waiter)
                if after == len(self.events) and self.result is None:
                    yield None
        finally:
            clock.stop()


class _PingClock:
    """Wakes a stream in which nothing happens, with one timer that runs all the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self._loop = loop
        self._seconds = seconds
        self._before: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._schedule()

    def _schedule(self) -> None:
        if math.isfinite(self._seconds):
            self._timer = self._loop.call_later(self._seconds, self._tick)

    def _tick(self) -> None:
        """Wake the stream if it has waited for the same thing since the last time."""
        if self.waiter is self._before and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self._before = self.waiter
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class RunManager:
    """Starts, finds and ends the runs of one server."""

    def __init__(
        self, host: AgentHost, questions: PendingQuestions, store: RunStore, metrics: ServerMetrics | None = None
    ) -> None:
        self._host = host
        self.metrics = metrics or ServerMetrics()
        self._questions = questions
        self._store = store
        self._runs: dict[str, Run] = {}
        self._starting: dict[str, int] = {}
        """Sessions whose next run is being prepared in a thread."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._writer: asyncio.Task[None] | None = None
        self._others: Counter[str] = Counter()
        """By account: runs that are being prepared, and requests that work without a run."""
        self._streams: Counter[str] = Counter()
        self._is_closing = False

    @property
    def _limits(self) -> ServeLimits:
        """Those in force now: the config file may change."""
        return self._host.settings.serve.limits

    @property
    def store(self) -> RunStore:
        return self._store

    @property
    def working(self) -> list[Run]:
        return [run for id, run in self._runs.items() if id in self._tasks and run.result is None]

    async def open(self) -> None:
        """Mark the runs that an earlier server left unfinished; starts writing events."""
        await asyncio.to_thread(self._end_unfinished)
        self._writer = asyncio.ensure_future(self._write_regularly())

    def _end_unfinished(self) -> None:
        self.delete_old()
        for left in self._store.unfinished():
            stored = self._store.events(left.id)
            ended = RunEnded(result=RunResult(outcome="interrupted", problem=LOST, session_id=left.session_id))
            number = (stored[-1].number if stored else 0) + MOST_UNWRITTEN
            self._store.add_events([(left.id, StoredEvent(number, self._store.clock(), _encode(ended).decode()))])
            self._store.end(left.id, "interrupted", LOST)

    def delete_old(self) -> None:
        """Delete what the settings do not keep any longer."""
        kept = self._host.settings.serve.keep_days * DAY_SECONDS
        deleted = self._store.delete_before(self._store.clock() - kept)
        if deleted:
            logger.info("deleted %d old runs", deleted)
        # Sessions are deleted in the terminal as well.
        named = self._store.sessions()
        self._store.delete_sessions(named - self._host.store.existing(named))

    async def delete_session(self, session_id: str) -> int:
        """Delete a session and those of its subagents, and what runs did in them; returns how many sessions."""
        for id in [id for id, run in self._runs.items() if run.session_id == session_id and id not in self._tasks]:
            del self._runs[id]

        def delete() -> int:
            sessions = self._host.store.with_subagents(session_id)
            # The deepest first: what is left after a failure still belongs to its parent.
            for one in reversed(sessions):
                self._host.store.delete(one)
            self._store.delete_sessions(sessions)
            return len(sessions)

        return await finish_in_thread(delete)

    def find(self, run_id: str, owner: str) -> Run | None:
        """A run of this owner that works, or ended recently."""
        run = self._runs.get(run_id)
        return run if run is not None and run.record.owner == owner else None

    def of_session(self, session_id: str) -> Run | None:
        """The run that works on a session now."""
        return next((run for run in self.working if run.session_id == session_id), None)

    async def session(self, wanted: str, identity: TokenIdentity) -> Session:
        """The session with exactly this id, no prefix and no `last`, if it belongs to the token's owner; sessions that
        no server opened, such as those of the terminal, are for tokens of an admin only."""
        return await asyncio.to_thread(self.session_now, wanted, identity)

    def session_now(self, wanted: str, identity: TokenIdentity) -> Session:
        """As `session`, in a thread."""
        with suppress(UnknownSession):
            found = self._host.store.get(wanted)
            if found.id == wanted and found.owner == identity.owner and self.may_reach(found.id, identity):
                return found
        raise RunRefused(f"there is no session {wanted!r}", 404)

    def may_reach(self, session_id: str, identity: TokenIdentity) -> bool:
        """Whether a token reaches what happens in this session of its owner; in a thread."""
        # Requests that are passed through to the model have no session.
        return not session_id or identity.sees_all_sessions or self._questions.is_served(session_id)

    def is_busy(self, session_id: str) -> bool:
        """Whether a run works on a session, or is about to."""
        return session_id in self._starting or self.of_session(session_id) is not None

    def continued(self, session_id: str, message_id: int | None) -> str | None:
        """A session that goes on after this message: the session itself if that is its last, or a branch; None if the
        session or the message is gone."""
        store = self._host.store
        try:
            if message_id in (None, store.newest_message(session_id)):
                return session_id
            return store.branch(session_id, up_to=message_id).id
        except SessionError:
            return None

    @property
    def open_streams(self) -> int:
        return self._streams.total()

    @contextmanager
    def stream(self, identity: TokenIdentity) -> Iterator[None]:
        """While a stream is open."""
        self._streams[identity.account] += 1
        try:
            yield
        finally:
            self._streams[identity.account] -= 1
            if not self._streams[identity.account]:
                del self._streams[identity.account]

    def require_stream(self, identity: TokenIdentity) -> None:
        """Raises RunRefused if no further stream may be opened now."""
        _require_share("streams are open", self._streams, identity, self._limits.max_streams)

    def new_session(self, owner: str, title: str = "") -> Session:
        """A session without messages; in a thread."""
        provider, model = self._host.provider_for()
        runtime = self._host.runtime
        return self._host.store.create(
            source=self._host.platform,
            title=title,
            model=model,
            provider=provider.name,
            cwd=runtime.workspace,
            toolsets=self._host.settings.serve.toolsets,
            owner=owner,
        )

    @contextmanager
    def reserved(self, session_id: str | None) -> Iterator[None]:
        """While a run of a session is prepared; raises RunRefused if the session is busy."""
        if session_id is None:
            yield
            return
        if self.is_busy(session_id):
            raise RunRefused(f"a run is working on session {session_id!r}; wait for it, stop it or steer it", 409)
        self._starting[session_id] = 1
        try:
            yield
        finally:
            del self._starting[session_id]

    def _agent(self, session_id: str | None, owner: str, instructions: str, toolsets: Sequence[str] | None) -> Agent:
        chosen = self._host.settings.serve.toolsets if toolsets is None else toolsets
        agent = Agent(host=self._host, session_id=session_id, toolsets=chosen, owner=owner)
        if instructions.strip():
            agent.system_prompt = f"{agent.system_prompt}\n\n{instructions.strip()}"
        return agent

    def require_room(self, identity: TokenIdentity) -> None:
        """Raises RunRefused if no further run may start now."""
        if self._is_closing:
            raise RunRefused("the server is stopping; try again when it is back", 503)
        working = Counter(self._runs[id].identity.account for id in self._tasks) + self._others
        _require_share("runs are working", working, identity, self._limits.max_runs)

    @contextmanager
    def room(self, identity: TokenIdentity) -> Iterator[None]:
        """While something works that counts like a run; raises RunRefused if there is no room."""
        self.require_room(identity)
        self._others[identity.account] += 1
        try:
            yield
        finally:
            self._others -= Counter((identity.account,))

    def require_money(self, owner: str) -> None:
        """Raises RunRefused if the runs of a day have cost their limit, or an owner's share of it; in a thread."""
        limit, since = self._limits.cost_per_day_usd, self._store.clock() - DAY_SECONDS
        if not limit:
            return
        if self._store.cost_since(since) >= limit:
            raise RunRefused(
                f"the runs of the last 24 hours have cost the limit of ${limit:g}; "
                "raise `serve.limits.cost_per_day_usd`, or wait",
                429,
            )
        if owner and self._store.cost_since(since, owner) >= limit * SHARE:
            raise RunRefused(f"your runs of the last 24 hours have cost your share, ${limit * SHARE:g}; wait", 429)

    def repeated(self, key: str | None, digest: str) -> RunRecord | None:
        """The run that a request with this idempotency key started before; raises RunRefused for another request. In a
        thread."""
        if key is None:
            return None
        known = self._store.by_key(key)
        if known is not None and known.digest != digest:
            raise RunRefused("this idempotency key was used for another request", 409)
        return known

    async def start(
        self,
        session_id: str | None,
        question: Message,
        identity: TokenIdentity,
        *,
        instructions: str = "",
        key: str | None = None,
        digest: str = "",
        toolsets: Sequence[str] | None = None,
    ) -> Run:
        """Start to work on a question, in this session or in a new one; with these toolsets or the server's."""

        def prepare() -> tuple[Agent, RunRecord]:
            self.require_money(identity.owner)
            agent = self._agent(session_id, identity.owner, instructions, toolsets)
            record = RunRecord(
                id=f"run_{secrets.token_hex(12)}",
                session_id=agent.session_id,
                state="working",
                created_at=self._store.clock(),
                digest=digest,
                owner=identity.owner,
            )
            self._store.add(record, key)
            return agent, record

        await self._settled(session_id)
        with self.reserved(session_id):
            with self.room(identity):
                # Opening a session reads files and databases, which other processes may have locked.
                agent, record = await asyncio.to_thread(prepare)
            return self._work_on(Run(record, agent, identity), question)

    async def _settled(self, session_id: str | None) -> None:
        """Wait until the end of the session's last run is recorded; its client may ask on at once."""
        ending = [task for id, task in self._tasks.items() if self._runs[id].session_id == session_id]
        if ending and not self.is_busy(session_id or ""):
            await asyncio.wait(ending, timeout=CANCEL_SECONDS)

    def _work_on(self, run: Run, question: Message) -> Run:
        self._runs[run.id] = run
        self._tasks[run.id] = asyncio.ensure_future(self._work(run, question))
        return run

    async def _work(self, run: Run, question: Message) -> None:
        try:
            await finish_in_thread(self._questions.watch, run.session_id, run.add)
            await run.agent.run(question, on_event=run.add)
        except ToolcribError as error:
            run.add(RunEnded(result=RunResult(outcome="failed", problem=str(error), session_id=run.session_id)))
        finally:
            if run.result is None:
                # The task was cancelled: the server is closing.
                run.add(RunEnded(result=RunResult(outcome="interrupted", problem=LOST, session_id=run.session_id)))
            assert run.result is not None
            self.metrics.run_ended(run.result)
            await asyncio.shield(asyncio.to_thread(self._end, run))
            self._tasks.pop(run.id, None)
            self._forget_old()

    def _end(self, run: Run) -> None:
        result = run.result
        assert result is not None
        cost = result.usage.cost_usd or 0.0
        try:
            self._questions.unwatch(run.session_id)
            self._write([run])
            newest = self._host.store.newest_message(run.session_id)
            self._store.end(run.id, result.outcome, result.problem, cost, newest)
        except ToolcribError:
            logger.exception("cannot record the end of run %s", run.id)

    def _forget_old(self) -> None:
        """Keep the events of the latest runs in memory; older ones are read from the database."""
        ended = [id for id in self._runs if id not in self._tasks]
        for id in ended[:-64]:
            del self._runs[id]

    def _write(self, runs: list[Run]) -> None:
        """Write new events; from any thread."""
        events = []
        for run in runs:
            # The loop may append meanwhile: take what is there now, one by one.
            for _ in range(len(run.unwritten)):
                events.append((run.id, run.unwritten.popleft()))
        if events:
            self._store.add_events(events)

    async def written(self, run: Run) -> None:
        """Wait until the events of a run so far are stored."""
        await asyncio.to_thread(self._write, [run])

    async def _write_regularly(self) -> None:
        tidied = self._store.clock()
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            try:
                await asyncio.to_thread(self._write, list(self._runs.values()))
                if self._store.clock() - tidied > DAY_SECONDS:
                    tidied = self._store.clock()
                    await asyncio.to_thread(self.delete_old)
            except ToolcribError:
                logger.exception("cannot write the events of runs")

    async def stop_revoked(self, tokens: ServerTokens) -> None:
        """Interrupt the runs whose token is gone; what they ask for is denied."""
        started = {run.identity for run in self.working if run.identity.digest}
        if not started:
            return
        gone = await asyncio.to_thread(lambda: {one for one in started if not tokens.is_current(one)})
        for run in self.working:
            if run.identity in gone:
                run.agent.interrupt("its token was revoked")

    async def stop(self) -> None:
        """Interrupt all runs and wait for their cleanup. Their streams end, and open approvals stay on record."""
        self._is_closing = True
        await self._questions.stop_waiting()
        for run in self.working:
            run.agent.interrupt("the server is stopping")
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=STOP_SECONDS)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            # They still write how they ended.
            await asyncio.wait(left, timeout=CANCEL_SECONDS)

    async def close(self) -> None:
        """Stop, and write what is left."""
        await self.stop()
        if self._writer is not None:
            self._writer.cancel()
            with suppress(asyncio.CancelledError):
                await self._writer
        await asyncio.to_thread(self._write, list(self._runs.values()))
        self._store.close()


def _require_share(what: str, used: Counter[str], identity: TokenIdentity, limit: int) -> None:
    """Raises RunRefused if the limit is reached, or the share of one account."""
    if used.total() >= limit:
        raise RunRefused(f"{used.total()} {what}, which is the limit; try again later", 429)
    mine, share = used[identity.account], math.ceil(limit * SHARE)
    if mine >= share:
        whose = "your tokens" if identity.owner else "this token"
        raise RunRefused(f"{mine} {what} for {whose}, and the rest is for others; try again later", 429)


def digest_of(*parts: Any) -> str:
    """Identifies a request or a transcript."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
