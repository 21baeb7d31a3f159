"""An MCP server of the older protocol that attacks its client: the tool that is called says how."""

import json
import sys
import threading

NAMES = ("echo", "huge_progress", "no_numbers", "huge_number", "slow_pattern", "announce", "large_notices")
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, **({"outputSchema": PATTERN} if name == "slow_pattern" else {})}
    for name in NAMES
]
lists = 0


def write(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer(request, result):
    write(f'{{"jsonrpc":"2.0","id":{request["id"]},"result":{result}}}')


def notify(method, params):
    write(f'{{"jsonrpc":"2.0","method":"notifications/{method}","params":{params}}}')


def call(request):
    name, token = request["params"]["name"], request["params"].get("_meta", {}).get("progressToken")
    result = '{"content":[{"type":"text","text":"fine"}]}'
    if name == "huge_progress":
        notify("progress", f'{{"progressToken":{token},"progress":1{"0" * 400},"total":2}}')
    elif name == "no_numbers":
        result = '{"content":[],"structuredContent":{"a":NaN,"b":1e999}}'
    elif name == "huge_number":
        result = f'{{"content":[],"structuredContent":{{"a":1{"0" * 6000}}}}}'
    elif name == "slow_pattern":
        result = json.dumps({"content": [], "structuredContent": {"a": "a" * 40 + "!"}})
    elif name == "announce":
        notify("tools/list_changed", "{}")
    elif name == "large_notices":
        notify("message", json.dumps({"level": "info", "data": ["x" * 1_000_000]}))
    answer(request, result)


def read(request):
    global lists
    method = request.get("method")
    if "id" not in request or method is None:
        return
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {"name": "hostile", "version": "1"}
        known = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        answer(request, json.dumps(known))
    elif method == "tools/list":
        lists += 1
        if lists == 1:  # All others are left without an answer.
            answer(request, json.dumps({"tools": TOOLS}))
    elif method == "tools/call":
        threading.Thread(target=call, args=(request,), daemon=True).start()
    else:
        write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "unknown"}}))


for line in sys.stdin:
    read(json.loads(line))
