"""The pool: one environment a key, opened once, never taken away from whoever uses it, given back when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest

from toolcrib.core.environments import Environment, EnvironmentSpec
from toolcrib.core.errors import ConfigError, EnvironmentFailed
from toolcrib.environments.pool import EnvironmentPool

SPEC = EnvironmentSpec(backend="folder", session="one", cwd="/work")
LIFETIME = 300.0


class FolderEnvironment:
    """An environment that is a folder of this machine: there while it is open, gone afterwards. Runs no commands."""

    kind = "folder"
    isolated = False

    def __init__(self, folder: Path, may_open: asyncio.Event, may_close: asyncio.Event) -> None:
        self.folder = folder
        self.opening = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed = asyncio.Event()
        self._may_open = may_open
        self._may_close = may_close

    async def open(self) -> None:
        self.opening.set()
        self.folder.mkdir()
        await self._may_open.wait()

    async def close(self) -> None:
        self.closing.set()
        await self._may_close.wait()
        self.folder.rmdir()
        self.closed.set()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Folders:
    """Makes environments below a folder, and knows all that it made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[FolderEnvironment] = []
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.created = asyncio.Event()

    def create(self, spec: EnvironmentSpec) -> Environment:
        # A folder that a failed close left behind is in the way of the next one of that key.
        made = FolderEnvironment(self.root / str(hash(spec)), self.may_open, self.may_close)
        self.made.append(made)
        self.created.set()
        return cast(Environment, made)

    def left(self) -> list[Path]:
        return list(self.root.iterdir())


@pytest.fixture
async def folders(tmp_path: Path) -> Folders:
    (tmp_path / "environments").mkdir()
    return Folders(tmp_path / "environments")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def make_pool(folders: Folders, clock: Clock):
    pools: list[EnvironmentPool] = []

    def make(
        is_busy: Callable[[Environment], bool] = lambda environment: False, lifetime_seconds: float = LIFETIME
    ) -> EnvironmentPool:
        pools.append(EnvironmentPool(folders.create, lifetime_seconds=lifetime_seconds, is_busy=is_busy, clock=clock))
        return pools[-1]

    yield make
    folders.may_close.set()
    for pool in pools:
        await pool.close_all()
        assert pool.entries() == []
    assert folders.left() == []


async def use(pool: EnvironmentPool, spec: EnvironmentSpec = SPEC) -> Environment:
    async with asyncio.timeout(10), pool.acquire(spec) as environment:
        return environment


async def test_the_same_key_gets_the_same_environment(make_pool, folders):
    """Whoever asks for a key twice, one after the other or at once, works in one environment."""
    pool = make_pool()

    first = await use(pool)
    async with pool.acquire(SPEC) as second, pool.acquire(SPEC) as third:
        assert first is second is third
        assert pool.find(SPEC) is first

    assert len(folders.made) == 1


@pytest.mark.parametrize(
    "change",
    [{"session": "two"}, {"backend": "other"}, {"image": "i"}, {"host": "h"}, {"user": "u"}, {"cwd": "/elsewhere"}],
)
async def test_another_key_gets_another_environment(make_pool, change: Mapping[str, str]):
    """A difference in session, backend, image, host, user or folder is another environment."""
    pool = make_pool()
    values = {"backend": "folder", "session": "one", "cwd": "/work"} | change

    assert await use(pool) is not await use(pool, EnvironmentSpec(**values))


async def test_those_who_ask_at_once_wait_for_one_opening(make_pool, folders):
    """Ten tasks that want an environment which is not open yet open it once."""
    pool = make_pool()
    folders.may_open.clear()

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(use(pool)) for _ in range(10)]
        await folders.created.wait()
        assert [entry.state for entry in pool.entries()] == ["opening"]
        folders.may_open.set()

    assert len({id(task.result()) for task in asking}) == len(folders.made) == 1


async def test_a_failed_opening_is_told_to_all_and_forgotten(make_pool, folders):
    """Everybody who waited hears why; the next one tries again; nothing of the attempt is left."""
    pool = make_pool()
    in_the_way = folders.root / str(hash(SPEC))
    in_the_way.mkdir()

    results = await asyncio.gather(*(use(pool) for _ in range(3)), return_exceptions=True)

    assert [type(result) for result in results] == [EnvironmentFailed] * 3
    assert pool.entries() == []
    assert await use(pool) is not None


async def test_one_who_gives_up_does_not_disturb_the_others(make_pool, folders):
    """Cancelling one of two who wait leaves the opening to the other."""
    pool = make_pool()
    folders.may_open.clear()
    impatient, patient = asyncio.create_task(use(pool)), asyncio.create_task(use(pool))
    await folders.created.wait()
    await folders.made[0].opening.wait()

    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    folders.may_open.set()

    assert await patient is folders.made[0]
    assert len(folders.made) == 1


async def test_an_opening_that_all_gave_up_is_undone(make_pool, folders):
    """When the last one who waited is cancelled, what was opened so far is closed; the next one starts anew."""
    pool = make_pool()
    folders.may_open.clear()
    asking = asyncio.create_task(use(pool))
    await folders.created.wait()
    await folders.made[0].opening.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(10):
        await folders.made[0].closed.wait()
    folders.may_open.set()

    assert await use(pool) is folders.made[1]


