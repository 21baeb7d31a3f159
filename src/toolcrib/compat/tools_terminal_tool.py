"""`tools.terminal_tool`: commands through the whole pipeline of the default runtime, and its environments.

Two things differ from the reference system: `force` forces nothing, since the gate has no way around it; and every task
has an environment of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from toolcrib.api import default_runtime
from toolcrib.approval.gate import DEFAULT_SESSION
from toolcrib.compat.approval_sessions import (
    ApprovalCallback,
    SudoCallback,
    approval_callback_var,
    sessions,
    sudo_callback_var,
)
from toolcrib.compat.session_environment import SessionEnvironment, run_terminal
from toolcrib.compat.tools_environments import BaseEnvironment
from toolcrib.compat.tools_environments_backends import (
    DaytonaEnvironment,
    DockerEnvironment,
    LocalEnvironment,
    ModalEnvironment,
    SingularityEnvironment,
    SSHEnvironment,
)
from toolcrib.compat.tools_interrupt import _interrupt_event
from toolcrib.core.environments import INTERRUPTED
from toolcrib.core.errors import UsageError
from toolcrib.core.types import JsonObject, ToolResult

__all__ = ["_interrupt_event"]

_wanted_folders: dict[str, str] = {}
"""The folders of sessions that have no environment yet; for the process, as these functions take a key and no more."""


def terminal_tool(
    command: str,
    background: bool = False,
    timeout: float | None = None,
    task_id: str | None = None,
    session_id: str | None = None,
    force: bool = False,  # noqa: ARG001
    workdir: str | None = None,
    pty: bool = False,
    notify_on_complete: bool = False,
    watch_patterns: Sequence[str] | None = None,
) -> str:
    """Run a command as the `terminal` tool does, gate and hooks included; the answer as JSON."""
    arguments: JsonObject = {
        "command": command,
        "background": background,
        "timeout": timeout,
        "workdir": workdir,
        "pty": pty,
        "notify_on_complete": notify_on_complete,
        "watch_patterns": None if watch_patterns is None else list(watch_patterns),
    }
    keys = (task_id or "", session_id or task_id or DEFAULT_SESSION)
    folder = next((found for key in keys if (found := _wanted_folders.pop(key, None))), None)
    if folder is not None:
        run_terminal({"command": f"cd -- {shlex.quote(folder)}"}, task_id or "", session_id or "")
    given = {name: value for name, value in arguments.items() if value is not None}
    result = run_terminal(given, task_id or "", session_id or "")
    answer = _answer(result)
    if answer is None and result.status == "cancelled":
        answer = {"output": "[Command interrupted]", "exit_code": INTERRUPTED, "error": None}
    elif answer is None:
        answer = {"output": "", "exit_code": -1, "error": result.error_message, "status": result.status}
    return json.dumps(answer, ensure_ascii=False)


def set_approval_callback(cb: ApprovalCallback | None) -> None:
    """Ask `cb(command, description, *, allow_permanent=True)` about dangerous commands of this thread; None: nobody."""
    approval_callback_var.set(cb)
    if cb is not None:
        sessions.answer_for_runtime()


def set_sudo_password_callback(cb: SudoCallback | None) -> None:
    """Ask `cb()` for the password when a command of this thread calls sudo; None: nobody."""
    sudo_callback_var.set(cb)
    if cb is not None:
        sessions.answer_for_runtime()


def _get_approval_callback() -> ApprovalCallback | None:
    return approval_callback_var.get()


def _get_sudo_password_callback() -> SudoCallback | None:
    return sudo_callback_var.get()


def _answer(result: ToolResult) -> JsonObject | None:
    """The tool's answer; None if the call did not get that far."""
    try:
        answer = json.loads(result.content) if isinstance(result.content, str) else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "exit_code" in answer else None


# What single tasks want differently


def register_task_env_overrides(task_id: str, overrides: Mapping[str, str]) -> None:
    """From now on this task wants another backend (`env_type`), image (`docker_image` …) or folder (`cwd`)."""
    default_runtime().terminal.set_override(task_id, overrides)


def clear_task_env_overrides(task_id: str) -> None:
    default_runtime().terminal.clear_override(task_id)


def resolve_task_overrides(task_id: str | None) -> dict[str, str]:
    return dict(default_runtime().terminal.override_of(task_id or DEFAULT_SESSION))


# Folders of sessions


def record_session_cwd(session_key: str, cwd: str) -> None:
    """Make a folder the one that the session's next command starts in."""
    if get_active_env(session_key) is None:
        _wanted_folders[session_key] = cwd
        return
    result = run_terminal({"command": f"cd -- {shlex.quote(cwd)}"}, "", session_key)
    answer = _answer(result)
    if answer is None or answer["exit_code"] != 0:
        raise UsageError(f"the session {session_key!r} cannot go to {cwd!r}: {(answer or {}).get('output')}")


def get_session_cwd(session_key: str) -> str | None:
    """The folder that the session's next command starts in; None when nothing is known of it."""
    environment = default_runtime().terminal.environment_of(session_key)
    return environment.cwd if environment is not None else _wanted_folders.get(session_key)


def clear_session_cwd(session_key: str) -> None:
    """Forget a folder that was recorded for a session without an environment."""
    _wanted_folders.pop(session_key, None)


