"""What a call of `skill_manage` would do: worked out and checked before anything is touched, for gate and tool alike.

Only the user's own folder is ever changed. A text that would give the model orders, or has commands that are never
allowed, is refused here. Commands that a person would be asked about become the caution of the effect, so that the
person is asked before the skill is there.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolcrib.config.files import make_folder, replace_file
from toolcrib.core.types import Effect, JsonObject
from toolcrib.skills.catalog import SkillCatalog, find_in
from toolcrib.skills.check import MAX_TEXT_CHARS, SafetyConcern, find_concerns, format_problems, kind_of
from toolcrib.skills.skill import (
    MAX_LISTED_FILES,
    MAX_NAME_CHARS,
    NAME_RULE,
    SKILL_FILE,
    Skill,
    SkillError,
    is_valid_name,
    list_files,
    read_text,
    resolve_file,
)

MAX_CATEGORY_PARTS = 3
MAX_PATH_PARTS = 5
MAX_CAUTIONS = 3
_PATH_PART = re.compile(r"[\w][\w. +@-]{0,99}")


class SkillChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the user's folder that was found to be in order."""

    kind: Literal["create", "write", "remove", "delete"]
    skill: str
    folder: Path
    """Of the skill, real."""
    path: Path
    """What is written or removed: a file, or for create and delete the SKILL.md and the folder."""
    text: str = ""
    cautions: tuple[str, ...] = ()
    note: str = ""

    @property
    def effects(self) -> tuple[Effect, ...]:
        kind: Literal["write", "delete"] = "write" if self.kind in ("create", "write") else "delete"
        return (Effect(kind, str(self.path), caution="; ".join(self.cautions)),)


def plan_change(args: JsonObject, skills_dir: Path, shelf: Callable[[], SkillCatalog]) -> SkillChange:
    """The change that a call asks for; raises SkillError where it must not or cannot be made."""
    name = str(args["name"]).strip()
    if args["action"] == "create":
        return _create(args, name, skills_dir, shelf)
    skill = _own(name, skills_dir, shelf)
    match args["action"]:
        case "edit":
            return _written(skill, SKILL_FILE, _given(args, "content"))
        case "patch":
            return _patched(args, skill)
        case "write_file":
            path = _file_path(args)
            if len(list_files(skill)) >= MAX_LISTED_FILES and not (skill.folder / path).exists():
                raise SkillError(f"the skill {skill.name!r} has {MAX_LISTED_FILES} files already; remove one first")
            return _written(skill, path, _given(args, "file_content"))
        case "remove_file":
            path = _file_path(args)
            target = _plain(skill, path)
            if not target.is_file():
                raise SkillError(f"the skill {skill.name!r} has no file {path!r}; skill_view lists its files")
            return SkillChange(kind="remove", skill=skill.name, folder=skill.folder, path=target)
        case "delete":
            return _delete(args, skill, shelf)
    raise SkillError(f"skill_manage cannot {args['action']!r}")


def _create(args: JsonObject, name: str, skills_dir: Path, shelf: Callable[[], SkillCatalog]) -> SkillChange:
    if not is_valid_name(name):
        raise SkillError(f"{name[:80]!r} cannot be a skill's name; use at most {MAX_NAME_CHARS} {NAME_RULE}")
    category = _category(str(args.get("category") or ""))
    text = _given(args, "content")
    for skill in find_in(skills_dir, "user"):
        if name in (skill.name, skill.folder.name):
            raise SkillError(f"the skill {name!r} exists in {str(skill.folder)!r}; change it with action edit or patch")
    root = Path(os.path.realpath(skills_dir))
    folder = root.joinpath(*category.split("/"), name) if category else root / name
    if os.path.realpath(folder) != str(folder) or (os.path.lexists(folder) and not _is_empty(folder)):
        raise SkillError(f"{str(folder)!r} is in the way; choose another name or category")
    if any((above / SKILL_FILE).exists() for above in folder.parents if above != root and root in above.parents):
        raise SkillError(f"{category!r} is a skill, so it cannot be a category; choose another category")
    _require_format(text, name, before=None)
    hides = next((skill for skill in shelf().skills if skill.name == name), None)
    return SkillChange(
        kind="create",
        skill=name,
        folder=folder,
        path=folder / SKILL_FILE,
        text=text,
        cautions=_cautions(text, SKILL_FILE),
        note=f"It is used instead of the {hides.source} skill of that name." if hides is not None else "",
    )


