"""A server with one tool, for measuring calls: by hand, so that as little time as possible is its own."""

import json
import sys

ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "1"}, "protocolVersion": "2025-11-25"}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "tools/call":
        text = message["params"]["arguments"]["text"]
        answer = {"result": {"content": [{"type": "text", "text": text}], "isError": False}}
    elif message["method"] == "tools/list":
        answer = {"result": {"tools": [ECHO]}}
    elif message["method"] == "initialize":
        answer = {"result": INFO}
    else:
        answer = {"error": {"code": -32601, "message": "Method not found"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
    sys.stdout.flush()