async def test_closing_during_an_opening_is_an_error_for_those_who_wait(make_pool, folders):
    """They are told so; they are not cancelled themselves."""
    pool = make_pool()
    folders.may_open.clear()
    asking = asyncio.create_task(use(pool))
    await folders.created.wait()
    await folders.made[0].opening.wait()

    await pool.close_all()

    with pytest.raises(EnvironmentFailed, match="closed while it was opening"):
        await asking
    assert folders.left() == []


async def test_idle_ones_are_given_back(make_pool, folders, clock):
    """An environment that nobody used for its lifetime is closed, one that was used since is not."""
    pool = make_pool()
    await use(pool)
    clock.now += LIFETIME - 1
    other = EnvironmentSpec(backend="folder", session="two")
    await use(pool, other)
    clock.now += 2

    await pool.reap()

    assert [entry.spec for entry in pool.entries()] == [other]
    assert folders.made[0].closed.is_set()


async def test_idleness_begins_when_it_is_given_back(make_pool, folders, clock):
    """An environment that is held is never closed, however long that takes; its time starts afterwards."""
    pool = make_pool()

    async with pool.acquire(SPEC):
        clock.now += 10 * LIFETIME
        await pool.reap()
        assert [(entry.state, entry.leases) for entry in pool.entries()] == [("in use", 1)]
    clock.now += LIFETIME - 1
    await pool.reap()

    assert [(entry.state, entry.idle_seconds) for entry in pool.entries()] == [("idle", LIFETIME - 1)]


async def test_a_busy_one_is_never_given_back(make_pool, clock):
    """Processes in the background keep their environment; its time starts when they have ended."""
    busy = True
    pool = make_pool(is_busy=lambda environment: busy)
    await use(pool)
    clock.now += 10 * LIFETIME

    await pool.reap()
    assert [entry.state for entry in pool.entries()] == ["busy"]
    busy = False
    clock.now += LIFETIME - 1
    await pool.reap()
    assert [entry.state for entry in pool.entries()] == ["idle"]
    clock.now += 1
    await pool.reap()

    assert pool.entries() == []


async def test_giving_back_happens_by_itself(folders):
    """A timer on the loop closes what is idle; nobody has to ask."""
    pool = EnvironmentPool(folders.create, lifetime_seconds=0.01)

    await use(pool)

    async with asyncio.timeout(10):
        await folders.made[0].closed.wait()
    await pool.close_all()
    assert folders.left() == []


async def test_one_that_is_being_closed_is_not_handed_out(make_pool, folders, clock):
    """Whoever asks meanwhile waits until it is gone, and gets a new one."""
    pool = make_pool()
    old = await use(pool)
    folders.may_close.clear()
    clock.now += LIFETIME
    reaping = asyncio.create_task(pool.reap())
    asking = asyncio.create_task(use(pool))
    await folders.made[0].closing.wait()
    assert [entry.state for entry in pool.entries()] == ["closing"]
    assert pool.find(SPEC) is None

    folders.may_close.set()
    new = await asking
    await reaping

    assert new is not old
    assert pool.find(SPEC) is new


async def test_a_lost_one_is_replaced(make_pool, folders):
    """After `discard` the same key gets a new environment; the old one is closed once."""
    pool = make_pool()
    lost = await use(pool)

    await asyncio.gather(pool.discard(lost), pool.discard(lost))
    await pool.discard(lost)

    assert await use(pool) is folders.made[1]
    assert folders.made[0].closed.is_set()


async def test_a_session_is_closed_alone(make_pool, folders):
    """Closing one session, or one key, leaves the others open."""
    pool = make_pool()
    others = [EnvironmentSpec(backend="folder", session="two", image=image) for image in ("", "a", "b")]
    for spec in (SPEC, *others):
        await use(pool, spec)

    await pool.close(others[0])
    assert [entry.spec for entry in pool.entries()] == [SPEC, *others[1:]]
    await pool.close_session("two")

    assert [entry.spec for entry in pool.entries()] == [SPEC]


async def test_an_environment_that_cannot_be_closed_is_logged_and_dropped(make_pool, folders, caplog):
    """One failure does not keep the others open, and is not hidden."""
    pool = make_pool()
    await use(pool)
    await use(pool, EnvironmentSpec(backend="folder", session="two"))
    folders.made[0].folder.rmdir()

    await pool.close_all()

    assert pool.entries() == []
    assert folders.left() == []
    assert "could not close" in caplog.text


async def test_the_pool_can_be_used_after_everything_was_closed(make_pool):
    """Closing all is not the end."""
    pool = make_pool()
    first = await use(pool)
    await pool.close_all()

    assert await use(pool) is not first


async def test_overrides_belong_to_one_task(make_pool):
    """A task's wishes are kept until they are cleared, and are nobody else's."""
    pool = make_pool()

    pool.set_override("task", {"docker_image": "debian", "cwd": "/srv"})

    assert pool.override_of("task") == {"docker_image": "debian", "cwd": "/srv"}
    assert pool.override_of("other") == {}
    pool.clear_override("task")
    pool.clear_override("task")
    assert pool.override_of("task") == {}


def test_an_unknown_override_is_refused(tmp_path):
    """With the nearest name, at the moment it is set."""
    pool = EnvironmentPool(lambda spec: cast(Environment, None), lifetime_seconds=1)

    with pytest.raises(ConfigError, match="did you mean 'docker_image'"):
        pool.set_override("task", {"docker_imag": "debian"})
    with pytest.raises(ConfigError, match="must be text"):
        pool.set_override("task", {"cwd": 3})  # type: ignore[dict-item]

    assert pool.override_of("task") == {}
