"""Which batches of a client show a proof, and which one."""

from __future__ import annotations

import msgspec

from penstock.client.remote.proofs import PRODUCERS_MAX, Proofs
from penstock.core.encode import encode_batch
from penstock.core.header import ATTR_TRANSACTIONAL, BatchIdentity
from penstock.ipc import coordination as co


def batch(producer_id: int, epoch: int, attributes: int = ATTR_TRANSACTIONAL) -> memoryview:
    encoded = encode_batch(
        [b"x"],
        BatchIdentity(bytes(16), 0, producer_id, epoch, 0),
        base_timestamp=0,
        attributes=attributes,
    )
    return memoryview(encoded.image())


def registers(proofs: Proofs, producer_id: int, epoch: int, proof: bytes) -> None:
    proofs.learn(co.AddPartitions("t", producer_id, epoch, []), proof)


def test_a_batch_of_a_transaction_shows_the_proof_of_its_producer_and_epoch() -> None:
    proofs = Proofs()
    assert proofs.of(batch(7, 0)) is msgspec.UNSET
    registers(proofs, 7, 0, b"first")
    registers(proofs, 8, 5, b"other")
    assert proofs.of(batch(7, 0)) == b"first"
    assert proofs.of(batch(8, 5)) == b"other"
    registers(proofs, 7, 1, b"second")
    assert proofs.of(batch(7, 1)) == b"second"
    for stranger in (batch(7, 0), batch(7, 2), batch(9, 0), batch(7, 1, 0), memoryview(b"short")):
        assert proofs.of(stranger) is msgspec.UNSET


def test_those_that_registered_last_are_kept() -> None:
    proofs = Proofs()
    for producer_id in range(PRODUCERS_MAX):
        registers(proofs, producer_id, 0, b"first")
    registers(proofs, 0, 1, b"second")
    registers(proofs, PRODUCERS_MAX, 0, b"new")
    assert proofs.of(batch(1, 0)) is msgspec.UNSET
    assert proofs.of(batch(0, 1)) == b"second"
    assert proofs.of(batch(PRODUCERS_MAX, 0)) == b"new"
