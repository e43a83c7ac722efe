"""Names of policies, their suffixes, and what the settings make of them."""

import numpy as np
import pytest
from worlds import prepared, workload

from tias_slurm.config import Config
from tias_slurm.errors import InputError
from tias_slurm.levers import ExactLever, NiceLever
from tias_slurm.policy.base import Policy
from tias_slurm.policy.tias import PRESETS, Tias
from tias_slurm.replay.policies import DEFAULT_FOR_TRACE, ENTRIES, parse
from tias_slurm.slurm.node_set import make

NODES = make(["n"], [8], source="a test")
WORK = workload([{"submit": 0, "work": 1, "gpus": 1}])


def names(text, *, is_trace=True, preemption=None):
    return [w.name for w in parse(text, is_trace=is_trace, preemption=preemption)]


def test_all_that_was_promised_is_there():
    promised = (
        "recorded fifo multifactor deadline-qos edf las aemon tias tias:jct-first tias:steady tias:wide-fair "
        "tias:balanced tias:guard tias:slots oracle-srtf oracle-laxity fifo-strict fifo-fit srtf srsf"
    )
    assert set(promised.split()) == set(ENTRIES)
    future = {name for name, entry in ENTRIES.items() if not entry.realisable}
    assert future == {"oracle-srtf", "oracle-laxity", "srtf", "srsf"}
    assert all("knows" in ENTRIES[name].title or "textbook" in ENTRIES[name].title for name in future)


def test_default_sets():
    assert names(None) == list(DEFAULT_FOR_TRACE)
    assert "recorded" not in names(None)
    history = names(None, is_trace=False)
    assert history[0] == "recorded"
    assert {"tias@off", "tias@on"} <= set(history)
    chosen = names(None, is_trace=False, preemption="off")
    assert "tias" in chosen
    assert not any("@" in name for name in chosen)


def test_the_name_stays_as_given():
    assert names(" tias@on , tias:guard@off,,fifo, fifo") == ["tias@on", "tias:guard@off", "fifo"]


@pytest.mark.parametrize(
    ("name", "preemption", "want"),
    [
        ("tias", None, "on"),
        ("tias", "off", "off"),
        ("tias@on", "off", "on"),  # the suffix has the last word
        ("tias@off", "on", "off"),
        ("tias@all", "off", "all"),
        ("las", "off", "off"),
        ("edf", "on", "off"),  # never preempts
        ("fifo", "on", "off"),
        ("multifactor", None, "off"),
        ("oracle-srtf@off", None, "off"),
        ("deadline-qos", None, "on"),
    ],
)
def test_preemption(name, preemption, want):
    (w,) = parse(name, is_trace=True, preemption=preemption)
    assert w.preemption == want
    assert w.key == name.partition("@")[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tais", "did you mean 'tias'"),
        ("tias:gaurd", "did you mean 'tias:guard'"),
        ("zzz", "known are recorded, fifo"),
        ("tias@", "@on, @off or @all"),
        ("tias@ON", "@on, @off or @all"),
        ("tias@on@off", "@on, @off or @all"),
        ("fifo@on", "no choice of preemption"),
        ("edf@off", "no choice of preemption"),
        ("@on", "unknown policy '@on'"),
        ("", "names no policy"),
        (" , ,", "names no policy"),
        ("recorded", "a trace has no recorded schedule"),
        ("\x1b[2Jfifo", "\\x1b[2Jfifo"),
    ],
)
def test_errors_are_one_line_that_helps(text, says):
    with pytest.raises(InputError) as error:
        parse(text, is_trace=True, preemption=None)
    message = str(error.value)
    assert message.startswith("--policies: ")
    assert says in message
    assert "\n" not in message
    assert message.isprintable()


def built(name, **sections):
    run, wanted = prepared(WORK, NODES, name, Config.model_validate(sections))
    _, controller = run.prepare(wanted)
    return controller


@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if e.kind == "daemon"])
def test_each_builds_a_policy(name):
    controller = built(name)
    policy: Policy = controller.policy
    assert policy.levels >= 2
    ours = name.startswith("tias")
    assert isinstance(policy, Tias) is ours
    assert isinstance(controller.planner.lever, NiceLever if ours else ExactLever)
    assert controller.planner.limits.requeue is ENTRIES[name].preempts


def test_slurms_own_need_no_daemon():
    assert built("fifo") is None
    assert built("multifactor") is None


def test_single_constants_belong_to_the_configured_preset():
    settings = {"policy": {"preset": "guard", "urgent_risk": 0.3, "overdue": "best-effort"}}
    for name in ("tias", "tias:guard"):
        got = built(name, **settings).policy.settings
        assert (got.urgent_risk, got.hopeless_chance, got.overdue) == (0.3, 0.03, "best-effort")
    other = built("tias:jct-first", **settings).policy.settings
    # as published, but the site's choice for lost claims
    assert (other.urgent_risk, other.overdue) == (0.10, "best-effort")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_as_published(name):
    assert built(f"tias:{name}").policy.settings == PRESETS[name]


def test_the_interval_is_the_loss_that_does_not_count():
    assert built("tias", cycle={"interval_s": 300}).policy.settings.interval_s == 300


def test_limits_come_from_the_settings():
    limits = built(
        "tias",
        requeue={"min_run_s": 30, "max_per_job": 2, "max_preemptors_per_cycle": 5, "restart_s": 11},
        planner={"max_writes_per_cycle": 7},
        replay={"restart_s": 12},  # what the dry run assumes of jobs
    ).planner.limits
    assert (limits.min_run_s, limits.max_requeues_per_job, limits.max_preemptors) == (30, 2, 5)
    assert (limits.max_writes, limits.restart_s) == (7, 11)
    # what TIAS is compared with has no budget of writes
    assert built("las", planner={"max_writes_per_cycle": 0}).planner.limits.max_writes == 1


@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({}, 60),
        ({"requeue": {"restart_s": 7}}, 7),
        ({"requeue": {"restart_s": 7}, "replay": {"restart_s": 0}}, 0),
    ],
)
def test_what_a_restart_costs_in_the_replay(settings, cost):
    run, wanted = prepared(
        workload([{"submit": 0, "work": 1, "gpus": 1}], trace=False), NODES, "tias@on",
        Config.model_validate(settings),
    )  # fmt: skip
    cluster, _ = run.prepare(wanted)
    assert cluster.state.costs[0] == cost


def test_only_the_consenting_are_victims():
    work = workload([{"submit": 0, "work": 1, "gpus": 1, "consent": c} for c in (1, 0, -1)], trace=False)
    for name, want in (("tias@on", [True, False, False]), ("tias@all", [True, True, True])):
        run, wanted = prepared(work, NODES, name)
        cluster, _ = run.prepare(wanted)
        assert cluster.consent.tolist() == want
    run, wanted = prepared(
        work, NODES, "tias@on", Config.model_validate({"requeue": {"consent_default": True}})
    )
    cluster, _ = run.prepare(wanted)
    assert np.array_equal(cluster.consent, [True, False, True])
