"""Key files of CURVE: the server's pair, what it authorizes, and what a client shows.

    <data>/keys/server.json              0600   public, secret: keys are in use once it is there
    <data>/keys/server-next.json         0600   the same: the server's pair from `switch` on
    <data>/keys/authorized/NAME.json     0600   public, principal, namespace: one a client
    anywhere at the client: FILE         0600   public, secret, and the server's public key
    anywhere at each broker: FILE        0600   public, secret: of the cluster, for brokers alone

Keys are in ZeroMQ's text form (Z85, 40 characters). Owns these formats and how such files are
written, whole and synced. Never prints a secret: `repr` leaves it out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from penstock.cluster.access import check_namespace, check_principal
from penstock.core.errors import ConfigError, StorageError
from penstock.core.storage import Storage
from penstock.ipc.paths import private_folder

KEY_SCHEMA: Final = 1
KEY_VARIABLE: Final = "PENSTOCK_KEY"
KEY_CHARACTERS: Final = 40
KEYS_MAX: Final = 4096
"""Keys that a node authorizes."""
FILE_BYTES_MAX: Final = 4096
EXPIRES_MAX: Final = 1e11
SUFFIX: Final = ".json"

_Z85: Final = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")

_T = TypeVar("_T", bound="_KeyFile")


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: int = KEY_SCHEMA
    public: str

    def check(self) -> None:
        check_key(self.public)

    @property
    def fingerprint(self) -> str:
        """Names the key in lists and logs."""
        return _digest(self.public)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Expiring(_KeyFile, frozen=True, kw_only=True):
    """`expires`: seconds since the epoch from which on the key lets nobody in; without: never."""

    expires: float | msgspec.UnsetType = msgspec.UNSET

    def is_expired(self, now: float) -> bool:
        return self.expires is not msgspec.UNSET and now >= self.expires

    @property
    def expires_text(self) -> str | None:
        """Returns when it expires, in UTC; None: never."""
        if self.expires is msgspec.UNSET:
            return None
        return f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def check(self) -> None:
        check_key(self.public)
        if self.expires is not msgspec.UNSET and not 0 <= self.expires < EXPIRES_MAX:
            raise ConfigError(f"a key expires at {self.expires}: 0 to {EXPIRES_MAX:g}")


class ServerKey(_KeyFile, frozen=True, kw_only=True):
    """The node's pair, or that of a cluster. `also`: the public key of another pair that brokers
    may have, while theirs is being changed."""

    secret: str
    also: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def publics(self) -> tuple[str, ...]:
        """Public keys that brokers may have."""
        return (self.public,) if self.also is msgspec.UNSET else (self.public, self.also)

    def public_at(self, attempt: int) -> str:
        """Returns the public key to expect at that attempt to reach a broker: they take turns."""
        return self.publics[attempt % len(self.publics)]

    def check(self) -> None:
        for key in (self.secret, *self.publics):
            check_key(key)

    def __repr__(self) -> str:
        return f"ServerKey(public={self.public!r})"


class ClientKey(_Expiring, frozen=True, kw_only=True):
    """A client's pair. `server`: the public key of the node that it was made for."""

    principal: str
    secret: str
    server: str
    next_server: str | msgspec.UnsetType = msgspec.UNSET
    """The public key that the node will have, or had, while it is being changed."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Public keys of nodes that it trusts, the first to be tried first."""
        if self.next_server is msgspec.UNSET:
            return (self.server,)
        return self.server, self.next_server

    def check(self) -> None:
        super().check()
        for key in (self.secret, *self.servers):
            check_key(key)

    def __repr__(self) -> str:
        return f"ClientKey(principal={self.principal!r}, public={self.public!r})"


class AuthorizedKey(_Expiring, frozen=True, kw_only=True):
    """A client that is let in: who it is then, and the namespace that is its own."""

    principal: str
    namespace: str | None = None

    def check(self) -> None:
        super().check()
        check_principal(self.principal)
        if self.namespace is not None:
            check_namespace(self.namespace)

    @property
    def user_id(self) -> str:
        """Returns the id under which ZeroMQ knows a connection that showed this key. It holds the
        namespace too, so that another namespace ends the connection as another principal does."""
        return f"{self.principal}/{self.fingerprint}/{self.namespace or ''}"


