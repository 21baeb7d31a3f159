"""Finds all skills: in the user's folder, in folders from the settings, from plugins, bundled, and in the project."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from toolcrib.config.paths import Home
from toolcrib.config.settings import Settings
from toolcrib.sessions.injection_scan import standing_order_in, threat_in
from toolcrib.skills.authorship import SkillAuthorship
from toolcrib.skills.skill import (
    SKILL_FILE,
    Skill,
    SkillError,
    SkillSource,
    UnknownSkill,
    read_head,
    split_front_matter,
    summary_fields,
)

BUNDLED = Path(__file__).parent / "bundled"
PROJECT_FOLDERS = (".toolcrib/skills", ".agents/skills", ".claude/skills")
MAX_DEPTH = 4
MAX_FOLDERS = 3_000
MAX_PROJECT_FOLDERS = 300
MAX_DESCRIPTION_CHARS = 2_000
MAX_QUERY_CHARS = 300
SKIPPED = frozenset({"node_modules", "__pycache__"})
LENIENT_NAME = re.compile(r"[A-Za-z0-9][\w .-]{0,63}")


class PluginDeclaration(Protocol):
    """A plugin's declaration; a skill is `register_skill(name, path, description)`."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> tuple[Any, ...]: ...
    @property
    def options(self) -> Any: ...
    @property
    def source(self) -> Any: ...


class SkillPlugin(Protocol):
    """The part of a loaded plugin that declares skills."""

    @property
    def declarations(self) -> Sequence[PluginDeclaration]: ...


class SkillCatalog(msgspec.Struct, frozen=True):
    """All skills for one session."""

    skills: tuple[Skill, ...]
    """The visible skills, sorted by category and name."""
    hidden: tuple[Skill, ...] = ()
    """The hidden ones: the name is taken, the settings disable them, or they cannot be read."""

    def get(self, name: str, *, advice: str = "skills_list lists all of them") -> Skill:
        """Find a skill by name, by `category/name`, or by the name of its folder.

        Raises UnknownSkill with the nearest names and `advice`, or SkillError for a skill that cannot be used.
        """
        name = name.strip().strip("/")[:MAX_QUERY_CHARS]
        for skill in self.skills:
            if name in (skill.name, f"{skill.category}/{skill.name}"):
                return skill
        for skill in (*self.skills, *self.hidden):
            full = f"{skill.category}/{skill.name}"
            matches = name == full if skill.hidden_by else name == skill.folder.name and not skill.is_single_file
            if matches and not skill.problem and skill.hidden_by != DISABLED:
                return skill
            if name == skill.name and skill.problem:
                raise SkillError(f"the skill {name!r} cannot be used: {skill.problem}")
        raise UnknownSkill(name, (skill.name for skill in self.skills), advice=advice)


DISABLED = "the settings (skills.disabled)"


def find_skills(settings: Settings, cwd: str, plugins: Iterable[SkillPlugin] = ()) -> SkillCatalog:
    """All skills for a session that works in `cwd`.

    The first skill with a name wins: the user's own, then those from the settings, plugins, the bundled ones, and last
    the project's, because a repository written by somebody else must not replace what the user knows.
    """
    known: dict[str, Skill] = {}
    hidden: list[Skill] = []
    for skill in _all_skills(settings, cwd, plugins):
        taken = known.get(_normalized(skill.name))
        if skill.problem:
            hidden.append(skill)
        elif skill.name in settings.skills.disabled:
            hidden.append(replace(skill, hidden_by=DISABLED))
        elif taken is not None:
            hidden.append(replace(skill, hidden_by=f"the one in {str(taken.folder)!r}"))
        else:
            known[_normalized(skill.name)] = skill
    return SkillCatalog(tuple(sorted(known.values(), key=lambda skill: (skill.category, skill.name))), tuple(hidden))


def _normalized(name: str) -> str:
    """A name without case and width, so that `Data-analysis` cannot pass for `data-analysis`."""
    return unicodedata.normalize("NFKC", name).casefold()


