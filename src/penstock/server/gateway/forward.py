"""Requests of endpoints, forwarded to the node in the order in which they came, and answered.

    queued ──> asked ──answer of the node, or its deadline──> answered

An endpoint's session takes one request at a time, so the others wait. The gateway's own requests
for the endpoint (a lane) go the same way. The node refuses requests whose answers are in files
(`ipc.lookups`): a thread beside the loop answers them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.cluster.frames import messages as fr
from penstock.core.errors import PenstockError
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing as sh
from penstock.ipc.channel import close_fds
from penstock.server.gateway import lookups
from penstock.server.gateway.counts import GatewayCounts
from penstock.server.gateway.endpoints import GatewayEndpoint
from penstock.server.gateway.lookup_thread import LookupThread
from penstock.server.gateway.membership import Membership

logger = logging.getLogger("penstock.gateway")

ASKS_MAX: Final = 32
"""Requests of one endpoint that may wait for the one under way."""
DEADLINE_MIN: Final = 0.05
DEADLINE_MAX: Final = 600.0

Allowed = (
    ms.FindTopic | ms.ListTopics | ms.CreateTopic | ms.AlterTopic | ms.DeleteTopic
    | ms.TrimPartition | ms.DescribeNode | co.Request | lk.Request | ac.Request | cg.Request
    | op.Request | sh.Request
)  # fmt: skip
"""The requests of a remote client. Lanes, hellos and the cleaner's orders are not among them."""
_DECODER: Final = msgspec.msgpack.Decoder(Allowed)
_ENCODER: Final = msgspec.msgpack.Encoder()


class RequestForwarder:
    """Forwards all endpoints' requests. `may_look_up` is asked before a look-up is answered here.
    `shown` leaves out of the answer the parts that its endpoint may not see. The node judges the
    requests that it gets. `prove` makes the proof that goes with the answer to an `AddPartitions`.
    The node has checked that the principal may write to that transaction, and that it belongs to
    this producer and epoch."""

    def __init__(
        self,
        counts: GatewayCounts,
        membership: Membership,
        aside: LookupThread,
        may_look_up: Callable[[GatewayEndpoint, lk.Request], None],
        shown: Callable[[GatewayEndpoint, lk.Reply], lk.Reply],
        prove: Callable[[int, int, str], bytes],
    ) -> None:
        self._counts = counts
        self._membership = membership
        self._aside = aside
        self._may_look_up = may_look_up
        self._shown = shown
        self._prove = prove

    def ask(self, endpoint: GatewayEndpoint, message: fr.Ask, came: float) -> str | None:
        """Answer it, now or later. Returns why the connection is to be dropped, if so."""
        requests = endpoint.requests
        assert requests is not None
        if len(requests) >= ASKS_MAX:
            return f"{ASKS_MAX} requests of {endpoint} wait for the one under way"
        try:
            request = _DECODER.decode(message.body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            endpoint.peer.charge()
            self._refuse(
                endpoint, message.request, "UnsupportedVersionError",
                f"this gateway knows no such request ({error}): use the same Penstock version on "
                "both sides",
            )  # fmt: skip
            return None
        left = message.deadline
        if not math.isfinite(left):
            left = DEADLINE_MAX
        left = min(max(left, DEADLINE_MIN), DEADLINE_MAX)
        name = type(request).__name__
        if isinstance(request, lk.Request):
            self._look_up(endpoint, message.request, request, came)
            return None

        def failed(error: Exception) -> None:
            self._failed(endpoint, message.request, name, error)

        def answered(found: tuple[ms.NodeMessage, list[int]]) -> None:
            reply, fds = found
            close_fds(fds)
            proof: fr.Proof = msgspec.UNSET
            if isinstance(request, co.AddPartitions) and isinstance(reply, ms.Done):
                who = request.producer_id, request.producer_epoch
                proof = self._prove(*who, endpoint.principal)
            self._answer(endpoint, message.request, reply, came, proof)

        requests.add(
            lambda: endpoint.session.asking(
                request, max(DEADLINE_MIN, came + left - time.monotonic())
            ),
            answered,
            failed,
        )
        return None

    def _look_up(
        self, endpoint: GatewayEndpoint, number: int, request: lk.Request, came: float
    ) -> None:
        name = type(request).__name__
        endpoint.peer.charge()
        try:
            self._may_look_up(endpoint, request)
        except PenstockError as error:
            self._failed(endpoint, number, name, error)
            return
        session = endpoint.session
        self._aside.run(
            endpoint.peer.identity,
            lambda: lookups.answer(session, self._membership, request),
            lambda reply: self._answer(endpoint, number, reply, came),
            lambda error: self._failed(endpoint, number, name, error),
        )

    def _answer(
        self,
        endpoint: GatewayEndpoint,
        number: int,
        reply: ms.NodeMessage,
        came: float,
        proof: fr.Proof = msgspec.UNSET,
    ) -> None:
        if not endpoint.is_open:
            return
        if isinstance(reply, ms.Refused):
            self._counts.refusals[reply.error] += 1
        elif isinstance(reply, lk.Reply):
            reply = self._shown(endpoint, reply)
        pages = endpoint.states.named_in(reply)
        endpoint.post(fr.Answer(endpoint.number, number, _raw(reply), pages, proof))
        self._counts.latencies["ask"].observe(time.monotonic() - came)

    def _failed(self, endpoint: GatewayEndpoint, number: int, name: str, error: Exception) -> None:
        if not endpoint.is_open:
            return  # a look-up: what it looked at was closed under it
        if not isinstance(error, PenstockError):
            logger.error("%s of %s failed", name, endpoint, exc_info=error)
            self._refuse(
                endpoint, number, "PenstockError", f"the gateway failed at {name}: {error!r:.1000}"
            )
        else:
            self._refuse(endpoint, number, type(error).__name__, str(error)[:4000])

    def _refuse(self, endpoint: GatewayEndpoint, number: int, error: str, message: str) -> None:
        self._counts.refusals[error] += 1
        if endpoint.is_open:
            endpoint.post(fr.Answer(endpoint.number, number, _raw(ms.Refused(error, message))))


def _raw(body: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(body))
