"""Distinguishes records of remote services from files: anything with a URI scheme is not a file on this machine."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from toolcrib.core.lazy import lazy_pattern
from toolcrib.core.types import Effect

FILE_KINDS = frozenset({"read", "write", "delete"})
# Two letters at least: `C:` is a drive. A path may hold a colon behind its first slash (`./a:b`).
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]+:")
# What services hand out as ids, and what no one calls a file: 4711, a UUID, msg_01HZX…, TICKET-17, a mail address.
_RECORD_ID = lazy_pattern(
    r"#?\d+|[A-Za-z]+[-_#]\d+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{24,}"
    r"|[A-Za-z]+_(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}|[^\s/@]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"
)
_HOSTED = frozenset({"http", "https", "ws", "wss", "ftp", "ftps", "sftp", "ssh", "imap", "imaps", "smtp"})


def is_uri(target: str) -> bool:
    """Whether a target has a URI scheme, such as `s3://bucket/key`, `mailto:someone@example.com` or `crm:42`."""
    return ":" in target and _SCHEME.match(target) is not None


def is_record_id(target: str) -> bool:
    """Whether a target looks like the id of a record rather than like a file name."""
    return _RECORD_ID.fullmatch(target) is not None


def located(effect: Effect) -> Effect:
    """The effect with its target where it really is: `file:` becomes its path, and any other URI a remote record."""
    if effect.kind not in FILE_KINDS or effect.backend or not is_uri(effect.target):
        return effect
    if effect.target[:5].lower() == "file:":
        return replace(effect, target=_path_of(effect.target))
    return replace(effect, kind="remote", action=effect.action or effect.kind)


def service_of(effect: Effect) -> str:
    """The service that holds a remote record: declared, or the host or scheme of its address."""
    if effect.service or not is_uri(effect.target):
        return _plain(effect.service)
    scheme = effect.target.partition(":")[0].lower()
    if scheme not in _HOSTED:
        return _plain(scheme)
    try:
        return _plain(urlsplit(effect.target).hostname or scheme)
    except ValueError:
        return scheme


def _plain(service: str) -> str:
    # Grants name the service and may hold wildcards, so a host called `*` must not become one.
    return re.sub(r"[^\w.:@ -]", "_", service)


def address_of(effect: Effect) -> str:
    """A remote record as one text for rules: its URI, or `service:id`."""
    return effect.target if is_uri(effect.target) else f"{effect.service}:{effect.target}"


def _path_of(uri: str) -> str:
    """The path of a `file:` URI; one on another host is read as a path of this machine, which is stricter."""
    rest = uri[5:].partition("?")[0].partition("#")[0]
    if rest.startswith("//"):
        rest = "/" + rest[2:].partition("/")[2]
    return unquote(rest)