def _all_skills(settings: Settings, cwd: str, plugins: Iterable[SkillPlugin]) -> Iterator[Skill]:
    chosen = settings.skills
    yield from _own_skills(settings.home)
    for folder in chosen.folders:
        yield from find_in(Path(cwd or "/") / Path(folder).expanduser(), "folder")
    for plugin in plugins:
        yield from (_plugin_skill(declaration) for declaration in plugin.declarations if declaration.kind == "skill")
    if chosen.bundled:
        yield from find_in(BUNDLED, "bundled")
    if chosen.project and cwd:
        own = {os.path.realpath(path) for path in (settings.home.skills_dir, BUNDLED)}
        above = project_folders(Path(cwd))
        for root in (folder / name for folder in above for name in PROJECT_FOLDERS):
            if os.path.realpath(root) not in own:
                yield from find_in(root, "project", inside=above[-1])


def _own_skills(home: Home) -> Iterator[Skill]:
    """The user's skills; those that an agent wrote unreviewed are marked."""
    unreviewed = SkillAuthorship(home).unreviewed_folders()
    for skill in find_in(home.skills_dir, "user"):
        yield replace(skill, is_unreviewed=True) if os.path.realpath(skill.folder) in unreviewed else skill


def project_folders(start: Path) -> list[Path]:
    """The working folder and its parents up to the root of the repository; anything above belongs to somebody else."""
    above = [start, *start.parents]
    # Not Path.exists, which raises if a parent folder is not accessible.
    root = next((at for at, folder in enumerate(above) if os.path.exists(folder / ".git")), 0)  # noqa: PTH110
    return above[: root + 1]


def find_in(root: Path, source: SkillSource, inside: Path | None = None) -> Iterator[Skill]:
    """The skills in one folder, with or without categories. With `inside`, links that leave it are not followed."""
    limit = os.path.realpath(inside) if inside is not None else ""
    # A foreign repository must not delay the start of a session.
    most = MAX_PROJECT_FOLDERS if source == "project" else MAX_FOLDERS
    start = os.path.realpath(root)
    if limit and not _is_within(start, limit):
        return
    seen: set[str] = set()
    # The resolved path, and the names of the folders on the way to it.
    waiting: list[tuple[str, tuple[str, ...]]] = [(start, ())]
    while waiting and len(seen) < most:
        real, way = waiting.pop()
        if real in seen:
            continue
        seen.add(real)
        folders, file = _scan_folder(real)
        if file and way:
            is_linked = real != os.path.join(start, *way)  # noqa: PTH118 - as text
            yield _read(Path(real), file, source, way, is_linked)
        elif len(way) < MAX_DEPTH:
            below = [(os.path.realpath(os.path.join(real, name)), (*way, name)) for name in folders]  # noqa: PTH118
            waiting += reversed([one for one in below if not limit or _is_within(one[0], limit)])


def skill_at(folder: Path) -> Skill | None:
    """The skill in this very folder; None if there is none."""
    real = os.path.realpath(folder)
    _, file = _scan_folder(real)
    return _read(Path(real), file, "folder", (Path(real).name,), is_linked=False) if file else None


