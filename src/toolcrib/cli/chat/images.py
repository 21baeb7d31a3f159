"""Images in the chat: attaches those that a message names, saves those that a model creates."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from toolcrib.config.files import OWNER_FILE, make_folder
from toolcrib.config.paths import Home
from toolcrib.core.messages import Image, Message, user_message
from toolcrib.files.file_types import HEAD_BYTES, image_type, is_cut_off

MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
MAX_IMAGE_BYTES = 20_000_000
NOT_ATTACHED = "image not attached"
_ENDING = r"\.(?:png|jpe?g|gif|webp)"
# As terminals insert a dropped file: quoted, with escaped spaces, or as a file: URL.
_NAMED = re.compile(
    rf"""'(?P<single>[^'\n]+{_ENDING})'|"(?P<double>[^"\n]+{_ENDING})"|(?P<bare>@?(?:\\.|[^\s'"\\])+{_ENDING})(?!\w|\.\w)""",
    re.IGNORECASE,
)


def with_images(text: str, folder: Path | None = None) -> tuple[Message, list[str]]:
    """The person's message with the images that it names, and a note about each of them.

    Relative paths start at `folder`, by default the current one.
    """
    images: list[Image] = []
    notes: list[str] = []
    for path in named_images(text, folder or Path()):
        try:
            images.append(load_image(path))
            notes.append(f"image attached: {path}")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            notes.append(f"{NOT_ATTACHED}: {path}: {reason}")
    return user_message(text, images), notes


def save_images(images: Iterable[Image], home: Home) -> list[str]:
    """Save images that a model created; returns their paths."""
    return [path for image in images if (path := save_image(image, home.images_dir))]


def named_images(text: str, folder: Path) -> list[Path]:
    """The existing image files that a text names, each once."""
    found: dict[Path, None] = {}
    for match in _NAMED.finditer(text):
        named = match["single"] or match["double"] or re.sub(r"\\(.)", r"\1", match["bare"]).removeprefix("@")
        # A bracket at the start may belong to the name or to the sentence.
        candidates = [_path(named, folder), _path(named.lstrip("([<{"), folder)]
        path = next((one for one in candidates if one is not None and _is_file(one)), None)
        if path is not None:
            found[path] = None
    return list(found)


def load_image(path: Path) -> Image:
    """The image in a file; OSError if it cannot be read, ValueError if it is too large, no image, or incomplete."""
    if path.stat().st_size > MAX_IMAGE_BYTES:
        raise ValueError(f"it is larger than {MAX_IMAGE_BYTES // 1_000_000} MB")
    content = path.read_bytes()
    # By content, not by name: providers reject a request with a mislabelled image.
    media_type = image_type(content[:HEAD_BYTES])
    if not media_type:
        raise ValueError("it is not a PNG, JPEG, GIF or WebP image")
    if is_cut_off(media_type, content):
        raise ValueError("its end is missing")
    return Image(media_type=media_type, data=base64.b64encode(content).decode("ascii"))


def save_image(image: Image, folder: Path) -> str:
    """Save an image and return its path; for an image that is only a URL, the URL."""
    if not image.data:
        return image.url
    try:
        content = base64.b64decode(image.data, validate=True)
    except binascii.Error:
        return ""
    ending = next((ending for ending, kind in MEDIA_TYPES.items() if kind == image.media_type), ".png")
    path = folder / f"{hashlib.sha256(content).hexdigest()[:16]}{ending}"
    if not path.exists():
        make_folder(folder)
        path.write_bytes(content)
        path.chmod(OWNER_FILE)
    return str(path)


def _path(text: str, folder: Path) -> Path | None:
    if text.lower().startswith("file:"):
        text = unquote(urlsplit(text).path)
    elif "://" in text:
        return None
    try:
        return (folder / Path(text).expanduser()).absolute()
    except (RuntimeError, FileNotFoundError):  # the home of an unknown user, or the current folder was deleted
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
