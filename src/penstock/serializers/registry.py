"""`SchemaRegistry`: a client of a schema registry with Confluent's API, such as Karapace.

    registry = SchemaRegistry("https://registry.example:8081", auth=("ann", "secret"))
    orders = Avro(schema, registry=registry)

Each call is one request, over a connection of its own: schemas are kept, so requests are rare.
Redirects are not followed, so credentials go to the named host alone. Thread-safe.

Owns requests, their errors and the schemas that are kept. Never looks into schemas or records.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock.core.errors import ConfigError, PenstockError

E = TypeVar("E")
SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]

BODY_MAX: Final = 4 << 20
"""Bytes of an answer."""
CACHE_MAX: Final = 1000
UNKNOWN_SECONDS: Final = 30.0
"""For which an id that the registry did not know is not asked for again."""
HEAD_PATIENCE: Final = 2.0
"""Times its timeout, after which a request ends whose answer goes on to begin. A registry that is
silent is given up before."""
REFERENCES_MAX: Final = 100
"""Schemas that one schema refers to, directly or by others."""
CONTENT: Final = "application/vnd.schemaregistry.v1+json"


class RegistryError(PenstockError):
    """A schema registry did not do what it was asked for. Not the fault of a record."""


class IncompatibleSchemaError(RegistryError):
    """A schema is not compatible with those before it in its subject."""


class UnknownSchemaError(RegistryError):
    """A schema, an id or a subject is not in the registry."""


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one refers to, by `name`."""

    name: str
    subject: str
    version: int


class RegistrySchema(msgspec.Struct, frozen=True):
    """A schema as a registry has it. `text`: of Protobuf a file, or its descriptor in base64."""

    kind: SchemaKind
    text: str
    references: tuple[Reference, ...] = ()


class _Found(msgspec.Struct):
    schema: str
    schemaType: SchemaKind = "AVRO"
    references: list[Reference] = []


class _Numbered(msgspec.Struct):
    id: int


class _Judged(msgspec.Struct):
    is_compatible: bool
    messages: list[str] = []


