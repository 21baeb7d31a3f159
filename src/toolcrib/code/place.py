"""Where a script runs, and the command line that starts its interpreter there.

With the local backend that is a kernel sandbox, made for scripts alone: they see the session's folder, write nowhere
else, and have no network unless the settings say so. Each script that runs at the same time has a sandbox of its own,
so that whatever runs there belongs to it and can be ended with certainty. With every other backend a script runs inside
the session's own place, as commands do.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from toolcrib.code.interpreter import InterpreterOrder, Shim
from toolcrib.code.secret_files import secret_files
from toolcrib.config.tool_settings import CodeExecutionSettings
from toolcrib.core.environments import BackendPath, EnvironmentSpec
from toolcrib.environments.backend_options import COVERED_SEPARATOR
from toolcrib.terminal.whereabouts import Whereabouts

INSIDE = Path(__file__).parent / "inside"
MEGABYTE = 1024 * 1024
MORE_PROCESSES = 1000
"""Older kernels count all processes of the user against a sandbox; those of the script are counted from inside."""
NO_PYTHON = "toolcrib: no python"
OLD_PYTHON = "toolcrib: old python"
FIRST_WORDS = f"""import sys
if sys.version_info < (3, 7): sys.stdout.write("{OLD_PYTHON} %d.%d\\n" % sys.version_info[:2]); sys.exit(1)
exec(compile(sys.argv[1], "<supervisor>", "exec"), dict(__name__="__main__"))"""
# With few arenas: each takes as much from the bound on memory as ten threads do.
# Finds the interpreter: the one in the settings, the project's, or the first on the way. Never ours: what can be
# imported there could be imported by a script. Each is opened first: Landlock shows files that it does not let us open.
CHOOSE = """__tc_options=(-I -X utf8 {options})
for __tc_python in {candidates} ''; do
    if [[ $__tc_python != */* ]]; then
        builtin hash "$__tc_python" 2>/dev/null || builtin continue
        __tc_python=${{BASH_CMDS[$__tc_python]}}
    fi
    [[ ! -x $__tc_python ]] || ! {{ builtin true <"$__tc_python"; }} 2>/dev/null || builtin break
done
[[ -x $__tc_python ]] || {{ builtin printf '{no_python}\\n'; builtin exit 1; }}
[[ $__tc_python != {shim} ]] || __tc_python={executable}
if [[ ${{__tc_python%/*}} -ef {own} ]]; then __tc_python={base} __tc_options+=({base_options}); fi
builtin export MALLOC_ARENA_MAX=${{MALLOC_ARENA_MAX:-2}}
"$__tc_python" "${{__tc_options[@]}}" -c {first} {supervisor} {nonce} {script_side} "$__tc_python\""""
VENV_PYTHON = ".venv/bin/python"
CHOICES = (VENV_PYTHON, ".python-version")
"""Files of a project that decide which interpreter it gets."""
PROJECT = f'${{VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python"}} "$PWD/{VENV_PYTHON}"'


@dataclass(frozen=True, kw_only=True)
class ScriptPlace:
    """Where one script runs."""

    spec: EnvironmentSpec
    folder: BackendPath | None
    """To start in; None means the folder that its session is in."""
    alone: bool
    """Nothing but scripts of ours runs there, and one at a time."""
    isolated: bool
    """It can harm nothing outside of the session's folder, except by the network."""
    note: str = ""


def sandboxed(where: Whereabouts, settings: CodeExecutionSettings, *, isolated: bool) -> ScriptPlace:
    """A sandbox around the folder of a session that works on this machine."""
    workspace = Path(where.spec.cwd).resolve()
    folder = Path(where.folder or workspace).resolve()
    is_inside = folder == workspace or folder.is_relative_to(workspace)
    options = (
        ("for", "scripts"),
        ("network", "on" if settings.network else "off"),
        ("max_processes", str(settings.max_processes + MORE_PROCESSES if settings.max_processes else 0)),
        ("shared_memory_mb", str(settings.memory_mb)),
    )
    return ScriptPlace(
        spec=EnvironmentSpec(backend="sandbox", session=where.spec.session, cwd=str(workspace), options=options),
        folder=BackendPath(str(folder if is_inside else workspace)),
        alone=True,
        isolated=isolated,
        note="" if is_inside else f"the sandbox shows {str(workspace)!r} alone, so the script ran there",
    )


def inside(where: Whereabouts) -> ScriptPlace:
    """The place that commands of the session run in."""
    return ScriptPlace(spec=where.spec, folder=None, alone=False, isolated=where.isolated)


def covering_secrets(place: ScriptPlace) -> ScriptPlace:
    """The sandbox that does not show the files with secrets that the project has now."""
    found = secret_files(Path(place.spec.cwd))
    options = (("covered", COVERED_SEPARATOR.join(found)), ("covered_are", " ".join(found.values())))
    return replace(place, spec=replace(place.spec, options=place.spec.options + options))


def in_slot(place: ScriptPlace, slot: int) -> ScriptPlace:
    """A sandbox of the same kind; the number tells those in use apart."""
    return replace(place, spec=replace(place.spec, options=(*place.spec.options, ("slot", str(slot)))))


def interpreter_order(settings: CodeExecutionSettings, where: Whereabouts, place: ScriptPlace) -> InterpreterOrder:
    """The interpreter for a script of this session."""
    folders = (place.folder or "", where.spec.cwd)
    of_project = tuple(_identity(Path(folder, name)) for folder in folders for name in CHOICES) if place.alone else ()
    return InterpreterOrder(
        command=partial(interpreter_command, settings, where), folder=place.folder, looks_like=of_project
    )


def interpreter_command(
    settings: CodeExecutionSettings, where: Whereabouts, nonce: str, shim: Shim | None = None
) -> str:
    """The command line that finds an interpreter in the place and starts the supervisor of a script in it."""
    strict = settings.mode == "strict"
    in_venv = sys.prefix != sys.base_prefix
    return CHOOSE.format(
        options="-S" if strict else "",
        candidates=_candidates(settings, where),
        no_python=NO_PYTHON,
        own=shlex.quote(str(Path(sys.executable).parent)),
        base=shlex.quote(_base_interpreter() if in_venv else sys.executable),
        # Without a base to fall back to, what is installed beside us is left out.
        base_options="" if in_venv else "-S",
        first=shlex.quote(FIRST_WORDS),
        supervisor=shlex.quote(_text("supervisor.py")),
        nonce=nonce,
        script_side=shlex.quote(_text("script_side.py")),
        shim=shlex.quote(shim.path if shim else ""),
        executable=shlex.quote(shim.executable if shim else ""),
    )


def _candidates(settings: CodeExecutionSettings, where: Whereabouts) -> str:
    """The interpreters to look for, as words of the shell."""
    # There is a Python on this machine in any case: the one below ours.
    at_last = [shlex.quote(_base_interpreter())] if where.is_here else []
    if settings.python:
        is_ours = Path(settings.python).parent == Path(sys.executable).parent
        return " ".join([shlex.quote(settings.python), *(at_last if is_ours else ())])
    if settings.mode == "strict":
        return "python3 python"
    of_workspace = [shlex.quote(f"{where.spec.cwd}/{VENV_PYTHON}")] if where.spec.cwd else []
    return " ".join([PROJECT, *of_workspace, "python3", "python", *at_last])


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _base_interpreter() -> str:
    found: str = getattr(sys, "_base_executable", "")
    if found and Path(found).parent != Path(sys.executable).parent:
        return found
    return str(Path(sys.executable).resolve())


@cache
def _text(name: str) -> str:
    """A text that runs inside, without its comments, which would travel with every script."""
    lines = (INSIDE / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))
