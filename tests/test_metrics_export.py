"""What Prometheus sees: names, labels, values; the server and the textfile; dashboard and alert rules."""

import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from daemon_desk import desk  # noqa: F401
from prometheus_client.parser import text_string_to_metric_families as parse
from raw_queue import queue, waiting

from tias_slurm.config import ConfigError, load_config
from tias_slurm.errors import InputError
from tias_slurm.observe.http import Answers, Server
from tias_slurm.observe.metrics import Metrics
from tias_slurm.observe.steps import STEPS, StepClock
from tias_slurm.slurm.live import AdapterError

ROOT = Path(__file__).parents[1]
RULES = ROOT / "contrib/prometheus/tias-slurm.rules.yml"
DASHBOARD = ROOT / "contrib/grafana/tias-slurm.json"
# nothing else may be a label: no user, no account, no job
LABELS = {
    "version", "slurm", "backend", "mode", "lever", "preset", "result", "step", "class", "state", "standing",
    "reason", "budget", "kind", "how", "le",
}  # fmt: skip


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
def shown(desk):  # noqa: F811
    """A daemon that shows metrics on a port of its own choice."""

    def make(*queues, extra="", **script):
        desk.write(extra=f'[metrics]\nlisten = "127.0.0.1:0"\ntextfile = "{desk.state}/t.prom"\n{extra}')
        return desk.daemon(*queues, **script)

    return make


def metrics(daemon):
    status, body = get(daemon.show.port, "/metrics")
    assert status == 200
    return body


# ---- what is shown


def test_a_cycle_in_numbers(shown):
    daemon = shown(queue({"comment": "deadline=+3h"}, {}, {"comment": "deadline=soon"}))
    before = time.time()
    daemon.cycle()
    text = metrics(daemon)
    assert value(text, "cycles_total", result="ok") == 1
    assert value(text, "jobs", **{"class": "no deadline", "state": "waiting"}) == 2
    assert value(text, "jobs", **{"class": "urgent", "state": "waiting"}) == 1
    assert value(text, "jobs", **{"class": "overdue", "state": "running"}) == 0
    assert value(text, "deadline_jobs", standing="on_time") == 1
    assert value(text, "writes_total", lever="nice", result="ok") == 3
    assert value(text, "budget_left", budget="writes_per_cycle") == 997
    assert before <= value(text, "last_success_timestamp_seconds") <= time.time()
    assert value(text, "leading") == 1
    assert value(text, "interval_seconds") == 60
    assert value(text, "paused") == value(text, "no_rights") == 0
    for step in ("observe", "remember", "rank", "plan", "apply", "all"):
        assert value(text, "cycle_seconds_count", step=step) == 1
    (reason,) = (key for key in samples(text) if key[0] == "tias_slurm_refused_claims_total")
    assert samples(text)[reason] == 1
    (build,) = (dict(key[1:]) for key in samples(text) if key[0] == "tias_slurm_build_info")
    assert (build["mode"], build["lever"], build["slurm"], build["backend"]) == (
        "enforce", "nice", "26.05.5", "scripted",
    )  # fmt: skip


def test_the_whole_cycle_is_the_sum_of_its_steps(shown):
    daemon = shown(waiting(3))
    daemon.cycle()
    text = metrics(daemon)
    parts = [value(text, "cycle_seconds_sum", step=s) for s in STEPS]
    whole = value(text, "cycle_seconds_sum", step="all")
    assert all(part > 0 for part in parts)
    assert sum(parts) <= whole <= sum(parts) + 1


def test_no_label_names_a_user_a_job_or_an_account(shown):
    daemon = shown(
        queue({"user": "mallory", "account": "secretlab", "comment": "deadline=mallory-says"}),
        answers={100: "refused"},
    )
    daemon.adapter.words = "Permission denied for mallory on job 100"
    daemon.cycle()
    text = metrics(daemon)
    names = {name for key in samples(text) for name, _ in key[1:]}
    assert names <= LABELS
    assert not re.search("mallory|secretlab|100\\b.*job", text)


def test_the_number_of_series_is_bounded(shown):
    daemon = shown(
        *(queue(*[{"comment": f"deadline={chr(97 + n)}{i}"} for i in range(50)]) for n in range(4))
    )
    daemon.cycle()
    few = len(samples(metrics(daemon)))
    for _ in range(3):
        daemon.cycle()
    assert len(samples(metrics(daemon))) == few < 300


def test_reasons_beyond_reason_are_one():
    made = Metrics()
    made.refused_claims({f"reason {n}": 1 for n in range(500)})
    kept = [key for key in samples(made.text().decode()) if key[0] == "tias_slurm_refused_claims_total"]
    assert len(kept) <= 61
    assert value(made.text().decode(), "refused_claims_total", reason="other") == 440


def test_cycles_that_come_to_nothing(shown):
    daemon = shown(waiting(1), AdapterError("down", retry=True))
    daemon.cycle()
    good = value(metrics(daemon), "last_success_timestamp_seconds")
    daemon.cycle()
    text = metrics(daemon)
    assert value(text, "cycles_total", result="no answer") == 1
    assert value(text, "last_success_timestamp_seconds") == good
    assert value(text, "cycle_seconds_count", step="all") == 1


