"""A model server on this machine that speaks OpenAI's protocol and streams what a test tells it, when it tells it."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

END = None


class StreamServer:
    """`say` streams a piece of the answer, `end` completes it. Requests are kept."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.requests: queue.Queue[dict[str, Any]] = queue.Queue()
        self.hung_up = threading.Event()
        """Set when the other side has left in the middle of an answer."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.put(json.loads(body))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> StreamServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def config(self) -> str:
        address = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return f"model:\n  default: test-model\n  provider: mine\nproviders:\n  mine:\n    base_url: {address}\n"

    def say(self, text: str) -> None:
        self._pieces.put({"content": text})

    def think(self, text: str) -> None:
        self._pieces.put({"reasoning_content": text})

    def end(self) -> None:
        self._pieces.put(END)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            while (delta := self._next(handler)) is not END:
                self._send(handler, {"choices": [{"index": 0, "delta": {"role": "assistant", **delta}}]})
            self._send(handler, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            usage = {"prompt_tokens": 1200, "completion_tokens": 34, "total_tokens": 1234}
            self._send(handler, {"choices": [], "usage": usage})
            handler.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.hung_up.set()

    def _next(self, handler: BaseHTTPRequestHandler) -> dict[str, Any] | None:
        """The next piece; meanwhile a comment now and then shows whether anybody still listens."""
        while True:
            try:
                return self._pieces.get(timeout=0.1)
            except queue.Empty:
                handler.wfile.write(b": still here\n\n")
                handler.wfile.flush()

    def _send(self, handler: BaseHTTPRequestHandler, chunk: dict[str, Any]) -> None:
        whole = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "test-model", **chunk}
        handler.wfile.write(f"data: {json.dumps(whole)}\n\n".encode())
        handler.wfile.flush()
