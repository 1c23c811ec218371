#!/usr/bin/env python3
"""An example of a scheduler for Treeline over HTTP: it prefers candidates whose
label power is solar, and among those the one with the most processor free.

It answers a question (sched.Ask) with an answer (sched.Answer), with nothing but
Python's standard library:

    python3 rank.py 127.0.0.1:8000
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def rank(ask):
    """The answer to a question: all candidates, best first."""

    def solar(candidate):
        return candidate.get("labels", {}).get("power") == "solar"

    # The id makes the order total, so that the same question has one answer.
    best_first = sorted(
        ask["candidates"],
        key=lambda c: (not solar(c), -c["free"]["milli_cpu"], c["id"]),
    )
    return {
        "key": ask["key"],
        "ranked": [
            {"id": c["id"], "score": len(best_first) - i}
            for i, c in enumerate(best_first)
        ],
    }


class Handler(BaseHTTPRequestHandler):
    """Answers POST, to any path."""

    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds that an idle connection is kept

    def do_POST(self):
        try:
            ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = 200, rank(ask)
        except (KeyError, TypeError, ValueError) as e:
            status, body = 400, {"error": f"this is no question: {e!r}"}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        """A line for each placement is of no use to anybody."""


def main():
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000").rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Handler)
    print(f"http://{host}:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
