"""What to do about an MCP server that does not work, from what it said and did."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from toolcrib.mcp.client.server_process import ServerLog
from toolcrib.mcp.client.servers import Server

LOG_LINES = 6
LOG_BYTES = 8000
ON_STDOUT = "[on stdout, no message]"
"""How the log marks what a server printed where only messages belong."""
INSTALL = {
    "npx": "install Node.js, which brings npx",
    "node": "install Node.js",
    "uvx": "install uv, which brings uvx: `pip install uv`",
    "uv": "install uv: `pip install uv`",
    "docker": "install Docker, or Podman and write podman instead",
    "deno": "install Deno",
    "bunx": "install Bun, which brings bunx",
}
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PAT|URL)\b")
_STATUS = re.compile(r"HTTP (\d{3})")


def last_words(folder: Path, server: str, since: float) -> list[str]:
    """The last lines that the process of a server printed as errors, or where no errors belong, since then."""
    path = ServerLog(folder, server).path
    try:
        if path.stat().st_mtime < since:
            return []
        text = path.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    of_this_start = text.rpartition("\n--- ")[2] if "\n--- " in text else text.removeprefix("--- ")
    return [line for line in of_this_start.splitlines()[1:] if line.strip()][-LOG_LINES:]


def advice(server: Server, error: str, words: list[str]) -> str:
    """What to do next, as one sentence."""
    return _about_http(server, error) if server.transport != "stdio" else _about_process(server, error, words)


def _about_process(server: Server, error: str, words: list[str]) -> str:
    name, command = server.name, server.settings.command
    said = "\n".join(words)
    key = f"mcp_servers.{name}"
    if "was not found" in error:
        program = Path(command).name
        return INSTALL.get(
            program, f"install {program!r}, or write its full path: `toolcrib config set {key}.command …`"
        )
    if "could not be started" in error:
        return f"make sure that {command!r} is a program that you may run"
    if "is not installed" in error or "does not exist" in error:
        return ""  # It says itself what to do.
    if ON_STDOUT in said:
        return "it prints on stdout, where only messages belong: start the server itself, with the option for stdio"
    if "did not answer in time" in error:
        return f"if it is only slow, give it more time: `toolcrib config set {key}.connect_timeout 120`"
    variables = list(dict.fromkeys(_VARIABLE.findall(said)))
    if variables:
        first = variables[0]
        return f"it speaks of {', '.join(variables)}: `toolcrib config set {key}.env.{first} …` sets a variable"
    if "E404" in said or "No matching distribution" in said:
        return f"the package was not found; look at the spelling in {key}.args"
    if "exit code 127" in error:
        return "a program that it needs was not found; install it"
    # With the variables that the config names, not with the secrets in them.
    line = server.address
    if any(word in error for word in ("exit code", "ended by", "closed its", "has just gone")):
        return f"type its command yourself to see why it ends: `{line}`"
    return f"is it an MCP server? its command is `{line}`"


def _about_http(server: Server, error: str) -> str:
    url, key = server.address, f"mcp_servers.{server.name}"
    if "`toolcrib mcp login" in error:
        return ""  # It says itself what to do.
    found = _STATUS.search(error)
    status = int(found[1]) if found else 0
    if status in (401, 403):
        if server.settings.auth == "oauth":
            return f"log in: `toolcrib mcp login {server.name}`"
        again = f"toolcrib mcp add {server.name} --replace --url {shlex.quote(url)}"
        return (
            f"send a token (`{again} --header 'Authorization: Bearer …'`) "
            f"or log in (`toolcrib config set {key}.auth oauth`, then `toolcrib mcp login {server.name}`)"
        )
    if status in (400, 404, 405, 406, 410):
        return f"nothing there speaks MCP; look at the path in {key}.url, which often ends in /mcp or /sse"
    if status >= 500:
        return "the server has a fault of its own; try again later, or look at its own log"
    if "CERTIFICATE" in error.upper():
        return "its certificate is not trusted here; if it is your own, put its authority's file into SSL_CERT_FILE"
    if "WRONG_VERSION" in error or "record layer" in error.lower():
        return f"it does not speak TLS there; write http:// instead of https:// in {key}.url"
    if "no connection" in error or "Name or service" in error:
        return "nothing answers at that address; is the server running, and is the host right?"
    if "did not answer in time" in error or "in time" in error:
        return f"if it is only slow, give it more time: `toolcrib config set {key}.connect_timeout 120`"
    if "is not installed" in error:
        return ""
    return f"is there an MCP server at {url}?"
