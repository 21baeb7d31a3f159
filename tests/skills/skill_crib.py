"""A runtime with the real tools, and short ways to write skills and to call the tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolcrib.core.types import ToolResult
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover


def skill_text(name: str, description: str = "What it is for.", body: str = "Do it.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"


@dataclass
class SkillProject:
    """A runtime over the built-in tools, its home, and a project with a repository."""

    root: Path
    runtime: Runtime
    approver: ScriptedApprover

    @property
    def skills(self) -> Path:
        return self.runtime.settings.home.skills_dir

    @property
    def project(self) -> Path:
        return self.root / "project"

    def write(self, folder: Path, text: str, file: str = "SKILL.md") -> Path:
        """A skill, or a file of it, straight on the disk."""
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    async def call(self, tool: str, **arguments: Any) -> ToolResult:
        ctx = self.runtime.context(cwd=str(self.project))
        return await self.runtime.call(tool, arguments, ctx=ctx)

    async def said(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer as data; the call must have gone well."""
        result = await self.call(tool, **arguments)
        assert not result.is_error, result.text
        answer: dict[str, Any] = json.loads(result.text)
        return answer

    async def refused(self, tool: str, **arguments: Any) -> str:
        """The error of a call that must fail."""
        result = await self.call(tool, **arguments)
        assert result.is_error, result.text
        return str(json.loads(result.text)["error"])

    def files(self) -> dict[str, str]:
        """Every file of the user's skills folder with its text."""
        return {
            path.relative_to(self.skills).as_posix(): path.read_text()
            for path in sorted(self.skills.rglob("*"))
            if path.is_file()
        }
