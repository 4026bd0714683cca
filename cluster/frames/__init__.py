"""The messages between remote clients and gateways: the structs, their bounds, their bytes.

`messages` draws them, `codec` turns them into the parts of a ZeroMQ message and back. Both are
pure: no socket, no clock. `docs/protocol.md` describes the same for other languages.
"""