# Environments


class _ActiveEnvironments(MutableMapping[str, BaseEnvironment]):
    """The open environments by task or session. Removing one gives it back; ours are made by commands, not put here."""

    def __getitem__(self, key: str) -> BaseEnvironment:
        terminal = default_runtime().terminal
        environment = terminal.environment_of(key)
        if environment is None:
            raise KeyError(key)
        return SessionEnvironment(terminal, key, environment)

    def __setitem__(self, key: str, value: BaseEnvironment) -> None:
        raise UsageError("an environment is opened by the first command of its session; it cannot be put here")

    def __delitem__(self, key: str) -> None:
        self[key].cleanup()

    def __iter__(self) -> Iterator[str]:
        pool = default_runtime().terminal.environments
        return iter(
            {entry.spec.task or entry.spec.session: None for entry in pool.entries() if entry.environment is not None}
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


_active_environments = _ActiveEnvironments()


def get_active_env(task_id: str) -> BaseEnvironment | None:
    """The open environment of a task or session, for callers that are not async."""
    return _active_environments.get(task_id)


def is_persistent_env(task_id: str) -> bool:
    """Whether what commands of the task write outlasts its environment although that is a container."""
    terminal = default_runtime().settings.terminal
    environment = default_runtime().terminal.environment_of(task_id)
    if environment is None:
        return False
    kept = {"docker": terminal.docker.persistent, "singularity": bool(terminal.singularity.overlay)}
    return kept.get(environment.kind, False)


def cleanup_vm(task_id: str) -> None:
    """End everything that runs in a task's environment, and release it."""
    _wanted_folders.pop(task_id, None)
    _active_environments.pop(task_id, None)


def cleanup_all_environments() -> int:
    """The same for all; says how many there were."""
    keys = list(_active_environments)
    for key in keys:
        cleanup_vm(key)
    return len(keys)


def check_terminal_requirements() -> bool:
    """Whether commands can run."""
    return default_runtime().registry.is_toolset_available("terminal")


def _get_env_config() -> JsonObject:
    """The settings of the terminal, under the names that the reference system gives them."""
    terminal = default_runtime().settings.terminal
    docker, ssh = terminal.docker, terminal.ssh
    return {
        "env_type": terminal.backend,
        "cwd": terminal.cwd or default_runtime().workspace,
        "timeout": terminal.timeout,
        "lifetime_seconds": terminal.lifetime_seconds,
        "docker_image": docker.image,
        "singularity_image": terminal.singularity.image,
        "modal_image": terminal.modal.image,
        "daytona_image": terminal.daytona.image,
        "ssh_host": ssh.host,
        "ssh_user": ssh.user,
        "ssh_port": ssh.port,
        "ssh_key": ssh.key,
        "container_cpu": docker.cpus,
        "container_memory": docker.memory_mb,
        "container_disk": docker.disk_mb,
        "container_persistent": docker.persistent,
        "docker_volumes": list(docker.volumes),
        "docker_forward_env": list(docker.env_passthrough),
        "docker_env": dict(docker.env),
        "docker_network": docker.network,
        "docker_extra_args": list(docker.extra_args),
        "docker_mount_cwd_to_workspace": docker.mount_cwd,
    }


def _create_environment(
    env_type: str,
    image: str = "",
    cwd: str = "",
    timeout: int = 60,
    ssh_config: JsonObject | None = None,
    container_config: JsonObject | None = None,
    local_config: JsonObject | None = None,  # noqa: ARG001
    task_id: str = DEFAULT_SESSION,
    host_cwd: str | None = None,  # noqa: ARG001
) -> BaseEnvironment:
    """A new environment, which the caller owns."""
    container, ssh = container_config or {}, ssh_config or {}
    if env_type == "local":
        return LocalEnvironment(cwd, timeout)
    if env_type == "docker":
        return DockerEnvironment(
            image,
            cwd,
            timeout,
            cpu=container.get("container_cpu", 0),
            memory=container.get("container_memory", 0),
            disk=container.get("container_disk", 0),
            persistent_filesystem=bool(container.get("container_persistent", False)),
            task_id=task_id,
            volumes=container.get("docker_volumes") or (),
            forward_env=container.get("docker_forward_env") or (),
            env=container.get("docker_env"),
        )
    if env_type == "ssh":
        return SSHEnvironment(
            ssh.get("host", ""), ssh.get("user", ""), cwd, timeout, ssh.get("port") or 0, ssh.get("key") or ""
        )
    kinds = {"singularity": SingularityEnvironment, "modal": ModalEnvironment, "daytona": DaytonaEnvironment}
    if env_type not in kinds:
        raise UsageError(f"no backend {env_type!r}; use local, docker, ssh, {', '.join(kinds)}")
    return kinds[env_type](image, cwd, timeout, task_id=task_id)


def __getattr__(name: str) -> Any:
    if name == "FOREGROUND_MAX_TIMEOUT":
        return default_runtime().settings.terminal.max_foreground_timeout
    if name == "TERMINAL_SCHEMA":
        return default_runtime().registry.get_schema("terminal")
    raise AttributeError(f"module 'tools.terminal_tool' has no attribute {name!r}")