class KeyFile:
    """A client's key file, which may be another one when it is looked at again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.key = load_client_key(path)

    def look(self) -> None:
        """Reads the file again; while it is no key file, the last key counts."""
        with contextlib.suppress(ConfigError):
            self.key = load_client_key(self._path)


# --- where ---
def keys_folder(data_folder: str | os.PathLike[str]) -> str:
    return os.path.join(data_folder, "keys")


def authorized_folder(data_folder: str | os.PathLike[str]) -> str:
    return os.path.join(keys_folder(data_folder), "authorized")


def server_key_file(data_folder: str | os.PathLike[str]) -> str:
    return os.path.join(keys_folder(data_folder), f"server{SUFFIX}")


def next_server_key_file(data_folder: str | os.PathLike[str]) -> str:
    return os.path.join(keys_folder(data_folder), f"server-next{SUFFIX}")


def authorized_file(data_folder: str | os.PathLike[str], name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name {name[:150]!r} of a key is not allowed: 1 to 100 characters of "
            "[A-Za-z0-9._@-], the first a letter or digit"
        )
    return os.path.join(authorized_folder(data_folder), name + SUFFIX)


# --- reading ---
def check_key(text: str) -> None:
    """Raises ConfigError for text that is no key. The message does not repeat it: it may be a
    secret."""
    if not _Z85.fullmatch(text):
        raise ConfigError(
            f"a key has {KEY_CHARACTERS} characters of Z85, this one {len(text)} characters: use "
            "one that `penstock keys` made"
        )


def decode_key(data: bytes, kind: type[_T], path: str) -> _T:
    """Decodes one of these files. ConfigError says what is wrong, without the file's content."""
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no {kind.__name__}: {error}") from None
    if found.schema > KEY_SCHEMA:
        raise ConfigError(
            f"{path} has schema {found.schema}, this build reads up to {KEY_SCHEMA}: use the "
            "Penstock version that wrote it, or a newer one"
        )
    try:
        found.check()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return found


def load_client_key(path: str | os.PathLike[str]) -> ClientKey:
    """Loads a client's key file; only its owner may be able to read it."""
    return _load_secret(os.fspath(path), ClientKey)


def load_authorized_key(path: str) -> AuthorizedKey:
    """Loads an authorized key. Raises OSError or ConfigError; then it authorizes nobody."""
    with open(path, "rb") as file:
        return decode_key(file.read(FILE_BYTES_MAX), AuthorizedKey, path)


def keys_in_use(data_folder: str | os.PathLike[str]) -> bool:
    """Returns whether clients of this node need keys."""
    return os.path.exists(server_key_file(data_folder))


def load_server_key(data_folder: str | os.PathLike[str]) -> ServerKey | None:
    """Loads the node's pair. None: no keys are in use."""
    path = server_key_file(data_folder)
    return _load_secret(path, ServerKey) if keys_in_use(data_folder) else None


def load_cluster_key(path: str | os.PathLike[str]) -> ServerKey:
    """Loads the pair that all brokers of a cluster have; only the node may be able to read it."""
    return _load_secret(os.fspath(path), ServerKey)


def _load_secret(path: str, kind: type[_T]) -> _T:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(
            f"others may read the key file {path} (mode {mode:04o}): its secret may be known. "
            f"Make a new key, or `chmod 600 {path}` where you know that nobody has read it"
        )
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is over {FILE_BYTES_MAX} bytes: it is no key file")
    return decode_key(data, kind, path)


# --- writing ---
def new_pair() -> tuple[str, str]:
    """Makes a public key and its secret."""
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def ensure_server_key(data_folder: str | os.PathLike[str]) -> ServerKey:
    """Returns the node's pair, made if it is not there."""
    found = load_server_key(data_folder)
    if found is not None:
        return found
    public, secret = new_pair()
    made = ServerKey(public=public, secret=secret)
    try:
        _write_new(server_key_file(data_folder), made)
    except ConfigError:
        found = load_server_key(data_folder)  # somebody else may have been faster
        if found is None:
            raise
        return found
    return made


def prepare_server_key(data_folder: str | os.PathLike[str]) -> ServerKey:
    """Returns the pair that the node is to have next, made if it is not there. Nothing uses it yet,
    except keys of clients that are made from now on."""
    if not keys_in_use(data_folder):
        raise ConfigError(f"{os.fspath(data_folder)} has no server key that could be changed")
    path = next_server_key_file(data_folder)
    if os.path.exists(path):
        return _load_secret(path, ServerKey)
    public, secret = new_pair()
    made = ServerKey(public=public, secret=secret)
    _write_new(path, made)
    return made


def switch_server_key(data_folder: str | os.PathLike[str]) -> ServerKey:
    """Makes the node use the pair that was prepared. Existing connections stay."""
    path = next_server_key_file(data_folder)
    if not os.path.exists(path):
        raise ConfigError(f"there is no {path}: `penstock keys prepare-server` makes it")
    made = _load_secret(path, ServerKey)
    Storage().rename(path, server_key_file(data_folder))
    Storage().fsync_folder(keys_folder(data_folder))
    return made


def trust_server(path: str | os.PathLike[str], server: str, *, only: bool = False) -> ClientKey:
    """Makes a client trust this public key of its node beside the one it trusts, or alone."""
    check_key(server)
    key = load_client_key(path)
    if only:
        changed = msgspec.structs.replace(key, server=server, next_server=msgspec.UNSET)
    elif server == key.server:
        return key
    else:
        changed = msgspec.structs.replace(key, next_server=server)
    _replace(path, changed)
    return changed


