"""An MCP server of the older protocol by hand, which asks its client for whatever it is told to.

The tool `ask` takes `method` and `params`, sends them to the client, and gives back the answer as JSON. The tool
`client` gives back what the client said of itself; `ask_and_leave` does not wait for its answer, but for a file.
"""

import json
import os
import sys
import threading
import time

OBJECT = {"type": "object", "properties": {}}
TOOLS = [{"name": name, "inputSchema": OBJECT} for name in ("ask", "client", "ask_and_leave", "stall", "log_in")]
lock = threading.Lock()
answers = {}
arrived = threading.Condition()
client = {}


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(key, arguments, seconds=30):
    send({"id": key, "method": arguments["method"], "params": arguments.get("params") or {}})
    with arrived:
        arrived.wait_for(lambda: key in answers, seconds)
        return answers.pop(key, {"error": {"code": 0, "message": "no answer"}})


def run(message):
    name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
    if name == "ask":
        answer = ask(f"ask-{message['id']}", arguments)
        value = answer.get("result", {"error": answer.get("error")})
    elif name == "stall":
        return
    elif name == "log_in":
        page = {"mode": "url", "message": "Log in", "url": "https://accounts.example.com/", "elicitationId": "e1"}
        error = {"code": -32042, "message": "Log in first", "data": {"elicitations": [page, {"url": 3}]}}
        send({"id": message["id"], "error": error})
        return
    elif name == "ask_and_leave":
        send({"id": "left", "method": arguments["method"], "params": arguments.get("params") or {}})
        end = time.monotonic() + 30
        while not os.path.exists(arguments["until"]) and time.monotonic() < end:  # noqa: PTH110
            time.sleep(0.01)
        value = "gone"
    else:
        value = client["said"]
    send({"id": message["id"], "result": {"content": [{"type": "text", "text": json.dumps(value)}]}})


def answer(message):
    method = message.get("method")
    if method is None:
        with arrived:
            answers[message.get("id")] = message
            arrived.notify_all()
    elif method == "initialize":
        client["said"] = message["params"]["capabilities"]
        info = {"name": "asking", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        send({"id": message["id"], "result": result})
    elif method == "tools/list":
        send({"id": message["id"], "result": {"tools": TOOLS}})
    elif method == "tools/call":
        threading.Thread(target=run, args=(message,), daemon=True).start()
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})


for line in sys.stdin:
    answer(json.loads(line))
