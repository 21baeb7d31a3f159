"""Plans and applies the changes of `skill_manage`: checked before anything is touched, for the gate and the tool alike.

Only the user's own folder is ever changed. A text that gives the model instructions against its own, or contains
commands that are never allowed, is refused here. Commands that need approval become the caution of the effect, so the
person is asked before the skill exists. Changes are atomic: readers see the old state or the new one.
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
from toolcrib.skills.check import MAX_TEXT_CHARS, SafetyConcern, find_concerns, format_problems, text_kind
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
    """A validated change to the user's folder."""

    kind: Literal["create", "write", "remove", "delete"]
    skill: str
    folder: Path
    """The real folder of the skill."""
    path: Path
    """What is written or removed: a file; for create the SKILL.md, for delete the folder."""
    text: str = ""
    cautions: tuple[str, ...] = ()
    note: str = ""

    @property
    def effects(self) -> tuple[Effect, ...]:
        kind: Literal["write", "delete"] = "write" if self.kind in ("create", "write") else "delete"
        return (Effect(kind, str(self.path), caution="; ".join(self.cautions)),)


def plan_change(args: JsonObject, skills_dir: Path, catalog: Callable[[], SkillCatalog]) -> SkillChange:
    """Plan the change that a call asks for; raises SkillError if it is not allowed or not possible."""
    name = str(args["name"]).strip()
    if args["action"] == "create":
        return _create(args, name, skills_dir, catalog)
    skill = _user_skill(name, skills_dir, catalog)
    match args["action"]:
        case "edit":
            return _write(skill, SKILL_FILE, _require_text(args, "content"))
        case "patch":
            return _patch(args, skill)
        case "write_file":
            path = _file_path(args)
            if len(list_files(skill)) >= MAX_LISTED_FILES and not (skill.folder / path).exists():
                raise SkillError(f"the skill {skill.name!r} already has {MAX_LISTED_FILES} files; remove one first")
            return _write(skill, path, _require_text(args, "file_content"))
        case "remove_file":
            path = _file_path(args)
            target = _target_file(skill, path)
            if not target.is_file():
                raise SkillError(f"the skill {skill.name!r} has no file {path!r}; skill_view lists its files")
            return SkillChange(kind="remove", skill=skill.name, folder=skill.folder, path=target)
        case "delete":
            return _delete(args, skill, catalog)
    raise SkillError(f"skill_manage cannot {args['action']!r}")


def _create(args: JsonObject, name: str, skills_dir: Path, catalog: Callable[[], SkillCatalog]) -> SkillChange:
    if not is_valid_name(name):
        raise SkillError(f"{name[:80]!r} is not a valid skill name; use at most {MAX_NAME_CHARS} {NAME_RULE}")
    category = _category(str(args.get("category") or ""))
    text = _require_text(args, "content")
    for skill in find_in(skills_dir, "user"):
        if name in (skill.name, skill.folder.name):
            raise SkillError(
                f"the skill {name!r} already exists in {str(skill.folder)!r}; change it with action edit or patch"
            )
    root = Path(os.path.realpath(skills_dir))
    folder = root.joinpath(*category.split("/"), name) if category else root / name
    if os.path.realpath(folder) != str(folder) or (os.path.lexists(folder) and not _is_empty(folder)):
        raise SkillError(f"{str(folder)!r} already exists; choose another name or category")
    if any((above / SKILL_FILE).exists() for above in folder.parents if above != root and root in above.parents):
        raise SkillError(f"{category!r} is a skill, so it cannot be a category; choose another one")
    _require_format(text, name, before=None)
    hides = next((skill for skill in catalog().skills if skill.name == name), None)
    return SkillChange(
        kind="create",
        skill=name,
        folder=folder,
        path=folder / SKILL_FILE,
        text=text,
        cautions=_cautions(text, SKILL_FILE),
        note=f"It replaces the {hides.source} skill with that name." if hides is not None else "",
    )


