"""The wire protocol's messages: frozen bytes, and whatever else comes is refused by its name."""

from __future__ import annotations

import random
from typing import Any, get_args

import golden_frames
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.frames import codec
from penstock.cluster.frames import messages as fr

GOLDEN = golden_frames.load()
DECODE = {
    **dict.fromkeys(golden_frames.CLIENT, codec.from_client),
    **dict.fromkeys(golden_frames.GATEWAY, codec.from_gateway),
}
SIDES = pytest.mark.parametrize("decode", [codec.from_client, codec.from_gateway])


# --- frozen bytes --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", golden_frames.CASES)
def test_golden_frames_are_written_and_read(name):
    message = golden_frames.CASES[name]
    assert codec.encode(message) == GOLDEN[name]
    decoded, payload = DECODE[name]([GOLDEN[name]])
    assert codec.encode(decoded) == GOLDEN[name]
    assert (type(decoded), payload) == (type(message), None)


def test_every_message_has_a_golden_frame():
    messages = {*get_args(fr.ClientMessage), *get_args(fr.GatewayMessage)}
    assert {type(message) for message in golden_frames.CASES.values()} == messages
    assert set(GOLDEN) == set(golden_frames.CASES)


def test_a_later_version_may_add_fields_that_this_one_passes_over():
    body = msgspec.msgpack.decode(GOLDEN["more"])
    frame = msgspec.msgpack.encode({**body, "hurry": True})
    assert codec.from_client([frame])[0] == golden_frames.CASES["more"]
    state = [*msgspec.msgpack.decode(msgspec.msgpack.encode(golden_frames.PAGE)), [], [], "more"]
    frame = msgspec.msgpack.encode({"type": "pages", "endpoint": 1, "pages": [state]})
    assert codec.from_gateway([frame])[0] == golden_frames.CASES["pages"]


# --- what is no message --------------------------------------------------------------------------
@SIDES
@pytest.mark.parametrize(
    "frames",
    [
        [], [b""], [b"\x80"], [b"x"], [b"\x81\xa4type\xa4nope"], [b"\xc1"],
        [b"\xdd\xff\xff\xff\xff"], [b"\x91" * 5000], [b"\x81\xa4type\xa5hello"], [b"", b""],
        [b"a", b"b", b"c"],
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(decode, frames):
    with pytest.raises(codec.FrameError):
        decode(frames)


@SIDES
def test_a_header_is_bounded(decode):
    most = fr.CLIENT_HEADER_MAX if decode is codec.from_client else fr.GATEWAY_HEADER_MAX
    with pytest.raises(codec.FrameError, match=str(most)):
        decode([bytes(most + 1)])


@pytest.mark.parametrize("name", golden_frames.CASES)
def test_only_batches_have_a_payload(name):
    frames = [GOLDEN[name], b"payload"]
    if name.startswith(("produce", "fetched")):
        assert DECODE[name](frames)[1] == b"payload"
    else:
        with pytest.raises(codec.FrameError, match="no payload"):
            DECODE[name](frames)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("attach", "endpoint", -1), ("attach", "endpoint", 1 << 32),
        ("attach", "client_id", "x" * 101), ("attach-resume", "token", bytes(65)),
        ("attach-resume", "resume", -1), ("positions", "positions", [(0, 0)] * 385),
        ("hello", "incarnation", bytes(15)), ("hello", "software", "x" * 101),
        ("produce", "sequence", -1), ("produce", "writer", 1 << 31), ("produce", "page", -1),
        ("fetch", "offset", -1), ("fetch", "offset", (1 << 63) - 1), ("fetch", "topic_id", b"x"),
        ("fetch", "credit", fr.CREDIT_MAX + 1), ("fetch", "partition", 1 << 31),
        ("more", "credit", -1), ("more", "credit", "1"), ("drop", "cursor", None),
        ("ping", "stamp", 1.5), ("ask", "request", (1 << 64) - 1), ("ask", "deadline", "soon"),
    ],
)  # fmt: skip
def test_what_a_client_says_is_within_bounds(name, field, value):
    body = {**msgspec.msgpack.decode(GOLDEN[name]), field: value}
    with pytest.raises(codec.FrameError):
        codec.from_client([msgspec.msgpack.encode(body)])


@pytest.mark.parametrize("name", golden_frames.CASES)
def test_a_message_cut_off_anywhere_is_refused(name):
    for length in range(len(GOLDEN[name])):
        with pytest.raises(codec.FrameError):
            DECODE[name]([GOLDEN[name][:length]])


@pytest.mark.parametrize("name", golden_frames.CASES)
def test_a_field_that_is_missing_is_refused_unless_it_has_a_default(name):
    body = msgspec.msgpack.decode(GOLDEN[name])
    kind = type(golden_frames.CASES[name])
    needed = {field.name for field in msgspec.structs.fields(kind) if field.required}
    for field in [field for field in body if field != "type"]:
        frame = msgspec.msgpack.encode({key: body[key] for key in body if key != field})
        if field in needed:
            with pytest.raises(codec.FrameError):
                DECODE[name]([frame])
        else:
            DECODE[name]([frame])


# --- fuzz: FrameError, or a message within its bounds --------------------------------------------
def survives(frames: list[bytes]) -> None:
    for decode in (codec.from_client, codec.from_gateway):
        try:
            message, _ = decode(frames)
        except codec.FrameError:
            continue
        if decode is codec.from_client:
            check_bounds(message)
        codec.encode(message)


def check_bounds(message: Any) -> None:
    """Of everything that a gateway takes from a stranger."""
    for field in msgspec.structs.fields(message):
        value = getattr(message, field.name)
        if isinstance(value, int) and field.name not in ("protocol", "leader_epoch", "resume"):
            assert 0 <= value < 1 << 63, field.name
        if isinstance(value, (bytes, str)):
            assert len(value) <= fr.NAME_BYTES_MAX, field.name


@given(st.lists(st.binary(max_size=300), max_size=4))
@settings(max_examples=150)
def test_random_bytes(frames):
    survives(frames)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats()
    | st.text(max_size=20) | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.sampled_from(sorted(GOLDEN)), st.data())
@settings(max_examples=200)
def test_messages_with_other_values(name, data):
    body = msgspec.msgpack.decode(GOLDEN[name])
    for field in data.draw(st.sets(st.sampled_from(sorted(body)), max_size=3)):
        body[field] = data.draw(PLAIN)
    survives([msgspec.msgpack.encode(body)])


@given(st.sampled_from(sorted(GOLDEN)), st.integers(0, 1 << 32))
@settings(max_examples=200)
def test_messages_with_flipped_cut_and_repeated_bytes(name, seed):
    rng = random.Random(seed)
    frame = bytearray(GOLDEN[name])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(frame)) if frame else 0
        match rng.randrange(4):
            case 0 if frame:
                frame[at] ^= 1 << rng.randrange(8)
            case 1:
                del frame[at : at + rng.randrange(8)]
            case 2:
                frame[at:at] = rng.randbytes(rng.randrange(8))
            case _:
                frame[at:at] = frame[at : at + rng.randrange(20)]
    survives([bytes(frame)])
