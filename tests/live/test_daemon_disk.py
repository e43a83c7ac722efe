"""A disk that is full under a daemon on a real Slurm: nothing is written unrecorded, and it goes on after."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest
from daemon_bed import Site, nice
from live_bed import wait_for
from small_disk import small_disk


def ready(port: int) -> tuple[int, str]:
    """What /readyz says."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.core
def test_a_full_disk(site: Site) -> None:
    # the clusters of the other adapters share the machine's ports
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site.settings(metrics={"listen": f"127.0.0.1:{port}"})
    site.block()
    first = site.submit("--nice=3")
    with small_disk(site.state, 4) as disk:
        daemon = site.start()
        daemon.cycles(1)
        assert nice(first) < 0
        assert ready(port) == (200, "ok\n")
        disk.fill()
        later = [site.submit(f"--nice={n}") for n in range(1, 6)]
        wait_for(lambda: len(daemon.said("ledger")) >= 3)
        assert "disk is full" in daemon.said("ledger")[0]["message"]
        assert [nice(job) for job in later] == [1, 2, 3, 4, 5]
        code, why = ready(port)
        assert (code, "disk is full" in why) == (503, True)
        disk.free()
        daemon.cycles(2)
        assert all(nice(job) < 0 for job in later)
        assert ready(port) == (200, "ok\n")
        recorded = {row[0] for row in site.query("SELECT job_id FROM audit WHERE result = 'ok'")}
        assert recorded >= {first, *later}
        assert daemon.end() == 0
        ledger = json.loads(site.tias("status", "--json", status=None).out)["ledger"]
        assert 0 < ledger["bytes"] < 4e6
        site.tias("restore")
        assert [nice(job) for job in (first, *later)] == [3, 1, 2, 3, 4, 5]
