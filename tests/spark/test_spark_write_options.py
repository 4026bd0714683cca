"""What the sink refuses, and what it says to do instead."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

import pickle

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.core.errors import ConfigError
from penstock.spark.readoptions import ReadOptions
from penstock.spark.writeoptions import WriteOptions

VALUE = {"value": pa.binary()}
TOPIC = {"topic": "orders"}


def made(options=TOPIC, columns=VALUE, *, streaming=False, overwrite=False) -> WriteOptions:
    schema = from_arrow_schema(pa.schema(list(columns.items())))
    return WriteOptions.of(options, schema, streaming=streaming, overwrite=overwrite)


def test_what_is_not_said_has_its_default(monkeypatch):
    monkeypatch.setenv("PENSTOCK_URL", "shm://here")
    found = made()
    assert found.address.url == "shm://here"
    assert (found.topic, found.txn_id, found.txn_epoch) == ("orders", None, None)
    assert (found.compression, found.durability) == ("none", "fsynced")
    assert found.columns == {"value"}


def test_options_come_in_any_case_and_those_of_the_source_and_of_spark_are_let_be():
    found = made(
        {
            "BootStrap": "tcp://h:1",
            "TOPIC": "o",
            "txnid": "job",
            "txnepoch": "7",
            "checkpointLocation": "/c",
            "queryName": "q",
            "subscribe": "i",
            "groupId": "g",
            "compression": "lz4",
            "transactionDurability": "appended",
        }
    )
    assert (found.address.url, found.topic) == ("tcp://h:1", "o")
    assert (found.txn_id, found.txn_epoch) == ("job", 7)
    assert (found.compression, found.durability) == ("lz4", "appended")
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_source_lets_options_of_the_sink_be():
    options = {"bootstrap": "shm://x", "subscribe": "orders", "txnId": "job", "txnEpoch": "1"}
    ReadOptions.of({**options, "compression": "lz4", "transactionDurability": "x"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topc": "o"}, r"no option 'topc': did you mean topic\?"),
        ({"transactionalId": "o"}, r"no option 'transactionalid': did you mean txnId\?"),
        ({"zzzzzz": "o"}, r"no option 'zzzzzz': it has topic, txnId, txnEpoch"),
        ({"txnEpoch": "1"}, "txnEpoch needs txnId"),
        ({"txnId": "job", "txnEpoch": "-1"}, "txnEpoch is '-1': it is a number from 0 on"),
        ({"txnId": "job", "txnEpoch": "batch"}, "txnEpoch is 'batch': it is a number"),
        ({"txnId": "job", "txnEpoch": str(2**63)}, "it is a number from 0 on"),
        ({"transactionDurability": "none"}, "'fsynced' or 'appended'"),
        ({"transport": "udp"}, "option transport is 'udp'"),
    ],
)
def test_options_that_cannot_be_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        made({**TOPIC, **options})


def test_epochs_of_a_stream_are_its_batches():
    with pytest.raises(ConfigError, match="txnEpoch is not for streams"):
        made({**TOPIC, "txnId": "job", "txnEpoch": "1"}, streaming=True)


def test_a_topic_is_not_overwritten_but_a_stream_in_complete_mode_appends():
    with pytest.raises(ConfigError, match=r"mode\('append'\)"):
        made(overwrite=True)
    assert made(overwrite=True, streaming=True).topic == "orders"


def test_what_the_source_reads_can_be_written_as_it_is():
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": headers,
    }
    assert made({}, columns).columns == {"key", "value", "topic", "partition", "headers"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.binary()}, "no column 'value'"),
        ({**VALUE, "valeu": pa.binary()}, "cannot write a column 'valeu'.*rename it to 'value'"),
        ({**VALUE, "price": pa.int64()}, "cannot write a column 'price'.*put it into value"),
        ({"value": pa.int64()}, "'value' is BIGINT and must be BINARY or STRING.*to_json"),
        ({**VALUE, "key": pa.int32()}, "'key' is INT and must be BINARY or STRING"),
        ({**VALUE, "partition": pa.int64()}, "'partition' is BIGINT and must be INT"),
        ({**VALUE, "topic": pa.int64()}, "'topic' is BIGINT and must be STRING"),
        ({**VALUE, "headers": pa.string()}, "'headers' is STRING and must be ARRAY<STRUCT<KEY"),
    ],
)
def test_columns_that_cannot_be_written_are_named(columns, message):
    with pytest.raises(ConfigError, match=message):
        made(columns=columns)


def test_two_columns_of_one_name_are_refused():
    twice = from_arrow_schema(pa.schema([("value", pa.binary()), ("value", pa.binary())]))
    with pytest.raises(ConfigError, match="two columns 'value'"):
        WriteOptions.of(TOPIC, twice, streaming=False, overwrite=False)


def test_where_to_write_has_to_be_said():
    with pytest.raises(ConfigError, match="set the option 'topic', or have a column 'topic'"):
        made({})
    assert made({}, {**VALUE, "topic": pa.string()}).topic is None
