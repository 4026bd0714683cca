"""Topic settings as users write them: types, spellings, and what is refused before it travels."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import ConfigError, TopicConfig
from penstock.client.admin.topic_config import SETTABLE, altered


def test_every_setting_travels():
    config = TopicConfig(
        partitions=3, segment_bytes=1 << 20, segment_age=timedelta(hours=1), durability="interval",
        flush_interval=0.5, timestamp_type="append", record_bytes_max=1000,
        retention=timedelta(days=7), retention_bytes=10**10, cleanup="compact,delete",
        min_compaction_lag=timedelta(minutes=1), delete_retention=3600.0, min_dirty_ratio=0.25,
    )  # fmt: skip
    settings = config.settings()
    assert (settings.retention, settings.segment_age) == (604_800.0, 3600.0)
    assert settings.min_compaction_lag == 60.0
    unchanged = [name for name in SETTABLE if getattr(settings, name) != getattr(config, name)]
    assert unchanged == ["segment_age", "retention", "min_compaction_lag"]  # the timedeltas


def test_some_settings_change_and_the_others_stay():
    known = TopicConfig(retention=60, segment_bytes=4096).settings()
    after = altered(known, {"retention": None, "cleanup": "delete, compact"})
    assert (after.retention, after.segment_bytes, after.cleanup) == (None, 4096, "compact,delete")


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("retention", "7d", "seconds or a timedelta"),
        ("retention", True, "seconds or a timedelta"),
        ("retention_bytes", 1.5, "a whole number"),
        ("retention_bytes", timedelta(1), "a whole number"),
        ("partitions", None, "a whole number"),
        ("min_dirty_ratio", "half", "a number"),
        ("cleanup", None, "one of its words"),
        ("durability", 1, "one of its words"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(name, value, advice):
    with pytest.raises(ConfigError, match=rf"^{name} is .*{advice}"):
        altered(TopicConfig().settings(), {name: value})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zzz", "there are partitions, .*retention_bytes"),
        ("retention_byte", "did you mean retention_bytes"),
        ("retention_ms", r"what Kafka calls so is retention= \(seconds\) here"),
    ],
)
def test_a_setting_that_there_is_not_is_refused_with_what_is_meant(name, says):
    with pytest.raises(ConfigError, match=rf"^a topic has no setting {name}; {says}"):
        altered(TopicConfig().settings(), {name: 1})