def _is_empty(folder: Path) -> bool:
    """Whether a folder is empty, as `toolcrib undo` may leave it; a new skill may use it."""
    return folder.is_dir() and not any(folder.iterdir())


def _category(category: str) -> str:
    parts = category.strip().strip("/").split("/") if category.strip() else []
    if len(parts) > MAX_CATEGORY_PARTS or not all(is_valid_name(part) for part in parts):
        raise SkillError(f"{category[:80]!r} is not a valid category; use {NAME_RULE}, for example 'development'")
    return "/".join(parts)


def _user_skill(name: str, skills_dir: Path, catalog: Callable[[], SkillCatalog]) -> Skill:
    """The skill with that name in the user's folder."""
    own = [skill for skill in find_in(skills_dir, "user") if not skill.problem]
    for skill in own:
        if name in (skill.name, skill.folder.name, f"{skill.category}/{skill.name}"):
            if skill.is_linked:
                raise SkillError(f"the skill {name!r} is a link to {str(skill.folder)!r}; change it there")
            if skill.file.name != SKILL_FILE:
                raise SkillError(f"rename {str(skill.file)!r} to {SKILL_FILE} first")
            return skill
    found = catalog().get(name)
    raise SkillError(
        f"the skill {name!r} comes from {str(found.folder)!r} and cannot be changed; "
        "create one with that name to replace it with your own"
    )


def _patch(args: JsonObject, skill: Skill) -> SkillChange:
    path = _file_path(args) if args.get("file_path") else SKILL_FILE
    old, new = _require_text(args, "old_string"), args.get("new_string")
    if not isinstance(new, str):
        raise SkillError("patch needs new_string: the text that replaces old_string")
    text = read_text(skill.folder, path, exact=True)
    if "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if count == 0:
        raise SkillError(f"old_string is not in {path} of {skill.name!r}; {_similar_line(old, text)}")
    if count > 1 and not args.get("replace_all"):
        raise SkillError(
            f"old_string occurs {count} times in {path}; include more of the text around it, or set replace_all=true"
        )
    return _write(skill, path, text.replace(old, new))


def _similar_line(old: str, text: str) -> str:
    lines = text.split("\n")
    close = difflib.get_close_matches(old.strip().split("\n")[0], lines[:5_000], n=1, cutoff=0.6)
    if not close:
        return "read it with skill_view and copy the text exactly"
    return f"line {lines.index(close[0]) + 1} is similar: {close[0][:200]!r}"


def _write(skill: Skill, path: str, text: str) -> SkillChange:
    """Plan new content for a file of a skill."""
    target = _target_file(skill, path)
    before = read_text(skill.folder, path) if target.is_file() else None
    if path == SKILL_FILE:
        _require_format(text, skill.folder.name, before)
    elif len(text) > MAX_TEXT_CHARS:
        raise SkillError(f"{path!r} would have {len(text):,} characters; at most {MAX_TEXT_CHARS:,} are allowed")
    cautions = _cautions(text, path, before or "")
    return SkillChange(kind="write", skill=skill.name, folder=skill.folder, path=target, text=text, cautions=cautions)


def _delete(args: JsonObject, skill: Skill, catalog: Callable[[], SkillCatalog]) -> SkillChange:
    absorbed = str(args.get("absorbed_into") or "").strip()
    note = ""
    if absorbed:
        heir = catalog().get(absorbed)
        if heir.folder == skill.folder:
            raise SkillError(f"absorbed_into must name a skill other than {skill.name!r}")
        note = f"Its content is now in {heir.name!r}."
    return SkillChange(kind="delete", skill=skill.name, folder=skill.folder, path=skill.folder, note=note)


def _require_text(args: JsonObject, key: str) -> str:
    value: Any = args.get(key)
    if not isinstance(value, str) or not value.strip():
        raise SkillError(f"{args['action']} needs {key}, a non-empty text")
    return value.replace("\r\n", "\n")


