"""What Prometheus sees: names, labels and values, by the server and in the textfile."""

import os
import re
import stat
import time

import daemon_desk
import metrics_reader
import pytest
from metrics_reader import metrics, samples, value
from raw_queue import queue, waiting

from tias_slurm.observe.metrics import Metrics
from tias_slurm.observe.steps import STEPS, StepClock
from tias_slurm.slurm.live import AdapterError

desk = daemon_desk.desk
shown = metrics_reader.shown
# nothing else may be a label: no user, no account, no job
LABELS = {
    "version", "slurm", "backend", "mode", "lever", "preset", "result", "step", "class", "state", "standing",
    "reason", "budget", "kind", "how", "le",
}  # fmt: skip


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


def test_a_dry_run_is_shown_as_one(desk):
    desk.write(mode="dry-run", extra='[metrics]\nlisten = "127.0.0.1:0"')
    daemon = desk.daemon(waiting(2))
    daemon.cycle()
    assert value(metrics(daemon), "writes_total", lever="nice", result="dry run") == 2


def test_reloads_and_pauses(shown, desk):
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


def test_the_textfile_is_for_all_to_read(shown, desk):
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


def test_a_textfile_that_cannot_be_ends_no_cycle(desk):
    desk.write(extra='[metrics]\ntextfile = "/nowhere/t.prom"')
    daemon = desk.daemon(waiting(1))
    assert [daemon.cycle().result for _ in range(3)] == ["ok"] * 3
    (line,) = desk.said("metrics")
    assert "[metrics] textfile must lie in" in line["message"]