def _is_empty(folder: Path) -> bool:
    """An empty folder, as one is left where a skill was taken back; a new one may take its place."""
    return folder.is_dir() and not any(folder.iterdir())


def _category(category: str) -> str:
    parts = category.strip().strip("/").split("/") if category.strip() else []
    if len(parts) > MAX_CATEGORY_PARTS or not all(is_valid_name(part) for part in parts):
        raise SkillError(f"{category[:80]!r} cannot be a category; use {NAME_RULE}, for example 'development'")
    return "/".join(parts)


def _own(name: str, skills_dir: Path, shelf: Callable[[], SkillCatalog]) -> Skill:
    """The skill of that name in the user's folder."""
    own = [skill for skill in find_in(skills_dir, "user") if not skill.problem]
    for skill in own:
        if name in (skill.name, skill.folder.name, f"{skill.category}/{skill.name}"):
            if skill.is_linked:
                raise SkillError(f"the skill {name!r} is a link to {str(skill.folder)!r}; change it there")
            if skill.file.name != SKILL_FILE:
                raise SkillError(f"rename {str(skill.file)!r} to {SKILL_FILE} first")
            return skill
    found = shelf().get(name)
    raise SkillError(
        f"the skill {name!r} comes from {str(found.folder)!r} and cannot be changed; "
        "create one of that name to have your own in its place"
    )


def _patched(args: JsonObject, skill: Skill) -> SkillChange:
    path = _file_path(args) if args.get("file_path") else SKILL_FILE
    old, new = _given(args, "old_string"), args.get("new_string")
    if not isinstance(new, str):
        raise SkillError("patch needs new_string: the text that takes the place of old_string")
    text = read_text(skill.folder, path, exact=True)
    if "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if count == 0:
        raise SkillError(f"old_string is not in {path} of {skill.name!r}; {_nearest(old, text)}")
    if count > 1 and not args.get("replace_all"):
        raise SkillError(f"old_string is {count} times in {path}; give more of the text around it, or replace_all=true")
    return _written(skill, path, text.replace(old, new))


def _nearest(old: str, text: str) -> str:
    lines = text.split("\n")
    close = difflib.get_close_matches(old.strip().split("\n")[0], lines[:5_000], n=1, cutoff=0.6)
    if not close:
        return "read it with skill_view and copy the text exactly"
    return f"line {lines.index(close[0]) + 1} is near: {close[0][:200]!r}"


def _written(skill: Skill, path: str, text: str) -> SkillChange:
    """New content for a file of a skill."""
    target = _plain(skill, path)
    before = read_text(skill.folder, path) if target.is_file() else None
    if path == SKILL_FILE:
        _require_format(text, skill.folder.name, before)
    elif len(text) > MAX_TEXT_CHARS:
        raise SkillError(f"{path!r} would have {len(text):,} characters; {MAX_TEXT_CHARS:,} are allowed")
    cautions = _cautions(text, path, before or "")
    return SkillChange(kind="write", skill=skill.name, folder=skill.folder, path=target, text=text, cautions=cautions)


def _delete(args: JsonObject, skill: Skill, shelf: Callable[[], SkillCatalog]) -> SkillChange:
    absorbed = str(args.get("absorbed_into") or "").strip()
    note = ""
    if absorbed:
        heir = shelf().get(absorbed)
        if heir.folder == skill.folder:
            raise SkillError(f"absorbed_into must name another skill than {skill.name!r}")
        note = f"What it said is now in {heir.name!r}."
    return SkillChange(kind="delete", skill=skill.name, folder=skill.folder, path=skill.folder, note=note)


def _given(args: JsonObject, key: str) -> str:
    value: Any = args.get(key)
    if not isinstance(value, str) or not value.strip():
        raise SkillError(f"{args['action']} needs {key}, a text that is not empty")
    return value.replace("\r\n", "\n")


