"""Types of GPUs and shards of them on a real Slurm: whom a requeue helps, and what is counted."""

from __future__ import annotations

from daemon_bed import URGENT, Site, nice
from live_bed import mig_gpus, run, sharded_gpus, shown, typed_nodes, wait_for
from requeue_bed import YES, asked, fill, old_enough, on, reason_of, requeues_on, restarts, state, urgent


def test_a_job_that_asks_for_a_type_takes_nobody_of_another(site: Site) -> None:
    with typed_nodes("a100", "h100"):
        requeues_on(site)
        for node in ("n3", "n4"):
            on(site, node, "--exclusive", user="root")
        wrong = on(site, "n2", YES)
        own = on(site, "n1", user="root")
        old_enough(wrong, own)
        typed = urgent(site, "--gpus=a100:8")
        done = site.once()
        assert (done.json["requeues"], asked(done)) == (0, [])
        assert (restarts(wrong), restarts(own)) == (0, 0)
        run("scancel", str(own))
        wait_for(lambda: state(typed) == "RUNNING")
        run("scancel", str(typed))
        right = on(site, "n1", YES)
        old_enough(right)
        typed = urgent(site, "--gpus=a100:8")
        assert [line["job"] for line in asked(site.once())] == [str(right)]
        wait_for(lambda: state(typed) == "RUNNING")
        assert (restarts(wrong), restarts(right)) == (0, 1)
        site.clean()  # while its jobs' GPUs are there


def shards(site: Site, node: str, count: int, *words: str) -> int:
    """A job that asks for shards alone."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-w", node, f"--gres=shard:{count}", *words]
    job = int(run(*argv, "--wrap", "sleep 900", user="alice").strip().split(";")[0])
    site.jobs.append(job)
    return job


def test_shards_are_ranked_where_they_have_a_weight_and_nobody_is_requeued_for_them(site: Site) -> None:
    with sharded_gpus():
        requeues_on(site)
        fill(site)
        victim = on(site, "n1", YES)
        old_enough(victim)
        waits = shards(site, "n1", 6, f"--comment={URGENT}")
        wait_for(lambda: reason_of(waits) in ("Resources", "Priority"))
        assert site.once().json["waiting"] == 0
        assert "asks for no GPUs" in site.tias("explain", str(waits), "--json").json["answer"]
        site.settings(**{"gpus.weights": {"shard": 0.25}})
        done = site.once()
        assert (done.json["waiting"], done.json["writes"], done.json["requeues"]) == (1, 1, 0)
        assert nice(waits) < 0
        told = site.tias("explain", str(waits), "--json").json
        assert (told["gpus"], told["shards"], told["weight"], told["level"]) == (0, 6, 1.5, 0)
        assert "6 shards = 1.5 GPUs" in site.tias("explain", str(waits)).out
        assert "1 job waits (0 GPUs = 1.5 by weight)" in site.tias("status", status=None).out
        assert restarts(victim) == 0
        site.clean()


def test_a_slice_is_made_room_for_on_the_nodes_that_have_it(site: Site) -> None:
    with mig_gpus():
        requeues_on(site)
        site.settings(**{"gpus.weights": {'"1g.5gb"': 0.125, "h100": 2.0}})
        for node in ("n2", "n3"):
            on(site, node, "--exclusive", user="root")
        other, own = on(site, "n4", YES), on(site, "n1", YES)
        old_enough(other, own)
        wants = urgent(site, "--gpus=1g.5gb:2")
        told = site.tias("explain", str(wants), "--json").json
        assert (told["gpus"], told["shards"], told["weight"]) == (2, 0, 0.25)
        assert [line["job"] for line in asked(site.once())] == [str(own)]
        wait_for(lambda: state(wants) == "RUNNING")
        assert shown(wants, "NodeList") == "n1"
        assert (restarts(other), restarts(own)) == (0, 1)
        # beside another type nobody can tell what is free
        mixed = urgent(site, "--gpus=a100_1g.5gb:1")
        assert site.once().json["requeues"] == 0
        assert restarts(mixed) == 0
        site.clean()  # while its jobs' GPUs are there