def _scan_folder(folder: str) -> tuple[list[str], str]:
    """The subfolders of a folder, sorted, and the name of its SKILL.md; empty if it cannot be read."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return [], ""
    file = next((name for name in (SKILL_FILE, "skill.md") if name in names), "")
    likely = (name for name in names if name[0] != "." and name not in SKIPPED)
    # One broken entry, such as a link to itself, must not hide the others.
    return [name for name in likely if os.path.isdir(os.path.join(folder, name))], file  # noqa: PTH112, PTH118


def _read(folder: Path, file: str, source: SkillSource, way: tuple[str, ...], is_linked: bool) -> Skill:
    name, description, problem = way[-1], "", ""
    try:
        name, description = name_and_description(read_head(folder, file), name)
    except SkillError as error:
        problem = str(error)
    # Names appear in the prompt, too.
    if not "".join((*way[:-1], name)).isprintable():
        problem = "the name of its folder contains unprintable characters; rename the folder"
    elif source == "project" and threat_in(" ".join((*way[:-1], name)).replace("_", " ")):
        problem = "its name tries to give the model instructions"
    return Skill(
        name=name,
        description=description,
        source=source,
        folder=folder,
        file=folder / file,
        category="/".join(way[:-1]),
        is_linked=is_linked,
        problem=problem,
    )


def name_and_description(text: str, fallback: str) -> tuple[str, str]:
    """The name and description of a SKILL.md; without front matter, the folder's name and the first line."""
    parts = split_front_matter(text)
    fields = summary_fields(parts.front) if parts.front is not None else {}
    name = fields.get("name", "").strip()
    first = next((line.strip("# ").strip() for line in parts.body.splitlines() if line.strip("# \t")), "")
    description = fields.get("description") or first
    return name if LENIENT_NAME.fullmatch(name) else fallback, description[:MAX_DESCRIPTION_CHARS]


def _plugin_skill(declaration: PluginDeclaration) -> Skill:
    """A skill declared by a plugin: a file, or a folder with a SKILL.md, relative to the plugin's folder."""
    arguments, options = declaration.arguments, declaration.options
    given = Path(str(options.get("path") or (arguments[1] if len(arguments) > 1 else declaration.name)))
    path = Path(os.path.realpath(Path(declaration.source.path) / given.expanduser()))
    file = path / SKILL_FILE if path.is_dir() else path
    name, description, problem = f"{declaration.source.name}:{declaration.name}", "", ""
    try:
        description = name_and_description(read_head(file.parent, file.name), declaration.name)[1]
    except SkillError as error:
        problem = str(error)
    said = options.get("description") or (arguments[2] if len(arguments) > 2 else "")
    return Skill(
        name=name,
        description=str(said) if said else description,
        source="plugin",
        folder=file.parent,
        file=file,
        is_single_file=file.name != SKILL_FILE,
        problem=problem,
    )


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


MAX_SKILLS = 200
MAX_SHORT_DESCRIPTION_CHARS = 240
MAX_INDEX_CHARS = 16_000
HEADING = "# Skills\n\nInstructions for particular kinds of work; open one with skill_view before you do such work.\n"
AGENT_HEADING = "\nWritten by an agent, not reviewed by the user:\n"
PROJECT_HEADING = "\nFrom this project's folder, not reviewed by the user:\n"


def skills_index(settings: Settings, cwd: str, plugins: Iterable[SkillPlugin] = ()) -> str:
    """The skills for the prompt, one line each: names and descriptions, never the texts. Empty if there are none."""
    skills = find_skills(settings, cwd, plugins).skills
    if not skills:
        return ""
    checked = [skill for skill in skills if skill.is_trusted]
    of_agents = [skill for skill in skills if skill.is_unreviewed]
    of_project = [skill for skill in skills if skill.source == "project"]
    lines: list[str] = [HEADING]
    room = MAX_INDEX_CHARS
    shown = 0
    for head, group in (("", checked), (AGENT_HEADING, of_agents), (PROJECT_HEADING, of_project)):
        if group and head:
            lines.append(head)
        for skill in group:
            line = f"- {skill.name}: {short_description(skill)}".rstrip(": ")
            room -= len(line)
            if room < 0 or shown == MAX_SKILLS:
                break
            shown += 1
            lines.append(line)
    if shown < len(skills):
        lines.append(f"\n{len(skills) - shown} more are not listed here; skills_list shows them.")
    return "\n".join(lines)


def short_description(skill: Skill) -> str:
    """A skill's description on one line; one that nobody reviewed and that gives the model orders is left out."""
    text = " ".join(skill.description.split())
    if not skill.is_trusted and (threat_in(text) or standing_order_in(text, may_name_tools=True)):
        return "(description omitted: it tries to give you instructions)"
    return text if len(text) <= MAX_SHORT_DESCRIPTION_CHARS else text[: MAX_SHORT_DESCRIPTION_CHARS - 1] + "…"