@pytest.mark.parametrize("answer", ["refused", "gone", "retry", "no rights"])
def test_writes_by_result(shown, answer):
    daemon = shown(waiting(1), answers={100: answer})
    daemon.cycle()
    text = metrics(daemon)
    assert value(text, "writes_total", lever="nice", result=answer) == 1
    assert value(text, "no_rights") == (answer == "no rights")


def test_a_dry_run_is_shown_as_one(desk):  # noqa: F811
    desk.write(mode="dry-run", extra='[metrics]\nlisten = "127.0.0.1:0"')
    daemon = desk.daemon(waiting(2))
    daemon.cycle()
    assert value(metrics(daemon), "writes_total", lever="nice", result="dry run") == 2


def test_reloads_and_pauses(shown, desk):  # noqa: F811
    daemon = shown(waiting(1))
    assert value(metrics(daemon), "reload_success") == 1
    good = desk.path.read_text()
    desk.path.write_text("[nonsense]")
    daemon._on_reload()
    (desk.state / "paused").touch()
    daemon.cycle()
    text = metrics(daemon)
    assert (value(text, "reload_success"), value(text, "paused")) == (0, 1)
    assert value(text, "held_back_writes") == 1
    desk.path.write_text(good)
    daemon._on_reload()
    daemon.cycle()
    text = metrics(daemon)
    assert value(text, "reload_success") == 1
    assert abs(value(text, "last_reload_timestamp_seconds") - time.time()) < 60


def test_requeues_left_in_the_hour(shown):
    daemon = shown(waiting(1), extra='[requeue]\nmode = "on"\nmax_per_hour = 7')
    daemon.cycle()
    assert value(metrics(daemon), "budget_left", budget="requeues_per_hour") == 7


def test_requeues_and_warnings_are_counted():
    made = Metrics()
    made.sent("requeue", "nice", "done")
    made.sent("warn", "nice", "ok")
    text = made.text().decode()
    assert value(text, "requeues_total", result="done") == 1
    assert not any(key[0] == "tias_slurm_writes_total" for key in samples(text))


def test_steps_by_the_clock():
    at = [0.0]
    clock = StepClock(lambda: at[0])
    clock.begin()
    for step, seconds in (("observe", 2.0), ("rank", 1.0), ("observe", 0.5), ("", 9.0)):
        clock.step(step)
        at[0] += seconds
    assert clock.seconds == {"observe": 2.5, "rank": 1.0}
    clock.begin()
    assert clock.seconds == {}


# ---- the server


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


def test_an_address_that_is_taken(desk):  # noqa: F811
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


def test_without_settings_there_are_none(desk):  # noqa: F811
    daemon = desk.daemon(waiting(1))
    daemon.cycle()
    assert daemon.show.port == 0
    assert daemon.show._metrics is None


# ---- the textfile


def test_the_textfile_is_for_all_to_read(shown, desk):  # noqa: F811
    before = os.umask(0o077)
    try:
        daemon = shown(waiting(1))
        daemon.cycle()
    finally:
        os.umask(before)
    path = desk.state / "t.prom"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert value(path.read_text(), "cycles_total", result="ok") == 1
    assert [f.name for f in desk.state.iterdir() if f.name.endswith(".tmp")] == []


def test_a_textfile_that_cannot_be_ends_no_cycle(desk):  # noqa: F811
    desk.write(extra='[metrics]\ntextfile = "/nowhere/t.prom"')
    daemon = desk.daemon(waiting(1))
    assert [daemon.cycle().result for _ in range(3)] == ["ok"] * 3
    (line,) = desk.said("metrics")
    assert "[metrics] textfile must lie in" in line["message"]


# ---- dashboard and rules


def known():
    """Names of all series."""
    made = Metrics()
    names = {family.name for family in made.registry.collect()}
    kinds = {family.name: family.type for family in made.registry.collect()}
    for name, kind in kinds.items():
        if kind == "counter":
            names.add(f"{name}_total")
        if kind == "histogram":
            names |= {f"{name}_{end}" for end in ("bucket", "sum", "count")}
    return names


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=["rules", "dashboard"])
def test_what_they_ask_for_is_there(path):
    used = set(re.findall(r"\btias_slurm_\w+", path.read_text()))
    assert used
    assert used <= known()


def test_every_metric_is_documented():
    text = (ROOT / "docs/operate.md").read_text()
    bare = {family.name for family in Metrics().registry.collect()}
    assert {name for name in bare if name.removeprefix("tias_slurm_") not in text} == set()


def test_the_dashboard_is_one():
    board = json.loads(DASHBOARD.read_text())
    assert board["uid"] == "tias-slurm"
    titles = [panel["title"] for panel in board["panels"]]
    assert len(titles) == len(set(titles)) >= 10
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]


def promtool():
    found = shutil.which("promtool")
    if found is None and os.environ.get("TIAS_SLURM_NO_SKIP"):
        pytest.fail("promtool is missing: apt install prometheus")
    if found is None:
        pytest.skip("promtool is missing: apt install prometheus")
    return found


def test_promtool_likes_the_rules():
    done = subprocess.run(
        [promtool(), "check", "rules", str(RULES)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_rules_fire_when_they_should():
    done = subprocess.run(
        [promtool(), "test", "rules", "tias-slurm.test.yml"],
        capture_output=True, text=True, check=False, timeout=60, cwd=RULES.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_likes_the_metrics(shown):
    daemon = shown(waiting(2))
    daemon.cycle()
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=metrics(daemon), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
