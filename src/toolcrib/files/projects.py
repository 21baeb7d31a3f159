"""The user's projects: folders with names, which sessions create, list and switch to.

They are stored in `projects.json` in the home. Folders are made and entered by commands of the session, so they are
where its commands run, and the gate judges them like any other command.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable

import msgspec

from toolcrib.config.files import OWNER_FILE, replace_file, writing
from toolcrib.config.paths import Home
from toolcrib.core.context import Services, ToolContext
from toolcrib.core.errors import ToolcribError, UnknownName, nearest_names
from toolcrib.core.types import JsonObject
from toolcrib.registry.results import tool_error, tool_result

MAX_NAME_CHARS = 100
MAX_SESSIONS = 50
"""How many sessions a project remembers."""


class ProjectFailed(ToolcribError):
    """A call that cannot be made; the message says why and what to do."""


class UnknownProject(UnknownName):
    kind = "project"


class Project(msgspec.Struct, frozen=True):
    name: str
    path: str
    """Absolute, as the session that created it sees it."""
    sessions: tuple[str, ...] = ()
    """The sessions that work in it."""


class ProjectService:
    """The projects of one home."""

    def __init__(self, home: Home, services: Services) -> None:
        self._file = home.root / "projects.json"
        self._services = services

    async def handle(self, args: JsonObject, ctx: ToolContext) -> str:
        """`project_create`, `project_list` and `project_switch`."""
        work = {"project_create": self._create, "project_list": self._list, "project_switch": self._switch}
        try:
            return tool_result({"success": True, **await work[ctx.tool_name](args, ctx)})
        except ToolcribError as error:
            return tool_error(error, success=False)

    async def _create(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        name = str(args.get("name") or "").strip()
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise ProjectFailed(f"the name must have 1 to {MAX_NAME_CHARS} visible characters")
        if any(one.name == name for one in self.read()):
            raise ProjectFailed(f"there is already a project {name!r}; switch to it with project_switch")
        given = str(args.get("path") or "").strip() or name.replace("/", "-")
        path = await self._run(f'mkdir -p -- {_word(given)} && cd -- {_word(given)} && pwd && cd -- "$OLDPWD"', ctx)
        project = Project(name, posixpath.normpath(path))
        self._update(lambda known: [*(one for one in known if one.name != name), project])
        return {"project": _facts(project, ctx)}

    async def _list(self, _: JsonObject, ctx: ToolContext) -> JsonObject:
        return {"projects": [_facts(one, ctx) for one in self.read()]}

    async def _switch(self, args: JsonObject, ctx: ToolContext) -> JsonObject:
        wanted, known = str(args.get("project") or "").strip(), self.read()
        found = next((one for one in known if wanted in (one.name, one.path)), None)
        if found is None:
            names = [one.name for one in known]
            raise UnknownProject(wanted, nearest_names(wanted, names), advice="project_list shows all of them")
        await self._run(f"cd -- {shlex.quote(found.path)}", ctx)
        self._update(lambda projects: [_entered(one, found.name, ctx.session_id) for one in projects])
        return {"project": {"name": found.name, "path": found.path, "current": True}}

    async def _run(self, command: str, ctx: ToolContext) -> str:
        """What a command of the session prints; raises ProjectFailed if it fails or may not run."""
        result = await self._services.call(ctx, "terminal", {"command": command})
        try:
            answer = json.loads(result.text)
        except ValueError:
            answer = {}
        if result.is_error or answer.get("exit_code") != 0:
            said = str(answer.get("error") or answer.get("output") or "the command did not run").strip()
            raise ProjectFailed(said.splitlines()[-1] if said else "the folder cannot be entered")
        return str(answer.get("output") or "").strip()

    # The store

    def read(self) -> list[Project]:
        """The projects, oldest first; none if the file is missing or not valid."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Project])
        except (OSError, msgspec.DecodeError):
            return []

    def _update(self, change: Callable[[list[Project]], list[Project]]) -> None:
        with writing(self._file) as target:
            replace_file(target, msgspec.json.encode(change(self.read())), mode=OWNER_FILE)


def _entered(project: Project, name: str, session: str) -> Project:
    others = tuple(one for one in project.sessions if one != session)
    sessions = (*others, session)[-MAX_SESSIONS:] if project.name == name else others
    return msgspec.structs.replace(project, sessions=sessions)


def _facts(project: Project, ctx: ToolContext) -> JsonObject:
    return {"name": project.name, "path": project.path, "current": ctx.session_id in project.sessions}


def _word(path: str) -> str:
    """A path as one word of a command; a leading `~` still means the home of whoever runs it."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