def _file_path(args: JsonObject) -> str:
    """The path of a linked file, in its one spelling."""
    given = str(args.get("file_path") or "").strip()
    parts = [part for part in given.split("/") if part != "."]
    is_plain = given and not given.startswith("/") and len(parts) <= MAX_PATH_PARTS
    if not is_plain or not all(_PATH_PART.fullmatch(part) for part in parts):
        raise SkillError(f"{given[:120]!r} cannot be a file of a skill; name one as in 'references/notes.md'")
    path = "/".join(parts)
    if path.lower() == SKILL_FILE.lower() and args["action"] != "patch":
        raise SkillError(f"{SKILL_FILE} is changed with action edit or patch, and goes with action delete")
    return SKILL_FILE if path.lower() == SKILL_FILE.lower() else path


def _plain(skill: Skill, path: str) -> Path:
    """The file itself; raises SkillError where a link leads to it, or something that is no file stands there."""
    target = skill.folder / path
    if resolve_file(skill.folder, path) != path:
        raise SkillError(f"a link leads to {path!r}; remove the link, or change the file that it leads to")
    in_the_way = next((str(part) for part in Path(path).parents if (skill.folder / part).is_file()), "")
    if in_the_way:
        raise SkillError(f"{in_the_way!r} is a file, so nothing can be put below it; choose another path")
    if target.exists() and not target.is_file():
        raise SkillError(f"{path!r} is no ordinary file, so it is left alone")
    return target


def _require_format(text: str, folder_name: str, before: str | None) -> None:
    """Raises SkillError for what breaks the format, except for what was broken before."""
    known = {one.message for one in format_problems(before, folder_name)} if before is not None else set()
    for problem in format_problems(text, folder_name):
        if problem.severity == "error" and problem.message not in known:
            raise SkillError(f"{SKILL_FILE}, line {problem.line}: {problem.message}")


def _cautions(text: str, path: str, before: str = "") -> tuple[str, ...]:
    """What a person should know before this is written; raises SkillError for what must not be."""
    concerns = find_concerns(text, kind_of(path, text))
    refused = next((concern for concern in concerns if concern.severity == "refuse"), None)
    if refused is not None:
        raise SkillError(f"{path} was not written: line {refused.line}: {refused.message}; leave that out")
    known = {concern.message for concern in find_concerns(before, kind_of(path, before))} if before else set()
    new: list[SafetyConcern] = [concern for concern in concerns if concern.message not in known]
    more = (f"and {len(new) - MAX_CAUTIONS} more like these",) if len(new) > MAX_CAUTIONS else ()
    return (*(str(concern) for concern in new[:MAX_CAUTIONS]), *more)


OWNER_PROGRAM = 0o700
# Readers pass over names that begin with a dot.
BUILDING, LEAVING = ".building-", ".leaving-"


def apply_change(change: SkillChange, skills_dir: Path) -> None:
    """Do it. Only by the one who holds `config.files.writing(skills_dir)`."""
    root = Path(os.path.realpath(skills_dir))
    _clear(root)
    match change.kind:
        case "create":
            _create_folder(change, root)
        case "write":
            is_new_program = change.text.startswith("#!") and not change.path.exists()
            make_folder(change.path.parent)
            replace_file(change.path, change.text.encode())
            if is_new_program:
                change.path.chmod(OWNER_PROGRAM)
        case "remove":
            change.path.unlink()
        case "delete":
            leaving = Path(tempfile.mkdtemp(prefix=LEAVING, dir=root))
            change.folder.rename(leaving / change.folder.name)
            _clear(root)


def _create_folder(change: SkillChange, root: Path) -> None:
    """Build the folder beside, then let it appear at once."""
    make_folder(change.folder.parent)
    building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=root))
    replace_file(building / change.path.name, change.text.encode())
    building.rename(change.folder)


def _clear(root: Path) -> None:
    """Remove what is left of deleted skills and of killed processes; what cannot be removed is in nobody's way."""
    for pattern in (BUILDING, LEAVING):
        for left in root.glob(f"{pattern}*"):
            shutil.rmtree(left, ignore_errors=True)
