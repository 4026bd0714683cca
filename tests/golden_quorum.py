"""The files and messages behind tests/golden/quorum.txt, and the way to write that file again.

    python tests/golden_quorum.py [name ...]

writes the named ones (all of them without a name) and keeps the others. They are frozen: do so only
together with a new version, or for what is new.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec
from unit.core.log_helpers import MemoryStorage

from penstock.cluster.raft import LogEntry, Members, Saved, Snapshot, Write
from penstock.cluster.raft.messages import (
    DATA,
    MEMBERS,
    Accepted,
    Append,
    Install,
    PreVote,
    Rejected,
    TimeoutNow,
    Vote,
    VoteReply,
)  # fmt: skip
from penstock.server.quorum import messages as qm
from penstock.server.quorum.raft_storage import RaftDisk

FILE: Final = Path(__file__).parent / "golden" / "quorum.txt"
VOTERS: Final = (1, 2, 3)
LOG: Final = "/data/raft/00000000000000000001.log"
CLUSTER: Final = bytes(range(16))
FOLDER: Final = bytes(range(16, 32))
LIFE: Final = bytes(range(32, 48))
FORGET = b"\x91\x02"
URL: Final = "tcp://10.0.0.5:9650"


def entry(index: int, term: int = 1, size: int = 3) -> LogEntry:
    return LogEntry(index, term, DATA, bytes([index % 256]) * size)


def opened(storage: MemoryStorage, voters: tuple[int, ...] = VOTERS) -> tuple[RaftDisk, Saved]:
    disk = RaftDisk(storage, "/data", 1)
    return disk, disk.open(voters)


def writes() -> list[Write]:
    """A life: votes, entries, a tail that is cut off, a snapshot."""
    snapshot = Snapshot(3, 2, Members(VOTERS, (4,)), b"all of it")
    return [
        Write(1, 1, 1, 1, ()),
        Write(2, 1, 1, 1, (entry(1), entry(2))),
        Write(3, 1, 1, 3, (entry(3), entry(4))),
        Write(4, 2, None, 5, ()),
        Write(5, 2, 2, 3, (entry(3, 2), entry(4, 2), entry(5, 2))),
        Write(6, 2, 2, 6, (), snapshot),
        Write(7, 2, 2, 6, (entry(6, 2, 300),)),
    ]


def disk_files() -> dict[str, bytes]:
    """What that life leaves, first without the snapshot."""
    storage = MemoryStorage()
    disk, _ = opened(storage)
    disk.write(writes()[:2])
    disk.write(writes()[2:5])
    files = {"log": bytes(storage.names[LOG].content)}
    disk.write(writes()[5:])
    for name in sorted(storage.names):
        kind = "snapshot" if name.endswith(".snapshot") else "log-on-snapshot"
        files[kind] = bytes(storage.names[name].content)
    return files


SNAPSHOT: Final = Snapshot(3, 2, Members(VOTERS, (4,)), b"all of it")
MESSAGES: Final[dict[str, qm.LinkMessage]] = {
    "hello": qm.Hello(1, 2, CLUSTER, FOLDER, URL, LIFE, 1, "0.1.0"),
    "hello-new": qm.Hello(1, 2, b"", FOLDER, URL, LIFE, 1, "0.1.0"),
    "welcome": qm.Welcome(1, 3, CLUSTER, FOLDER, LIFE, 1, "0.1.0"),
    "refused": qm.Refused("AttachRefusedError", "another cluster"),
    "ask": qm.Ask(LIFE, 300, "forget", FORGET),
    "answer": qm.Answer(300, b"\xc0"),
    "answer-error": qm.Answer(300, b"", "ConfigError", "it is up"),
    "request": qm.Request(7, "markers", b"body"),
    "response": qm.Response(7, b"body"),
    "ping": qm.Ping(1_234_567),
    "pong": qm.Pong(1_234_567),
    "prevote": qm.Consensus(PreVote(5, 9, 4)),
    "vote": qm.Consensus(Vote(5, 9, 4, False)),
    "vote-reply": qm.Consensus(VoteReply(5, False, True)),
    "append": qm.Consensus(
        Append(
            5,
            9,
            4,
            (LogEntry(10, 5, DATA, b"data"), LogEntry(11, 5, MEMBERS, b"\x92\x91\x01\x90")),
            9,
        )
    ),
    "install": qm.Consensus(Install(5, SNAPSHOT)),
    "accepted": qm.Consensus(Accepted(5, 11)),
    "rejected": qm.Consensus(Rejected(5, 9, 7, 3)),
    "lead": qm.Consensus(TimeoutNow(5)),
}


def first_release() -> dict[str, bytes]:
    """Greetings of brokers that tell no release, which are still understood."""
    found = {}
    for name in ("hello", "hello-new", "welcome"):
        raw = msgspec.msgpack.decode(qm.encode(MESSAGES[name]))
        found[f"{name}-first-release"] = msgspec.msgpack.encode(raw[:-2])
    return found


def cases() -> dict[str, bytes]:
    messages = {name: qm.encode(message) for name, message in MESSAGES.items()}
    return disk_files() | messages | first_release()


def load() -> dict[str, bytes]:
    lines = (line.split(" ") for line in FILE.read_text().splitlines())
    return {name: bytes.fromhex(data) for name, data in lines}


def write(names: list[str]) -> None:
    made = cases()
    kept = load() if FILE.exists() and names else {}
    data = {name: kept[name] if names and name not in names else made[name] for name in made}
    FILE.write_text("".join(f"{name} {value.hex()}\n" for name, value in data.items()))


if __name__ == "__main__":
    write(sys.argv[1:])