def _replace(path: str | os.PathLike[str], document: msgspec.Struct) -> None:
    data = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    Storage().write_file_atomic(os.path.abspath(path), data)


def trust_cluster_key(
    path: str | os.PathLike[str], other: str | os.PathLike[str] | None
) -> ServerKey:
    """Makes brokers with this key file trust those that have the other one too; or none but their
    own. Brokers read it when they start."""
    key = load_cluster_key(path)
    also = msgspec.UNSET if other is None else load_cluster_key(other).public
    changed = msgspec.structs.replace(key, also=also)
    _replace(path, changed)
    return changed


def create_cluster_key(path: str | os.PathLike[str]) -> ServerKey:
    """Makes the pair that all brokers of a cluster have, in a file that must not be there."""
    _check_new(path)
    public, secret = new_pair()
    made = ServerKey(public=public, secret=secret)
    _write_new(os.fspath(path), made)
    return made


def create_key(
    data_folder: str | os.PathLike[str],
    name: str,
    out: str | os.PathLike[str],
    *,
    principal: str | None = None,
    namespace: str | None = None,
    expires: float | None = None,
) -> ClientKey:
    """Makes a client's pair: the secret into `out`, which must not be there, and the public half
    among those authorized. From the first one on no client is accepted without a key. `expires`:
    seconds since the epoch."""
    public, secret = new_pair()
    until = msgspec.UNSET if expires is None else expires
    authorized = AuthorizedKey(
        public=public, principal=principal or name, namespace=namespace, expires=until
    )
    authorized.check()
    if authorized.is_expired(time.time()):
        raise ConfigError(f"the key would have expired at {authorized.expires_text}")
    place = authorized_file(data_folder, name)
    if os.path.lexists(place):
        raise ConfigError(f"a key {name!r} is authorized already: revoke it, or take another name")
    _check_new(out)  # before the node's own key is made, which would keep everybody out
    for folder in (data_folder, keys_folder(data_folder), authorized_folder(data_folder)):
        private_folder(folder)
    server = ensure_server_key(data_folder)
    coming = next_server_key_file(data_folder)
    made = ClientKey(
        principal=authorized.principal,
        public=public,
        secret=secret,
        server=server.public,
        expires=until,
        next_server=(
            _load_secret(coming, ServerKey).public if os.path.exists(coming) else msgspec.UNSET
        ),
    )
    _write_new(os.fspath(out), made)
    try:
        _write_new(place, authorized)
    except BaseException:
        os.unlink(out)  # it opens nothing
        raise
    return made


def revoke_key(data_folder: str | os.PathLike[str], name: str) -> AuthorizedKey | None:
    """Revokes a key; its connections end within two seconds. Returns the key, if it can be read."""
    place = authorized_file(data_folder, name)
    try:
        with open(place, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        Storage().unlink(place)
    except (FileNotFoundError, StorageError) as error:
        raise ConfigError(f"there is no key {name!r} in {os.path.dirname(place)}") from error
    Storage().fsync_folder(os.path.dirname(place))
    try:
        return decode_key(data, AuthorizedKey, place)
    except ConfigError:
        return None


def _check_new(path: str | os.PathLike[str]) -> None:
    """Raises ConfigError where a file cannot be made there."""
    place = os.path.abspath(path)
    folder = os.path.dirname(place)
    if os.path.lexists(place):
        raise ConfigError(f"cannot write {place}: it exists; name another file, or move it away")
    if not os.path.isdir(folder):
        raise ConfigError(f"cannot write {place}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {place}: this user may not write into {folder}")


def _write_new(path: str, document: msgspec.Struct) -> None:
    """Writes a new file, for its owner only, whole or not at all, on the device."""
    storage, path = Storage(), os.path.abspath(path)
    data = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    temporary = f"{path}.{os.getpid()}.tmp"
    storage.write_file(temporary, data, durable=True)
    try:
        os.link(temporary, path)  # refuses what is there, which a rename would replace
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    finally:
        storage.unlink(temporary)
    storage.fsync_folder(os.path.dirname(path))


def fingerprint_of(known: Iterable[AuthorizedKey]) -> str:
    """Returns the fingerprint of all authorized keys: equal where the keys and their fields are
    equal."""
    said = sorted(
        f"{key.public} {key.principal} {key.namespace} {key.expires_text}" for key in known
    )
    return _digest("\n".join(said))


def as_dict(key: AuthorizedKey) -> dict[str, Any]:
    """Returns its fields that may be shown."""
    return {
        "principal": key.principal, "namespace": key.namespace, "public": key.public,
        "expires": key.expires_text, "fingerprint": key.fingerprint,
    }  # fmt: skip
