"""Creates the environment that a spec describes; asks all backends whether they work and what they left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, cast

from toolcrib.config.os_errors import explain_os_error
from toolcrib.config.settings import Settings
from toolcrib.config.terminal_settings import TerminalSettings
from toolcrib.core.environments import BackendStatus, Engine, Environment, EnvironmentSpec, Leftover
from toolcrib.core.errors import EnvironmentFailed, EnvironmentGone, ToolcribError
from toolcrib.environments.backend import Backend, EnvironmentRequest
from toolcrib.environments.bash_runner import BashRunner, BashRunnerEngine
from toolcrib.environments.specs import BUILT_IN, ON_THIS_MACHINE, backend_name, find_backend, resolve, third_party

__all__ = [
    "backend_statuses",
    "create_environment",
    "environment_from",
    "leftovers",
    "open_address",
    "remove_leftover",
    "resolve",
]

ANSWER_SECONDS = 60.0

T = TypeVar("T")


def create_environment(spec: EnvironmentSpec, settings: Settings, environ: Mapping[str, str]) -> Environment:
    """The environment for a spec, not open yet. `environ` holds the variables of this process."""
    return _create(environment_request(spec, settings, environ), settings)


def open_address(address: Mapping[str, str], settings: Settings, environ: Mapping[str, str]) -> Environment:
    """The environment that another toolcrib process left at that address, not open yet; opening takes it over."""
    kind = backend_name(address.get("kind", ""))
    if kind in BUILT_IN and not find_backend(kind).can_reattach:
        raise EnvironmentGone(f"a {kind} ends with the process that made it; start a new environment")
    spec = EnvironmentSpec(backend=kind, session="", cwd=address.get("cwd", ""))
    return _create(environment_request(spec, settings, environ, address), settings)


def _create(request: EnvironmentRequest, settings: Settings) -> Environment:
    kind = request.spec.backend
    if kind in BUILT_IN:
        return find_backend(kind).create(request)
    backend_name(kind)
    found = third_party()[kind].load()
    return (
        found.create(request)
        if isinstance(found, Backend)
        else environment_from(found(request.spec, settings), request)
    )


def environment_request(
    spec: EnvironmentSpec, settings: Settings, environ: Mapping[str, str], address: Mapping[str, str] | None = None
) -> EnvironmentRequest:
    """What a backend gets to create that environment, or to answer a question about itself."""
    kind, terminal = spec.backend, settings.terminal
    return EnvironmentRequest(
        spec=spec,
        terminal=terminal,
        environ=environ,
        address=address or {},
        secrets=(settings.home.root,),
        section=find_backend(kind).settings(terminal) if kind in BUILT_IN else None,
        on_host=kind in ON_THIS_MACHINE,
    )


def environment_from(made: Any, request: EnvironmentRequest) -> Environment:
    """The environment over what foreign code made: an Environment, an Engine, or an object with `_run_bash`."""
    kind = request.spec.backend
    if hasattr(made, "start"):
        return cast(Environment, made)
    if hasattr(made, "spawn"):
        return request.shell_over(cast(Engine, made))
    if hasattr(made, "_run_bash"):
        return request.shell_over(BashRunnerEngine(cast(BashRunner, made), kind))
    raise EnvironmentFailed(
        f"the backend {kind!r} returned an object of type {type(made).__name__}; expected an Environment, an Engine "
        "or a BaseEnvironment"
    )


# Questions to all backends


async def backend_statuses(settings: Settings, environ: Mapping[str, str]) -> list[BackendStatus]:
    """Whether each backend works here, ours first. No backend can make this fail or hang."""
    ours = await asyncio.gather(*(_status(backend, settings, environ) for backend in _built_in()))
    theirs = [
        BackendStatus(kind=name, usable=True, detail=f"installed by {found.dist.name if found.dist else found.value}")
        for name, found in sorted(third_party().items())
    ]
    return [*ours, *theirs]


async def leftovers(settings: Settings, environ: Mapping[str, str]) -> tuple[list[Leftover], list[str]]:
    """What earlier toolcrib processes left in every backend that works here, and which backends could not be asked."""
    usable = {status.kind for status in await backend_statuses(settings, environ) if status.usable}
    asked = [backend for backend in _built_in() if backend.kind in usable and backend.leftovers is not None]
    answers = await asyncio.gather(
        *(_leftovers_of(backend, settings, environ) for backend in asked), return_exceptions=True
    )
    found: list[Leftover] = []
    problems: list[str] = []
    for backend, answer in zip(asked, answers, strict=True):
        if isinstance(answer, ToolcribError | TimeoutError | OSError):
            said = explain_os_error(answer) if isinstance(answer, OSError) and answer.errno else str(answer)
            problems.append(f"{backend.kind}: {said or 'no answer'}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer
    return found, problems


async def remove_leftover(leftover: Leftover, settings: Settings, environ: Mapping[str, str]) -> None:
    """Remove one that `leftovers` found; raises EnvironmentFailed if it is still there."""
    backend = find_backend(backend_name(leftover.kind.partition(" ")[0]))
    if backend.remove is None:
        raise EnvironmentFailed(f"the {backend.kind} backend leaves nothing that could be removed")
    await _in_time(backend.remove(leftover, _question(backend, settings, environ)))


def _built_in() -> list[Backend]:
    """Our backends in the order of their settings; `local` has none and comes first."""
    order = ["", *TerminalSettings.__annotations__]
    return sorted(map(find_backend, BUILT_IN), key=lambda backend: order.index(backend.section))


async def _status(backend: Backend, settings: Settings, environ: Mapping[str, str]) -> BackendStatus:
    kind = backend.kind
    try:
        return await _in_time(backend.probe(_question(backend, settings, environ)))
    except TimeoutError:
        remedy = f"check by hand why it hangs, or choose a backend other than {kind}"
        return BackendStatus(kind=kind, usable=False, detail="it did not answer", remedy=remedy)
    except (ToolcribError, OSError) as error:
        detail, _, remedy = str(error).partition("; ")
        return BackendStatus(kind=kind, usable=False, detail=detail, remedy=remedy)


async def _leftovers_of(backend: Backend, settings: Settings, environ: Mapping[str, str]) -> list[Leftover]:
    if backend.leftovers is None:
        return []
    return await _in_time(backend.leftovers(_question(backend, settings, environ)))


def _question(backend: Backend, settings: Settings, environ: Mapping[str, str]) -> EnvironmentRequest:
    """A request that is not about one environment: only what the backend needs to reach its engine."""
    section = backend.settings(settings.terminal)
    host, user = getattr(section, "host", ""), getattr(section, "user", "")
    spec = EnvironmentSpec(backend=backend.kind, session="", host=host, user=user, cwd="/")
    return environment_request(spec, settings, environ)


async def _in_time(answer: Awaitable[T]) -> T:
    async with asyncio.timeout(ANSWER_SECONDS):
        return await answer
