"""An MCP server of the older protocol by hand, with resources and prompts: `raw_offers.py '{"option": value}'`."""

import base64
import json
import os
import sys

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
INFO = {
    "protocolVersion": "2025-11-25",
    "capabilities": OPTIONS.get(
        "capabilities", {"tools": {"listChanged": True}, "resources": {"listChanged": True}, "prompts": {}}
    ),
    "serverInfo": {"name": "raw", "version": "1"},
}
TOOLS = OPTIONS.get("tools", [{"name": "echo", "inputSchema": {"type": "object"}}])
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()
CONTENTS = {
    "memo://one": [{"uri": "memo://one", "mimeType": "text/plain", "text": "the first memo"}],
    "memo://folder": [
        {"uri": "memo://folder/a", "text": "a\u200bb"},
        {"uri": "memo://folder/b.png", "mimeType": "image/png", "blob": PNG},
    ],
    "memo://report.pdf": [
        {"uri": "memo://report.pdf", "mimeType": "application/pdf", "blob": base64.b64encode(b"%PDF").decode()}
    ],
    "memo://broken.zip": [{"uri": "memo://broken.zip", "mimeType": "application/zip", "blob": "no base64"}],
}
RESOURCES = [{"uri": uri, "name": uri, "description": "A memo\u202e"} for uri in CONTENTS]
TEMPLATES = [{"uriTemplate": "memo://{name}", "name": "any memo"}]
PROMPTS = [
    {
        "name": "greet",
        "description": "A greeting",
        "arguments": [{"name": "who", "description": "Whom", "required": True}, {"name": "how"}],
    }
]
lists = 0


def paged(entries, params):
    size = OPTIONS.get("page")
    if not size:
        return entries, {}
    start = int(params.get("cursor") or 0)
    if OPTIONS.get("endless"):
        return entries[:size], {"nextCursor": str(start + 1)}
    more = {"nextCursor": str(start + size)} if start + size < len(entries) else {}
    return entries[start : start + size], more


def prompt(params):
    who = (params.get("arguments") or {})["who"]
    return {
        "description": "A greeting",
        "messages": [
            {"role": "user", "content": {"type": "text", "text": f"Greet {who}"}},
            {"role": "assistant", "content": {"type": "image", "mimeType": "image/png", "data": PNG}},
            {
                "role": "user",
                "content": {"type": "resource", "resource": {"uri": "memo://one", "text": "the first memo"}},
            },
        ],
    }


def result_of(method, params):
    global lists
    if method == "initialize":
        return INFO
    if method == "ping":
        return {}
    if method == "tools/list":
        lists += 1
        return {"tools": TOOLS}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": str(lists)}]}
    if method == "resources/list":
        entries, more = paged(RESOURCES, params)
        return {"resources": entries, **more}
    if method == "resources/templates/list" and OPTIONS.get("templates", True):
        return {"resourceTemplates": TEMPLATES}
    if method == "resources/read":
        uri = params["uri"]
        if uri == "memo://die":
            os._exit(7)
        if uri == "memo://change":
            for _ in range(5):
                send({"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})
            return {"contents": [{"uri": uri, "text": "changed"}]}
        return {"contents": CONTENTS[uri]} if uri in CONTENTS else None
    if method == "prompts/list":
        return {"prompts": PROMPTS}
    if method == "prompts/get" and params["name"] == "greet":
        return prompt(params)
    return None


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or message.get("method") is None:
        continue
    if message.get("params", {}).get("uri") == "memo://stall":
        continue
    result = result_of(message["method"], message.get("params") or {})
    known = message["method"] in ("resources/read", "prompts/get")
    error = {"code": -32002, "message": "there is no such thing"} if known else {"code": -32601, "message": "unknown"}
    answer = {"error": error} if result is None else {"result": result}
    send({"jsonrpc": "2.0", "id": message["id"], **answer})
