"""The server of the metrics: readiness, health, addresses, clients that misbehave."""

import re
import socket
import time

import daemon_desk
import metrics_reader
import pytest
from metrics_reader import get
from raw_queue import waiting

from tias_slurm.config import ConfigError, load_config
from tias_slurm.errors import InputError
from tias_slurm.observe.http import Answers, Server

desk = daemon_desk.desk
shown = metrics_reader.shown


def test_ready_only_with_a_fresh_cycle(shown, monkeypatch):
    daemon = shown(waiting(1))
    port = daemon.show.port
    assert get(port, "/readyz") == (503, "no good cycle yet\n")
    daemon.cycle()
    assert get(port, "/readyz") == (200, "ok\n")
    later = time.time() + 200
    monkeypatch.setattr(time, "time", lambda: later)
    status, why = get(port, "/readyz")
    assert status == 503
    assert re.match(r"no good cycle for (199|200) s", why)


def test_healthy_while_the_cycle_lives(shown):
    daemon = shown(waiting(1))
    daemon.cycle()
    assert get(daemon.show.port, "/healthz") == (200, "ok\n")
    daemon._pulse.beat(-1)
    assert get(daemon.show.port, "/healthz") == (503, "the cycle is stuck\n")


def test_other_paths_and_methods(shown):
    port = shown(waiting(1)).show.port
    assert get(port, "/")[0] == 404
    assert get(port, "/../etc/passwd")[0] == 404
    assert get(port, "/metrics?x=1")[0] == 200
    assert get(port, "/healthz", "HEAD") == (200, "")
    assert get(port, "/metrics", "POST")[0] == 501


def test_clients_that_misbehave_do_no_harm(shown):
    port = shown(waiting(1)).show.port
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for one in idle[:10]:
        one.sendall(b"\x00\xff nonsense\r\n\r\n")
    assert get(port, "/healthz")[0] == 200
    for one in idle:
        one.close()
    assert get(port, "/healthz")[0] == 200


def test_it_listens_on_loopback_and_no_more_after_the_end(shown):
    daemon = shown(waiting(1))
    port = daemon.show.port
    assert daemon.show._server._server.server_address[0] == "127.0.0.1"
    daemon.close()
    with pytest.raises(OSError, match="refused"):
        get(port, "/metrics")


def test_an_address_that_is_taken(desk):
    busy = socket.create_server(("127.0.0.1", 0))
    desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:{busy.getsockname()[1]}"')
    with pytest.raises(InputError, match=r"\[metrics\] listen: .*in use"):
        desk.daemon(waiting(1))
    busy.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_the_other_internet_protocol():
    server = Server(("::1", 0), Answers(lambda: b"", lambda: "", lambda: ""))
    with socket.create_connection(("::1", server.port)) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b"200" in client.recv(100)
    server.close()


@pytest.mark.parametrize(
    "text", ["9418", ":9418", "localhost:9418", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "::1:9418"]
)
def test_an_address_that_is_none(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(f'[metrics]\nlisten = "{text}"\n')
    with pytest.raises(ConfigError, match=r"metrics.listen: must be an IP address and a port"):
        load_config(str(path))


def test_addresses(tmp_path):
    path = tmp_path / "c.toml"
    for text, address in (("127.0.0.1:9418", ("127.0.0.1", 9418)), ("[::1]:9", ("::1", 9))):
        path.write_text(f'[metrics]\nlisten = "{text}"\n')
        assert load_config(str(path)).metrics.address == address
    assert load_config(None).metrics.address is None


def test_without_settings_there_are_none(desk):
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    assert daemon.show.port == 0
    assert daemon.show._metrics is None