def _file_path(args: JsonObject) -> str:
    """The normalized path of a file of the skill."""
    given = str(args.get("file_path") or "").strip()
    parts = [part for part in given.split("/") if part != "."]
    is_plain = given and not given.startswith("/") and len(parts) <= MAX_PATH_PARTS
    if not is_plain or not all(_PATH_PART.fullmatch(part) for part in parts):
        raise SkillError(f"{given[:120]!r} is not a valid file name for a skill; use one like 'references/notes.md'")
    path = "/".join(parts)
    if path.lower() == SKILL_FILE.lower() and args["action"] != "patch":
        raise SkillError(f"{SKILL_FILE} is changed with action edit or patch and removed with action delete")
    return SKILL_FILE if path.lower() == SKILL_FILE.lower() else path


def _target_file(skill: Skill, path: str) -> Path:
    """The path of a file; raises SkillError if a link leads to it or it is not a regular file."""
    target = skill.folder / path
    if resolve_file(skill.folder, path) != path:
        raise SkillError(f"{path!r} is reached through a link; remove the link, or change the file it points to")
    in_the_way = next((str(part) for part in Path(path).parents if (skill.folder / part).is_file()), "")
    if in_the_way:
        raise SkillError(f"{in_the_way!r} is a file, not a folder; choose another path")
    if target.exists() and not target.is_file():
        raise SkillError(f"{path!r} is not a regular file")
    return target


def _require_format(text: str, folder_name: str, before: str | None) -> None:
    """Raise SkillError for format errors that were not there before."""
    known = {one.message for one in format_problems(before, folder_name)} if before is not None else set()
    for problem in format_problems(text, folder_name):
        if problem.severity == "error" and problem.message not in known:
            raise SkillError(f"{SKILL_FILE}, line {problem.line}: {problem.message}")


def _cautions(text: str, path: str, before: str = "") -> tuple[str, ...]:
    """What a person should know before this is written; raises SkillError if it is not allowed."""
    concerns = find_concerns(text, text_kind(path, text))
    refused = next((concern for concern in concerns if concern.severity == "refuse"), None)
    if refused is not None:
        raise SkillError(f"{path} was not written: line {refused.line}: {refused.message}; remove that")
    known = {concern.message for concern in find_concerns(before, text_kind(path, before))} if before else set()
    new: list[SafetyConcern] = [concern for concern in concerns if concern.message not in known]
    more = (f"and {len(new) - MAX_CAUTIONS} more",) if len(new) > MAX_CAUTIONS else ()
    return (*(str(concern) for concern in new[:MAX_CAUTIONS]), *more)


EXECUTABLE_MODE = 0o700
# Readers skip names that start with a dot.
BUILDING, DELETING = ".building-", ".deleting-"


def apply_change(change: SkillChange, skills_dir: Path) -> None:
    """Apply a change. The caller must hold `config.files.writing(skills_dir)`."""
    root = Path(os.path.realpath(skills_dir))
    _remove_leftovers(root)
    match change.kind:
        case "create":
            _create_folder(change, root)
        case "write":
            is_new_program = change.text.startswith("#!") and not change.path.exists()
            make_folder(change.path.parent)
            replace_file(change.path, change.text.encode())
            if is_new_program:
                change.path.chmod(EXECUTABLE_MODE)
        case "remove":
            change.path.unlink()
        case "delete":
            deleting = Path(tempfile.mkdtemp(prefix=DELETING, dir=root))
            change.folder.rename(deleting / change.folder.name)
            _remove_leftovers(root)


def _create_folder(change: SkillChange, root: Path) -> None:
    """Build the folder under a temporary name, then rename it."""
    make_folder(change.folder.parent)
    building = Path(tempfile.mkdtemp(prefix=BUILDING, dir=root))
    replace_file(building / change.path.name, change.text.encode())
    building.rename(change.folder)


def _remove_leftovers(root: Path) -> None:
    """Remove leftovers of deleted skills and killed processes; failures do no harm."""
    for pattern in (BUILDING, DELETING):
        for left in root.glob(f"{pattern}*"):
            shutil.rmtree(left, ignore_errors=True)
