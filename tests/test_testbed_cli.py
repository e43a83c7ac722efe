"""The test bed's pure parts: configuration files, names, mounts, lock files; clusters are tested live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT / "contrib" / "testbed"))

from bed import cluster, layout, mounts, namespace, proc, releases, roots, slurmconf, venvs  # noqa: E402
from bed.cli import main, parser  # noqa: E402
from bed.errors import TestbedError  # noqa: E402


def settings(**changes: object) -> slurmconf.Settings:
    return slurmconf.Settings(**{"name": "slurm2605", "slurm": "26.05", **changes})  # type: ignore[arg-type]


def lines(text: str) -> list[tuple[str, str]]:
    return [tuple(line.split("=", 1)) for line in text.splitlines()]  # type: ignore[misc]


def test_slurm_conf_gives_each_node_a_port_and_the_partitions() -> None:
    found = lines(slurmconf.slurm_conf(settings(nodes=6, gpus=4, ctld_port=17100, first_node_port=17102)))
    nodes = dict(found)["NodeName"]
    assert nodes.startswith("n[1-6] NodeHostname=localhost")
    assert "Port=[17102-17107] CPUs=16 " in nodes
    assert nodes.endswith("Gres=gpu:4 State=UNKNOWN")
    partitions = [value for key, value in found if key == "PartitionName"]
    assert partitions[0].startswith("gpu Nodes=n[1-6] Default=YES")
    assert partitions[1].startswith("debug Nodes=n[1-3] ")


def test_one_node_has_no_ranges() -> None:
    one = settings(nodes=1, gpus=1)
    assert "NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17002 " in slurmconf.slurm_conf(one)
    assert slurmconf.gres_conf(one) == "NodeName=n1 Name=gpu File=/dev/tias/gpu0\n"


def test_nodes_without_gpus_have_no_gres() -> None:
    none = settings(gpus=0)
    assert slurmconf.gres_conf(none) == ""
    assert " Gres=" not in slurmconf.slurm_conf(none)


def test_accounting_only_where_asked_since_its_tres_needs_a_slurmdbd() -> None:
    assert "Accounting" not in slurmconf.slurm_conf(settings())
    found = dict(lines(slurmconf.slurm_conf(settings(accounting=True, dbd_port=17009))))
    assert found["AccountingStoragePort"] == "17009"
    assert found["AccountingStoreFlags"] == "job_comment"
    assert "DbdPort=17009\n" in slurmconf.slurmdbd_conf(settings(accounting=True, dbd_port=17009))


def test_conf_replaces_a_key_whatever_its_case_and_adds_nodes_and_partitions() -> None:
    extra = (
        "schedulerparameters=bf_interval=1,defer",
        "PartitionName=night Nodes=n1",
        "JobSubmitPlugins=lua",
    )
    found = lines(slurmconf.slurm_conf(settings(conf=extra)))
    keys = [key.lower() for key, _ in found]
    assert keys.count("schedulerparameters") == 1
    assert ("schedulerparameters", "bf_interval=1,defer") in found
    assert keys.count("partitionname") == 3
    assert ("JobSubmitPlugins", "lua") in found


@pytest.mark.parametrize("line", ["nonsense", "=x", "a b=c", "Key=x\nSlurmUser=bob"])
def test_a_conf_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(TestbedError, match="Key=Value"):
        slurmconf.slurm_conf(settings(conf=(line,)))


def test_limits_in_seconds_grow_with_the_clock() -> None:
    slow = dict(lines(slurmconf.slurm_conf(settings())))
    fast = dict(lines(slurmconf.slurm_conf(settings(time_scale=40))))
    assert int(fast["MessageTimeout"]) > int(slow["MessageTimeout"])
    assert int(fast["TCPTimeout"]) > int(slow["TCPTimeout"])


def test_the_oldest_release_has_no_disabled_cgroup_plugin() -> None:
    assert slurmconf.cgroup_conf(settings(slurm="22.05")) == "CgroupPlugin=cgroup/v1\n"
    assert slurmconf.cgroup_conf(settings()) == "CgroupPlugin=disabled\n"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "A", "x" * 40, "a b", ".x"])
def test_a_name_that_could_leave_the_cache_is_refused(name: str) -> None:
    with pytest.raises(TestbedError, match="--name"):
        layout.checked_name(name)


def test_cluster_names_have_only_letters_and_digits() -> None:
    assert settings(name="my-test.1").cluster_name == "mytest1"


def test_mountinfo_with_spaces_and_other_roots(tmp_path: Path) -> None:
    text = (
        "36 35 98:0 / /var/cache/a\\040b rw,noatime - ext4 /dev/root rw\n"
        "37 35 0:5 / /var/cache/ab/c rw - tmpfs tmpfs rw\n"
    )
    points = mounts.parse_mountinfo(text)
    assert points == ["/var/cache/a b", "/var/cache/ab/c"]
    assert mounts.mounts_under(Path("/var/cache/a"), points) == []
    assert mounts.mounts_under(Path("/var/cache/ab"), points) == ["/var/cache/ab/c"]
    assert mounts.mounts_under(Path("/"), points) == points


def test_a_tree_with_a_mount_in_it_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "tree" / "mounted" / "file"
    kept.parent.mkdir(parents=True)
    kept.write_text("precious")
    monkeypatch.setattr(mounts, "mounts_under", lambda path: [str(kept.parent)])
    with pytest.raises(TestbedError, match="mounted"):
        mounts.remove_tree(tmp_path / "tree")
    assert kept.read_text() == "precious"


def test_a_link_is_removed_and_not_what_it_points_at(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    mounts.remove_tree(tmp_path / "link")
    mounts.remove_tree(tmp_path / "never-was")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "precious"


def test_lock_entries_keep_versions_markers_and_hashes() -> None:
    text = (
        "attrs==25.4.0 \\\n    --hash=sha256:aa\npytest==9.2.0 ; python_version < '4' \\\n"
        "    --hash=sha256:bb \\\n    --hash=sha256:cc\npytest-cov==7.0 \\\n    --hash=sha256:dd\n"
    )
    kept = venvs.lock_entries(text, ["PyTest", "attrs"])
    assert kept == text[: text.index("pytest-cov")]


def test_every_test_tool_is_in_the_projects_lock_file() -> None:
    text = (CHECKOUT / "requirements" / "dev.txt").read_text()
    for tool in venvs.TEST_TOOLS:
        assert venvs.lock_entries(text, [tool]).startswith(f"{tool}=="), tool


def test_package_version_leaves_epoch_and_revision() -> None:
    status = "Package: munge\nVersion: 0.5\n\nPackage: slurmctld\nVersion: 1:26.05.5-1\nDescription: a\n b\n"
    assert roots.package_version(status, "slurmctld") == "26.05.5"
    assert roots.package_version(status, "slurmd") == ""


def test_a_release_without_pyslurm_says_why() -> None:
    for release in releases.RELEASES.values():
        assert bool(release.pyslurm) != bool(release.no_pyslurm)
    pinned = (CHECKOUT / "contrib" / "testbed" / "pyslurm" / "pyslurm.txt").read_text()
    assert pinned.startswith(f"pyslurm=={releases.RELEASES['26.05'].pyslurm} ")


def test_a_root_depends_on_its_packages() -> None:
    keys = {roots.root_key(release) for release in releases.RELEASES.values()}
    assert len(keys) == len(releases.RELEASES)


def test_inner_commands_get_an_exact_environment_and_user() -> None:
    words = namespace.enter(42, ["sbatch", "--wrap", "echo $HOME; id"], {"A": "b c"}, "alice", "/home/alice")
    assert words[:2] == ["nsenter", "--target=42"]
    assert "--reuid=alice" in words
    assert words[-7:] == ["-i", "-C", "/home/alice", "A=b c", "sbatch", "--wrap", "echo $HOME; id"]


def test_the_only_cluster_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIAS_TESTBED_NAME", raising=False)
    cache = layout.Layout(tmp_path)
    with pytest.raises(TestbedError, match="no cluster is up"):
        cluster.only_cluster(cache, None)
    cache.cluster("one").mkdir(parents=True)
    assert cluster.only_cluster(cache, None) == "one"
    cache.cluster("two").mkdir()
    with pytest.raises(TestbedError, match=r"one \| two"):
        cluster.only_cluster(cache, None)
    monkeypatch.setenv("TIAS_TESTBED_NAME", "two")
    assert cluster.only_cluster(cache, None) == "two"


def test_blocks_of_ports_of_two_clusters_do_not_meet(tmp_path: Path) -> None:
    cache = layout.Layout(tmp_path)
    first = cluster.with_ports(cache, settings(name="one", nodes=5))
    cache.cluster("one").mkdir(parents=True)
    record = {"settings": {**first.__dict__}}
    (cache.cluster("one") / "cluster.json").write_text(json.dumps(record))
    second = cluster.with_ports(cache, settings(name="two", nodes=5))
    assert second.ctld_port >= first.first_node_port + 5
    assert len({second.ctld_port, second.dbd_port, second.first_node_port}) == 3


def test_cached_entries_go_when_nobody_used_them_for_long(tmp_path: Path) -> None:
    cache = layout.Layout(tmp_path)
    for key in ("old", "running", "recent", "now"):
        cache.venv("testing", key).mkdir(parents=True)
    now = 2e9
    for key, age in (("old", 2), ("running", 2), ("recent", 0.5)):
        then = now - age * layout.UNUSED_S
        os.utime(cache.venv("testing", key), (then, then))
    cache.cluster("one").mkdir(parents=True)
    (cache.cluster("one") / "cluster.json").write_text(
        json.dumps({"venv": str(cache.venv("testing", "running"))})
    )
    assert cache.used(cache.venv("testing", "now"), now) == [cache.venv("testing", "old")]
    assert cache.venv("testing", "now").stat().st_mtime == now


def test_a_lock_names_its_holder_and_can_be_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = "import sys, time; from pathlib import Path; from bed.proc import locked\n"
    code += "with locked(Path(sys.argv[1])):\n print('held', flush=True); time.sleep(60)\n"
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "contrib" / "testbed")}
    words = [sys.executable, "-c", code, str(lock)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert lock.read_text() == str(holder.pid)
        with proc.taken_over(lock):
            assert holder.wait(10) != 0
            assert lock.read_text() == str(os.getpid())


def test_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert proc.last_line(log) == ""
    log.write_bytes(b"one\nfatal: \xff no\n\n")
    assert proc.last_line(log) == "fatal: \ufffd no"


def test_up_has_the_documented_defaults() -> None:
    args = parser().parse_args(["up"])
    assert (args.slurm, args.nodes, args.gpus, args.accounting) == ("26.05", 8, 8, False)
    assert (args.time_scale, args.pyslurm, args.priority) == (1, True, "multifactor")


@pytest.mark.parametrize(
    "words", [["up", "--nodes", "0"], ["up", "--time-scale", "1000"], ["up", "--slurm", "99.1"], ["no"], []]
)
def test_a_command_line_that_is_wrong_ends_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_failures_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIAS_TESTBED_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["status"]) == 1
    assert capsys.readouterr().err == "testbed: root is needed, for namespaces, mounts and device files\n"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["exec", "--name", "gone", "--", "true"]) == 1
    assert capsys.readouterr().err == "testbed: gone is not up: testbed up --name gone\n"
    assert main(["exec"]) == 1
    assert capsys.readouterr().err == "testbed: what to run? testbed exec -- CMD\n"
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "nothing is up\n"


def test_the_mirror_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIAS_TESTBED_MIRROR", raising=False)
    with pytest.raises(roots.TestbedError, match="TIAS_TESTBED_MIRROR"):
        roots.mirror(tmp_path)
    (tmp_path / "sources.list").write_text(
        "# deb http://no.example/debian x main\ndeb [arch=amd64] http://a.example/debian/ x main\n"
    )
    assert roots.mirror(tmp_path) == "http://a.example/debian"
    (tmp_path / "sources.list").unlink()
    (tmp_path / "sources.list.d").mkdir()
    text = "Types: deb\nURIs: http://b.example/debian-security\n\nTypes: deb\nURIs: http://b.example/debian\n"
    (tmp_path / "sources.list.d" / "debian.sources").write_text(text)
    assert roots.mirror(tmp_path) == "http://b.example/debian"
    monkeypatch.setenv("TIAS_TESTBED_MIRROR", "http://c.example/d")
    assert roots.mirror(tmp_path) == "http://c.example/d"
