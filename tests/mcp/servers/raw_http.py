"""An HTTP server that answers MCP requests in a wrong way: `raw_http.py PORT KIND`."""

import gzip
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KIND = sys.argv[2]
INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}, "protocolVersion": "2025-11-25"}
NAMES = ("huge", "endless", "cut", "html", "packed", "stall", "echo")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_error(405)

    def do_DELETE(self):
        if KIND == "clinging":
            time.sleep(600)
        self.send_error(405)

    def answer(self, body, kind="application/json", status=200):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        if KIND == "clinging":
            self.send_header("mcp-session-id", "1")
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if KIND == "forbidden":
            self.answer(b"log in first", "text/plain", 401)
        elif KIND == "failing":
            self.answer(b"<html>", "text/html", 500)
        elif "id" not in message:
            self.answer(b"", status=202)
        elif message["method"] == "tools/call":
            self.call(message)
        else:
            known = {"initialize": INFO, "tools/list": {"tools": TOOLS}, "ping": {}}
            method = message["method"]
            found = (
                {"result": known[method]}
                if method in known
                else {"error": {"code": -32601, "message": "Method not found"}}
            )
            self.answer({"jsonrpc": "2.0", "id": message["id"], **found})

    def call(self, message):
        name = message["params"]["name"]
        if name == "huge":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(2**31))
            self.end_headers()
            for _ in range(2**11):
                self.wfile.write(b" " * 2**20)
        elif name == "endless":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: ")
            for _ in range(2**11):
                self.wfile.write(b"x" * 2**20)
        elif name == "cut":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"jsonrpc"')
            self.close_connection = True
        elif name == "packed":
            data = gzip.compress(b" " * 100_000_000) * 20
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif name == "html":
            self.answer(b"<html>", "text/html")
        elif name == "stall":
            time.sleep(30)
        else:
            content = [{"type": "text", "text": "fine"}]
            self.answer({"jsonrpc": "2.0", "id": message["id"], "result": {"content": content}})


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
