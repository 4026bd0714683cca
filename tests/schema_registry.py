"""A schema registry for tests: a real HTTP server that keeps the documented protocol of Confluent's
registry, in memory. Avro schemas are checked as `BACKWARD` says: who has the new one must be able
to read what was written by the last one.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro
from fastavro.utils import generate_one

Answer = tuple[int, Any]


class RegistryUnderTest:
    """Its schemas and subjects; `asked`: the requests so far. `auth`: who alone is let in."""

    def __init__(self, auth: tuple[str, str] | None = None) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.auth = auth
        self.trouble: Answer | None = None
        """The answer to every request, if set."""
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def answer(self, verb: str, path: list[str], body: Any) -> Answer:
        with self._lock:
            match verb, path:
                case "GET", ["schemas", "ids", number]:
                    found = self._schemas.get(int(number))
                    return (200, found) if found else (404, _error(40403, "Schema not found"))
                case "GET", ["subjects"]:
                    return 200, sorted(self._subjects)
                case "GET", ["subjects", subject, "versions"] if subject in self._subjects:
                    return 200, [*range(1, len(self._subjects[subject]) + 1)]
                case "GET", ["subjects", subject, "versions", which] if subject in self._subjects:
                    numbers = self._subjects[subject]
                    at = len(numbers) if which == "latest" else int(which)
                    return 200, {**self._schemas[numbers[at - 1]], "version": at}
                case "POST", ["subjects", subject]:
                    return self._find(subject, body)
                case "POST", ["subjects", subject, "versions"]:
                    return self._register(subject, body)
                case "POST", ["compatibility", "subjects", subject, "versions", "latest"]:
                    if subject not in self._subjects:
                        return 404, _error(40401, "Subject not found.")
                    return 200, {"is_compatible": self._fits(subject, body)}
        return 404, _error(40401, "Subject not found.")

    def _find(self, subject: str, body: Any) -> Answer:
        for number in self._subjects.get(subject, ()):
            if self._schemas[number] == body:
                return 200, {"id": number, "subject": subject, **body}
        return 404, _error(40403, "Schema not found")

    def _register(self, subject: str, body: Any) -> Answer:
        status, found = self._find(subject, body)
        if status == 200:
            return 200, {"id": found["id"]}
        if not self._fits(subject, body):
            return 409, _error(409, "Schema being registered is incompatible")
        number = next(
            (number for number, one in self._schemas.items() if one == body),
            len(self._schemas) + 1,
        )
        self._schemas[number] = body
        self._subjects.setdefault(subject, []).append(number)
        return 200, {"id": number}

    def _fits(self, subject: str, body: Any) -> bool:
        numbers = self._subjects.get(subject)
        if not numbers or "schemaType" in body:
            return True
        old, new = (json.loads(one["schema"]) for one in (self._schemas[numbers[-1]], body))
        out = BytesIO()
        fastavro.schemaless_writer(out, old, generate_one(old))
        try:
            fastavro.schemaless_reader(BytesIO(out.getvalue()), old, new)
        except Exception:
            return False
        return True


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


class _Requests(BaseHTTPRequestHandler):
    registry: RegistryUnderTest

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _serve(self, body: Any) -> None:
        registry = self.registry
        registry.asked.append(f"{self.command} {self.path}")
        status, told = registry.trouble or self._answered(body)
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answered(self, body: Any) -> Answer:
        if self.registry.auth is not None:
            token = base64.b64encode(":".join(self.registry.auth).encode()).decode()
            if self.headers["Authorization"] != f"Basic {token}":
                return 401, _error(40101, "Unauthorized")
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        return self.registry.answer(self.command, path, body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def schema_registry(auth: tuple[str, str] | None = None) -> Iterator[RegistryUnderTest]:
    """A registry that is served meanwhile."""
    registry = RegistryUnderTest(auth)
    handler = type("Requests", (_Requests,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
