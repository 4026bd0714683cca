"""Alert rules on what a real node tells: quiet while it is well, and firing once it is not.

promtool plays scrapes of the node to the rules as if each had lasted, so nobody waits for minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request

import pytest
from alert_rules import PROMTOOL, fired, needs_promtool
from group_fixture import fill
from node_helpers import eventually
from prometheus_client.parser import text_string_to_metric_families

from penstock.testing import Broker

pytestmark = [
    needs_promtool,
    pytest.mark.local("it stops processes of the node"),
]
Scrape = dict[str, float]


def scrape(url: str) -> tuple[str, Scrape]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name.startswith("penstock_"):
                labels = ",".join(f'{key}="{value}"' for key, value in one.labels.items())
                found[f"{one.name}{{{labels}}}"] = one.value
    return text, found


def lasting(before: Scrape, now: Scrape) -> dict[str, str]:
    """Series of half an hour: one scrape lasts for 16 minutes, and then another."""
    series = {'up{job="penstock"}': "1x30"}
    for name, value in now.items():
        series[name] = f"{before.get(name, 0.0):.9g}x15 {value:.9g}x14"
    return series


def test_rules_on_scrapes_of_a_node_that_is_well_and_of_one_that_is_not(tmp_path):
    with Broker(options={"metrics": "127.0.0.1:0"}) as broker, broker.connect() as client:
        admin = client.admin()
        url = f"http://{admin.describe_node().metrics}"
        topic, jobs = broker.create_topic(retention=1800), broker.create_topic()
        fill(broker, topic, 0, 10)
        with client.consumer(topic, group="reads", follow=False) as consumer:
            assert len(list(consumer)) == 10
        with client.share_consumer(jobs, group="works", max_deliveries=1) as queue:
            queue.poll(1, timeout=0)
            text, well = scrape(url)

            fill(broker, topic, 10, 5)
            fill(broker, jobs, 0, 15)
            for _ in range(15):
                [message] = queue.poll(1, timeout=10)
                message.reject(reason="a test")
            buried = 'penstock_share_group_events_total{group="works",event="buried"}'

            def are_buried() -> bool:
                queue.poll(1, timeout=0)  # which sends answers, too
                return scrape(url)[1].get(buried) == 15

            eventually(are_buried, "dead letters that are told")
        admin.pause_share_group("works", reason="a test")
        [writer] = [each.pid for each in admin.describe_node().writers if each.writer == 0]
        os.kill(writer, signal.SIGSTOP)
        try:
            eventually(lambda: scrape(url)[1]['penstock_writer_up{writer="0"}'] == 0)
            _, ill = scrape(url)
        finally:
            os.kill(writer, signal.SIGCONT)
    assert PROMTOOL is not None
    subprocess.run([PROMTOOL, "check", "metrics"], input=text, text=True, check=True)
    found = fired(tmp_path, {"well": lasting(well, well), "ill": lasting(well, ill)})
    assert found["well"] == set()
    assert found["ill"] >= {
        "PenstockGroupHasNoMembers", "PenstockRetentionNear", "PenstockJobsPaused",
        "PenstockJobsDie", "PenstockDeadLetters", "PenstockWriterNotUp",
    }  # fmt: skip
