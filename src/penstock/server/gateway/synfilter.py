"""Keeps the connections of some addresses waiting, in the kernel: their SYNs are passed over.

    a packet to the listening socket ──> its classic BPF filter ──SYN of such an address──> dropped

A connection from there is not refused: TCP tries again after a second, and again, and gets in when
the filter is gone. Connections that are there inherit the filter, and have no SYNs. This costs the
gateway no processor, unlike accepting and closing.

Owns the program of such a filter, and no socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import Final

SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("@HP")
LOAD_WORD, LOAD_BYTE, AND, IF_EQUAL, IF_BITS, RETURN = 0x20, 0x30, 0x54, 0x15, 0x45, 0x06
"""Opcodes: `ld [k]`, `ldb [k]`, `and #k`, `jeq #k`, `jset #k`, `ret #k`."""
NETWORK_HEADER: Final = 0xFFF00000
"""The IP header; the TCP header is at 0 for the filter of a TCP socket."""
TCP_FLAGS_AT, SYN = 13, 0x02
VERSION_BITS: Final = 0xF0
SOURCE_AT: Final = {4: 12, 6: 8}
TAKE, PASS_OVER = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]
"""Opcode, how many are skipped if it is true, if it is not, operand."""


def keep_waiting(listening: socket.socket, addresses: Sequence[str]) -> None:
    """From now on SYNs from these addresses are passed over by that socket; by none, if there are
    none. Raises OSError."""
    if not addresses:
        with contextlib.suppress(FileNotFoundError):  # it has none
            listening.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        return
    code = program(addresses)
    memory = ctypes.create_string_buffer(code, len(code))
    packed = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(memory))
    listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, packed)


def program(addresses: Sequence[str]) -> bytes:
    """Its instructions."""
    code: list[Instruction] = [
        (LOAD_BYTE, 0, 0, TCP_FLAGS_AT),
        (IF_BITS, 1, 0, SYN),
        (RETURN, 0, 0, TAKE),
    ]
    for address in addresses:
        code += _pass_over(address)
    code.append((RETURN, 0, 0, TAKE))
    return b"".join(_INSTRUCTION.pack(*each) for each in code)


def _pass_over(address: str) -> list[Instruction]:
    """Returns the code that passes over packets of that address, and continues behind it with
    others."""
    source = ipaddress.ip_address(address)
    source = getattr(source, "ipv4_mapped", None) or source
    words = struct.unpack(f"!{len(source.packed) // 4}I", source.packed)
    length = 4 + 2 * len(words)
    code: list[Instruction] = [
        (LOAD_BYTE, 0, 0, NETWORK_HEADER),
        (AND, 0, 0, VERSION_BITS),
        (IF_EQUAL, 0, length - 3, source.version << 4),
    ]
    for number, word in enumerate(words):
        at = NETWORK_HEADER + SOURCE_AT[source.version] + 4 * number
        code += [(LOAD_WORD, 0, 0, at), (IF_EQUAL, 0, length - len(code) - 2, word)]
    return [*code, (RETURN, 0, 0, PASS_OVER)]
