"""Files that go into pages and come out of them: uploads from the session's environment, downloads into it."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import posixpath
import re
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.async_api import Download, Error, FilePayload

from toolcrib.core.context import Services, ToolContext
from toolcrib.core.environments import BackendPath, Environment, FileStatus
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import Effect, JsonObject

FOLDER = "downloads"
MAX_NAMES = 1_000
DOWNLOAD_SECONDS = 300.0
_UNSAFE = re.compile(r"[^\w.()+@ -]+")


async def read_upload(effect: Effect, ctx: ToolContext, max_mb: float) -> FilePayload:
    """A file that the gate let this call read; raises ToolcribError or OSError."""
    target, path = ctx.services.terminal.execution_target(ctx), BackendPath(effect.target)

    async def read(environment: Environment) -> bytes:
        status = await environment.status(path)
        if status is not None and status.size > max_mb * 1_000_000:
            raise ToolcribError(f"{effect.target!r} is larger than {max_mb:g} MB (browser.max_download_mb)")
        return await environment.read_file(path, plain=target.is_here)

    data = await ctx.services.terminal.work_in(target.spec, read)
    name = posixpath.basename(effect.target)
    return {"name": name, "mimeType": mimetypes.guess_type(name)[0] or "application/octet-stream", "buffer": data}


class DownloadSaver:
    """Puts downloads into the folder `downloads` of the session, if the gate agrees."""

    def __init__(
        self,
        services: Services,
        admit: Callable[[ToolContext, JsonObject, tuple[Effect, ...]], Awaitable[str]],
        max_mb: float,
    ) -> None:
        self._services = services
        self._admit = admit
        self._max_mb = max_mb

    async def save(self, download: Download, ctx: ToolContext, on_loop: Callable[[Any], Awaitable[Any]]) -> JsonObject:
        """What became of a download. `on_loop` runs what must run where the browser lives."""
        name = safe_name(download.suggested_filename)
        about: JsonObject = {"name": name, "url": download.url[:500]}
        try:
            effect = await self._target(name, ctx)
            host = re.sub(r"^[a-z]+://([^/?#]*).*", r"\1", download.url, flags=re.DOTALL)[:200]
            caution = f"it is a download from {host}"
            # Programs may call a tool without naming it in the context; most downloads begin with a click.
            named = ctx if ctx.tool_name else replace(ctx, tool_name="browser_click")
            refused = await self._admit(named, {"path": effect.target}, (replace(effect, caution=caution),))
            if refused:
                await on_loop(_drop(download))
                return {**about, "error": f"not saved: {refused}"}
            data = await on_loop(_content(download, self._max_mb))
            await self._write(effect, data, ctx)
        except (ToolcribError, OSError, Error, TimeoutError) as error:
            return {**about, "error": f"not saved: {str(error).splitlines()[0] if str(error) else 'it took too long'}"}
        return {**about, "path": effect.target, "size": len(data)}

    async def _target(self, name: str, ctx: ToolContext) -> Effect:
        """A write to a file that does not exist yet."""
        where = self._services.terminal.execution_target(ctx)
        stem, dot, suffix = name.partition(".")
        for number in range(MAX_NAMES):
            tried = name if not number else f"{stem}-{number}{dot}{suffix}"
            effects = self._services.files.write_effects({"path": f"{FOLDER}/{tried}"}, ctx)
            if not effects:
                break
            (effect,) = effects
            status = partial(_status, BackendPath(effect.target))
            if await self._services.terminal.work_in(where.spec, status) is None:
                return effect
        raise ToolcribError(f"there is no free name for {name!r} in the folder {FOLDER!r}")

    async def _write(self, effect: Effect, data: bytes, ctx: ToolContext) -> None:
        where = self._services.terminal.execution_target(ctx)

        async def write(environment: Environment) -> None:
            await environment.write_file(BackendPath(effect.target), data, expected="", plain=where.is_here)

        await self._services.terminal.work_in(where.spec, write)


async def _status(path: BackendPath, environment: Environment) -> FileStatus | None:
    return await environment.status(path, follow_links=False)


def safe_name(suggested: str) -> str:
    """A file name that stays in its folder and hides nothing."""
    name = _UNSAFE.sub("_", posixpath.basename(suggested.replace("\\", "/"))).strip(" .")
    return name[-120:].lstrip(".") or "download"


async def _drop(download: Download) -> None:
    # One that failed by itself has nothing to delete.
    with contextlib.suppress(Error):
        await download.cancel()
        await download.delete()


async def _content(download: Download, max_mb: float) -> bytes:
    """The bytes of a download, once it is complete; works for remote browsers, too."""
    with tempfile.TemporaryDirectory(prefix="toolcrib-download-") as folder:
        path = Path(folder) / "file"
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await download.save_as(path)
        except Error as error:
            raise ToolcribError(
                f"it broke off; it may be larger than {max_mb:g} MB (browser.max_download_mb)"
            ) from error
        finally:
            await _drop(download)
        size = path.stat().st_size
        if size > max_mb * 1_000_000:
            raise ToolcribError(f"it is larger than {max_mb:g} MB (browser.max_download_mb)")
        return await asyncio.to_thread(path.read_bytes)
