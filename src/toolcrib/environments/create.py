"""Makes the environment that a spec describes, and answers what backends there are and what they left behind."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from toolcrib.config.child_environment import SECRET_NAMES
from toolcrib.config.settings import Settings
from toolcrib.core.environments import BackendStatus, Engine, Environment, EnvironmentSpec, Leftover
from toolcrib.core.errors import EnvironmentFailed, PlaceGone, ToolcribError
from toolcrib.environments.backend_options import (
    WORKSPACE_INSIDE,
    Order,
    backend_module,
    engine_options,
    make_engine,
)
from toolcrib.environments.backends.bash_runner import BashRunner, BashRunnerEngine
from toolcrib.environments.shell import SessionOptions, ShellEnvironment
from toolcrib.environments.specs import BUILT_IN, ON_THIS_MACHINE, backend_name, resolve, third_party

__all__ = [
    "backend_statuses",
    "create_environment",
    "leftovers",
    "open_address",
    "remove_leftover",
    "resolve",
]

PROFILE = ("~/.profile", "~/.bash_profile", "~/.bashrc")
MEGABYTE = 1024 * 1024
ASK_SECONDS = 60.0
ASKED_BY_CLIENT = frozenset({"docker", "singularity"})


def create_environment(spec: EnvironmentSpec, settings: Settings, environ: Mapping[str, str]) -> Environment:
    """The environment for a spec, not open yet. `environ` holds the variables of this process."""
    return _make(_order(spec, settings, environ), settings)


def open_address(address: Mapping[str, str], settings: Settings, environ: Mapping[str, str]) -> Environment:
    """The environment that another process of ours left at that address, not open yet; opening takes it over."""
    kind = backend_name(address.get("kind", ""))
    if kind == "sandbox":
        raise PlaceGone("a sandbox ends with the process that made it; start a new environment")
    spec = EnvironmentSpec(backend=kind, session="", cwd=address.get("cwd", ""))
    return _make(_order(spec, settings, environ, address), settings)


def _order(
    spec: EnvironmentSpec, settings: Settings, environ: Mapping[str, str], address: Mapping[str, str] | None = None
) -> Order:
    return Order(
        spec=spec,
        terminal=settings.terminal,
        environ=environ,
        address=address or {},
        secrets=(settings.home.root,),
    )


def _make(order: Order, settings: Settings) -> Environment:
    kind = order.spec.backend
    if kind == "local":
        made: Environment = backend_module("local").LocalEnvironment(order.host_environ(), session_options(order))
        return made
    engine = make_engine(order) if kind in BUILT_IN else _third_party_engine(order, settings)
    if hasattr(engine, "start"):
        return cast(Environment, engine)
    return ShellEnvironment(cast(Engine, engine), session_options(order))


def _third_party_engine(order: Order, settings: Settings) -> Any:
    """What an entry point makes: an Environment, an Engine, or an object with `_run_bash` behind one of ours."""
    kind = order.spec.backend
    backend_name(kind)
    made = third_party()[kind].load()(order.spec, settings)
    if hasattr(made, "start") or hasattr(made, "spawn"):
        return made
    if hasattr(made, "_run_bash"):
        return BashRunnerEngine(cast(BashRunner, made), kind)
    raise EnvironmentFailed(
        f"the backend {kind!r} made a {type(made).__name__}; its entry point should give an Environment, an Engine, "
        "or a BaseEnvironment"
    )


def session_options(order: Order) -> SessionOptions:
    """How the shell session begins: folder, variables, profile."""
    terminal, spec = order.terminal, order.spec
    files = list(terminal.shell_init_files) or (list(PROFILE) if terminal.login_shell else [])
    home = order.environ.get("HOME", "") if spec.backend in ON_THIS_MACHINE else ""
    if home:
        files = [home + file[1:] if file.startswith("~/") else file for file in files]
    # Inside the sandbox only the real path of the workspace exists.
    cwd = str(Path(spec.cwd).resolve()) if spec.backend == "sandbox" and spec.cwd else spec.cwd
    return SessionOptions(
        cwd=cwd or (WORKSPACE_INSIDE if order.workspace else ""),
        variables=order.variables(),
        profile_files=files,
        secret_names=SECRET_NAMES,
        max_log_bytes=terminal.max_saved_output_mb * MEGABYTE,
        folder=order.address.get("folder", ""),
    )


# Questions to all backends


async def backend_statuses(settings: Settings, environ: Mapping[str, str]) -> list[BackendStatus]:
    """Whether each backend can be used here, ours first; none of them can make this fail, or take for ever."""
    ours = await asyncio.gather(*(_status(kind, settings, environ) for kind in BUILT_IN))
    theirs = [
        BackendStatus(kind=name, usable=True, detail=f"brought by {found.dist.name if found.dist else found.value}")
        for name, found in sorted(third_party().items())
    ]
    return [*ours, *theirs]


async def leftovers(settings: Settings, environ: Mapping[str, str]) -> tuple[list[Leftover], list[str]]:
    """What earlier processes of ours left behind in every backend that can be used, and whom we could not ask."""
    usable = [status.kind for status in await backend_statuses(settings, environ) if status.usable]
    asked = [kind for kind in usable if kind in BUILT_IN and hasattr(backend_module(kind), "leftovers")]
    answers = await asyncio.gather(
        *(_ask(kind, "leftovers", settings, environ) for kind in asked), return_exceptions=True
    )
    found: list[Leftover] = []
    problems: list[str] = []
    for kind, answer in zip(asked, answers, strict=True):
        if isinstance(answer, ToolcribError | TimeoutError | OSError):
            problems.append(f"{kind}: {str(answer) or 'no answer'}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer
    return found, problems


async def remove_leftover(leftover: Leftover, settings: Settings, environ: Mapping[str, str]) -> None:
    """Remove one that `leftovers` found; raises EnvironmentFailed when it is still there."""
    kind = backend_name(leftover.kind.partition(" ")[0])
    await _ask(kind, "remove", settings, environ, leftover)


async def _status(kind: str, settings: Settings, environ: Mapping[str, str]) -> BackendStatus:
    try:
        status: BackendStatus = await _ask(kind, "probe", settings, environ)
    except TimeoutError:
        return BackendStatus(kind=kind, usable=False, detail="it did not answer", remedy="look at it by hand")
    except (ToolcribError, OSError) as error:
        detail, _, remedy = str(error).partition("; ")
        return BackendStatus(kind=kind, usable=False, detail=detail, remedy=remedy)
    return status


async def _ask(kind: str, name: str, settings: Settings, environ: Mapping[str, str], *first: Any) -> Any:
    """Call one of the questions that a backend's module answers, with what it needs to reach its engine."""
    ssh = settings.terminal.ssh
    spec = EnvironmentSpec(backend=kind, session="", host=ssh.host, user=ssh.user, cwd="/")
    order = _order(spec, settings, environ)
    question: Callable[..., Any] = getattr(backend_module(kind), name)
    if kind == "local":
        answer = question(*first, order.host_environ())
    elif kind in ASKED_BY_CLIENT:
        options = engine_options(order)
        answer = question(*first, options.binary, options.environ)
    elif kind == "sandbox" and name != "probe":
        answer = question(*first)
    else:
        answer = question(*first, engine_options(order))
    if not inspect.isawaitable(answer):
        return answer
    async with asyncio.timeout(ASK_SECONDS):
        return await answer
