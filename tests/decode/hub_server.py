"""A model hub on loopback, with the part of the Hugging Face API that uploads and downloads a folder."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """`repositories[name][path]` is the content of a file; `refuses` answers every request with 401.

    `downloads` are the paths that were requested.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.refuses = False
        self.downloads: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving() -> Iterator[Hub]:
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = self._body()
        if self.server.refuses:
            self._json({"error": "who are you?"}, status=401)
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}" if request.get("organization") else request["name"]
            self.server.repositories.setdefault(name, {})
            self._json({"url": f"{self.server.address}/{name}", "name": name})
        elif "/preupload/" in self.path:
            paths = [entry["path"] for entry in json.loads(body)["files"]]
            self._json({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})
        elif "/commit/" in self.path:
            files = self.server.repositories[self._name()]
            for line in body.decode().splitlines():
                record = json.loads(line)
                if record["key"] == "file":
                    files[record["value"]["path"]] = base64.b64decode(record["value"]["content"])
            self._json({"commitUrl": f"{self.server.address}/{self._name()}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._json({}, status=404)

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            files = self.server.repositories.get(self._name())
            if files is None or self.server.refuses:
                self._json({"error": "Repository not found"}, status=404, headers={"X-Error-Code": "RepoNotFound"})
                return
            siblings = [{"rfilename": path} for path in files]
            if "/tree/" in self.path:
                self._json([{"type": "file", "path": path, "size": len(files[path]), "oid": COMMIT} for path in files])
            else:
                self._json({"id": self._name(), "modelId": self._name(), "sha": COMMIT, "siblings": siblings})
            return
        owner, name, _, _, path = self.path.strip("/").split("?")[0].split("/", 4)
        content = self.server.repositories[f"{owner}/{name}"][path]
        self.server.downloads.append(path)
        etag = hashlib.sha256(content).hexdigest()
        self._send(content, headers={"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def _name(self) -> str:
        """OWNER/NAME of /api/models/OWNER/NAME/..."""
        return "/".join(self.path.split("?")[0].split("/")[3:5])

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(
            json.dumps(value).encode(), status=status, headers={"Content-Type": "application/json", **(headers or {})}
        )

    def _send(self, content: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
