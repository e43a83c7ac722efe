"""A daemon that shows metrics, and what a reader makes of them."""

import http.client

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse


def get(port, path, method="GET"):
    """Status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def samples(text):
    """Value by name and labels."""
    return {(s.name, *sorted(s.labels.items())): s.value for family in parse(text) for s in family.samples}


def value(text, name, **labels):
    return samples(text)[f"tias_slurm_{name}", *sorted(labels.items())]


@pytest.fixture
def shown(desk):
    """A daemon that shows metrics on a port of its own choice."""

    def make(*queues, extra="", **script):
        desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:0"\ntextfile = "{desk.state}/t.prom"\n{extra}')
        return desk.daemon(*queues, **script)

    return make


def metrics(daemon):
    status, body = get(daemon.show.port, "/metrics")
    assert status == 200
    return body