class _Failure(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class SchemaRegistry:
    """A registry at a URL. `auth`: name and password, unless the URL has them. `timeout`: seconds
    of a request. `tls`: how an https server is verified; default: as the system does."""

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | None = None,
        timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("a schema registry is at http://HOST:PORT or https://HOST:PORT")
        if not 0.0 < timeout <= 300.0:
            raise ConfigError(f"timeout={timeout!r} must be above 0 and at most 300 seconds")
        if auth is None and parts.username:
            auth = (unquote(parts.username), unquote(parts.password or ""))
        self._tls = tls or ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{self._host}:{self._port}{self._path}"
        self._timeout = timeout
        self._headers = {"Accept": CONTENT, "Content-Type": CONTENT}
        if auth is not None:
            token = base64.b64encode(":".join(auth).encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._lock = threading.Lock()
        self._by_id: OrderedDict[Hashable, RegistrySchema] = OrderedDict()
        self._ids: OrderedDict[Hashable, int] = OrderedDict()
        self._unknown: OrderedDict[Hashable, float] = OrderedDict()

    # --- schemas by id, ids by schema ------------------------------------------------------------
    def by_id(self, number: int) -> RegistrySchema:
        """Returns the schema with this id. Raises `UnknownSchemaError`, for `UNKNOWN_SECONDS`
        without asking again."""
        found = self._kept(self._by_id, number)
        if found is not None:
            return found
        since = self._kept(self._unknown, number)
        if since is not None and time.monotonic() - since < UNKNOWN_SECONDS:
            raise UnknownSchemaError(f"{self.url} has no schema {number}")
        try:
            answer = self._ask("GET", f"/schemas/ids/{number}", _Found)
        except UnknownSchemaError:
            self._keep(self._unknown, number, time.monotonic())
            raise
        return self._keep(self._by_id, number, _schema(answer))

    def register(self, subject: str, schema: RegistrySchema) -> int:
        """Returns the id of a schema, after it is a version of this subject. Raises
        `IncompatibleSchemaError`."""
        return self._id_of("/versions", subject, schema)

    def find(self, subject: str, schema: RegistrySchema) -> int:
        """Returns the id of a schema of this subject. Raises `UnknownSchemaError`."""
        return self._id_of("", subject, schema)

    def _id_of(self, verb: str, subject: str, schema: RegistrySchema) -> int:
        known = self._kept(self._ids, (verb, subject, schema))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}{verb}"
        number = self._ask("POST", path, _Numbered, _asked(schema)).id
        return self._keep(self._ids, (verb, subject, schema), number)

    # --- subjects --------------------------------------------------------------------------------
    def is_compatible(self, subject: str, schema: RegistrySchema) -> bool:
        """Returns whether a schema may become the next version of this subject."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            return self._ask("POST", path, _Judged, _asked(schema)).is_compatible
        except UnknownSchemaError:
            return True  # it would be the first

    def subjects(self) -> list[str]:
        """Returns the names of all subjects."""
        return self._ask("GET", "/subjects", list[str])

    def versions(self, subject: str) -> list[int]:
        """Returns the versions of a subject. Raises `UnknownSchemaError`."""
        return self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions", list[int])

    def version(self, subject: str, number: int | None = None) -> RegistrySchema:
        """Returns a version of a subject; None: the latest."""
        which = "latest" if number is None else str(number)
        path = f"/subjects/{quote(subject, safe='')}/versions/{which}"
        return _schema(self._ask("GET", path, _Found))

    def references(self, schema: RegistrySchema) -> list[RegistrySchema]:
        """Returns the schemas that it refers to, directly or by others, each before those that
        refer to it."""
        found: dict[tuple[str, int], RegistrySchema] = {}
        begun: set[tuple[str, int]] = set()

        def visit(one: RegistrySchema) -> None:
            for to in one.references:
                place = (to.subject, to.version)
                if place in begun:
                    continue
                begun.add(place)
                if len(begun) > REFERENCES_MAX:
                    raise ValueError(f"a schema refers to more than {REFERENCES_MAX} others")
                other = self.version(*place)
                visit(other)
                found[place] = other

        visit(schema)
        return list(found.values())

    # --- what is kept ----------------------------------------------------------------------------
    def _kept(self, cache: OrderedDict[Hashable, E], name: Hashable) -> E | None:
        with self._lock:
            found = cache.get(name)
            if found is not None:
                cache.move_to_end(name)
            return found

    def _keep(self, cache: OrderedDict[Hashable, E], name: Hashable, found: E) -> E:
        with self._lock:
            cache[name] = found
            while len(cache) > CACHE_MAX:
                cache.popitem(last=False)
        return found

    # --- requests --------------------------------------------------------------------------------
    def _ask(self, verb: str, path: str, kind: type[E], asked: object = None) -> E:
        what = f"{verb} {self.url}{path}"
        body = None if asked is None else msgspec.json.encode(asked)
        try:
            status, told = self._exchange(verb, self._path + path, body)
        except (OSError, http.client.HTTPException) as error:
            failure = RegistryError(
                f"{what}: no answer within {self._timeout:g} s: {type(error).__name__}: {error}"
            )
            failure.retriable = True
            raise failure from error
        if status != 200:
            raise self._refused(what, status, told)
        try:
            return msgspec.json.decode(told, type=kind)
        except msgspec.DecodeError as error:
            raise RegistryError(
                f"{what}: this is no answer of a schema registry: {error}"
            ) from None

    def _exchange(self, verb: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Returns status and body. Raises OSError, HTTPException."""
        deadline = time.monotonic() + self._timeout
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._tls
            )
        )
        ending = threading.Timer(HEAD_PATIENCE * self._timeout, _end, [connection])
        ending.daemon = True
        ending.start()
        try:
            connection.request(verb, path, body, self._headers)
            answer = connection.getresponse()
            if time.monotonic() > deadline:
                raise TimeoutError("its head does not end")
            told = b""
            while part := answer.read1(64 << 10):
                told += part
                if len(told) > BODY_MAX:
                    raise http.client.HTTPException(f"an answer of more than {BODY_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError("the answer does not end")
            return answer.status, told
        finally:
            ending.cancel()
            connection.close()

    def _refused(self, what: str, status: int, told: bytes) -> RegistryError:
        try:
            failure = msgspec.json.decode(told, type=_Failure)
        except msgspec.DecodeError:
            failure = _Failure(message=told[:200].decode(errors="replace"))
        text = f"{what}: status {status}: {failure.message or http.client.responses.get(status)}"
        if status == 409:
            return IncompatibleSchemaError(text)
        if status == 404:
            return UnknownSchemaError(text)
        error = RegistryError(text)
        error.retriable = status >= 500 or status == 429
        return error

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"


def _end(connection: http.client.HTTPConnection) -> None:
    """Has who waits for the head of an answer wait no more: each byte may come just in time."""
    with contextlib.suppress(OSError):
        if (made := connection.sock) is not None:
            made.shutdown(socket.SHUT_RDWR)


def _asked(schema: RegistrySchema) -> dict[str, Any]:
    asked: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":
        asked["schemaType"] = schema.kind
    if schema.references:
        asked["references"] = schema.references
    return asked


def _schema(found: _Found) -> RegistrySchema:
    return RegistrySchema(found.schemaType, found.schema, tuple(found.references))
