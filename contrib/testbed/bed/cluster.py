"""A cluster's life: up, down, status, and running commands in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bed import namespace, services
from bed.errors import TestbedError
from bed.layout import CHECKOUT, Layout
from bed.mounts import remove_tree
from bed.proc import locked, run, say, step, taken_over
from bed.pyslurm import INNER_PYSLURM, ensure_pyslurm
from bed.releases import RELEASES
from bed.roots import ensure_root, read_or_empty, slurm_version
from bed.slurmconf import Settings, cgroup_conf, gres_conf, hosts, slurm_conf, slurmdbd_conf
from bed.venvs import INNER, INNER_CHECKOUT, ensure_venv

_FIRST_PORT, _LAST_PORT = 17000, 30000  # below the ports that Linux hands out by itself


def mark(layout: Layout, name: str) -> str:
    """What marks a cluster's processes: its directory."""
    return str(layout.cluster(name))


def up(layout: Layout, settings: Settings, pyslurm: bool) -> None:
    """Bring a cluster up, all nodes idle; whatever fails, nothing of it stays but the log."""
    begin = time.monotonic()
    release = RELEASES[settings.slurm]
    with locked(layout.lock(f"cluster-{settings.name}"), f"another testbed at work on {settings.name}"):
        directory = layout.cluster(settings.name)
        # one without `ready` is what an up that was killed left: we hold the lock
        if (directory / "ready").exists() and namespace.find(mark(layout, settings.name)):
            raise TestbedError(
                f"{settings.name} is up already: testbed down --name {settings.name}, or another --name"
            )
        _remove(layout, settings.name, logs=True)
        root = ensure_root(layout, release)
        venv = ensure_venv(layout, release, root)
        built = ensure_pyslurm(layout, release, root, venv) if pyslurm and release.pyslurm else None
        for entry in (root, venv, built):
            for unused in layout.used(entry, time.time()) if entry else ():
                remove_tree(unused)
        try:
            with locked(layout.lock("ports")):
                settings = with_ports(layout, settings)
                directory.mkdir(parents=True)
                record = {"settings": dataclasses.asdict(settings), "root": str(root), "venv": str(venv)}
                record["pyslurm"] = release.pyslurm if built else None
                record["no_pyslurm"] = "" if built else release.no_pyslurm or "brought up with --no-pyslurm"
                record["slurm_version"] = slurm_version(root)
                record["pyslurm_path"] = str(built)
                record["checkout"] = str(CHECKOUT)
                half = directory / "cluster.half"
                half.write_text(json.dumps(record))
                half.rename(directory / "cluster.json")  # others read it meanwhile
            with step("namespaces, root and devices"):
                _start(layout, settings, root, venv, built)
            cluster = Cluster(layout, settings.name)
            services.start_all(cluster)
            (directory / "ready").touch()
        except BaseException:
            _remove(layout, settings.name, logs=False)
            raise
    seconds = time.monotonic() - begin
    say(f"{settings.name} is up: Slurm {settings.slurm}, {settings.nodes} nodes idle ({seconds:.0f} s)")


def _start(layout: Layout, settings: Settings, root: Path, venv: Path, built: Path | None) -> None:
    directory = layout.cluster(settings.name)
    logs = layout.log(settings.name)
    logs.mkdir(parents=True, exist_ok=True)
    etc = directory / "slurm"
    etc.mkdir()
    files = {
        "slurm.conf": slurm_conf(settings),
        "gres.conf": gres_conf(settings),
        "cgroup.conf": cgroup_conf(settings),
    }
    for name, text in files.items():
        (etc / name).write_text(text)
    if settings.accounting:
        (etc / "slurmdbd.conf").touch(mode=0o600)
        (etc / "slurmdbd.conf").write_text(slurmdbd_conf(settings))
    (directory / "hosts").write_text(hosts())
    (directory / "resolv.conf").write_bytes(read_or_empty("/etc/resolv.conf"))
    for source in settings.etc:
        try:
            shutil.copyfile(source, etc / Path(source).name)
        except OSError as error:
            raise TestbedError(f"--etc {source}: {error.strerror}") from None
    munge = directory / "munge"
    munge.mkdir(mode=0o700)
    (munge / "munge.key").touch(mode=0o600)
    (munge / "munge.key").write_bytes(os.urandom(128))
    owner = _uid_gid(root, "munge")
    for path in (munge, munge / "munge.key"):
        os.chown(path, *owner)
    binds = [
        [str(etc), "/etc/slurm", False],
        [str(munge), "/etc/munge", True],
        [str(directory / "hosts"), "/etc/hosts", True],
        [str(directory / "resolv.conf"), "/etc/resolv.conf", True],
        [str(logs), "/var/log/slurm", False],
        [str(venv), INNER, True],
        [str(CHECKOUT), INNER_CHECKOUT, False],
        [str(Path(__file__).with_name("reaper.py")), "/usr/local/lib/testbed/reaper.py", True],
        [str(Path(__file__).with_name("on-host")), services.ON_HOST, True],
        [str(Path(__file__).with_name("clock.py")), "/usr/local/lib/testbed/clock.py", True],
    ]
    if built:
        binds.append([str(built), INNER_PYSLURM, True])
    spec: dict[str, Any] = {
        "root": str(root),
        "overlay": True,
        "top": str(directory / "top"),
        "binds": binds,
        "gpus": settings.gpus,
        "hostname": "testbed",
        "argv": ["/usr/bin/python3", "-I", "-S", "/usr/local/lib/testbed/reaper.py"],
        "env": services.plain_environment(),
    }
    log = logs / "namespace.log"
    try:
        namespace.start(spec, directory / "spec.json", mark(layout, settings.name), log)
    except TestbedError as error:
        if "mount -t overlay" not in str(error):
            raise
        say("no overlayfs here: the root is copied instead")
        copy = directory / "copy"
        run(["cp", "-a", "--reflink=auto", root, copy], log, "copying the root")
        spec |= {"root": str(copy), "overlay": False}
        namespace.start(spec, directory / "spec.json", mark(layout, settings.name), log)


def _uid_gid(root: Path, user: str) -> tuple[int, int]:
    for line in (root / "etc" / "passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise TestbedError(f"{root}: no user {user}; testbed clean, then up again")


def with_ports(layout: Layout, settings: Settings) -> Settings:
    """The settings with a block of ports that nobody listens on and no other cluster was given."""
    wanted = settings.nodes + 2
    taken: set[int] = set()
    for name in layout.clusters():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            other = Settings(**json.loads((layout.cluster(name) / "cluster.json").read_text())["settings"])
            taken.update(range(other.ctld_port, other.first_node_port + other.nodes))
    base = _FIRST_PORT
    while base + wanted < _LAST_PORT:
        block = range(base, base + wanted)
        busy = [port for port in block if port in taken or not _free(port)]
        if not busy:
            return dataclasses.replace(settings, ctld_port=base, dbd_port=base + 1, first_node_port=base + 2)
        base = busy[-1] + 1
    raise TestbedError(f"no {wanted} free ports in a row between {_FIRST_PORT} and {_LAST_PORT}")


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True


def _remove(layout: Layout, name: str, logs: bool) -> int:
    killed = namespace.end(mark(layout, name))
    remove_tree(layout.cluster(name))
    if logs:
        remove_tree(layout.log(name))
    return killed


def down(layout: Layout, name: str) -> None:
    """End a cluster, or what is left of one: no process, mount or file of it stays. Never fails on nothing.

    An `up` at work on the same cluster is ended too.
    """
    was = layout.cluster(name).exists()
    with taken_over(layout.lock(f"cluster-{name}")):
        killed = _remove(layout, name, logs=True)
    say(f"{name} is down" if was or killed else f"{name} was not up")


def down_all(layout: Layout) -> None:
    """End every cluster, and whatever builds that crashed left."""
    for name in layout.clusters():
        down(layout, name)
    build = layout.cache / "build"
    for entry in sorted(build.iterdir()) if build.is_dir() else []:
        # one that a command is at work in has its namespace, or is younger than it takes to start one
        if not namespace.marked(str(entry / "top")) and time.time() - entry.stat().st_mtime > 60:
            remove_tree(entry)


class Cluster:
    """A cluster that is up; TestbedError if it is not."""

    def __init__(self, layout: Layout, name: str) -> None:
        self.directory = layout.cluster(name)
        self.logs = layout.log(name)
        pid = namespace.find(mark(layout, name))
        if pid is None:
            raise TestbedError(f"{name} is not up: testbed up --name {name}")
        self.pid = pid
        self.record: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        loaded = dict(self.record["settings"])
        self.settings = Settings(
            **{**loaded, "conf": tuple(loaded["conf"]), "etc": tuple(loaded.get("etc", ()))}
        )

    def clock(self) -> dict[str, str]:
        """The environment that puts a process under the cluster's own clock; empty on real time."""
        with contextlib.suppress(FileNotFoundError):
            loaded: dict[str, str] = json.loads((self.directory / "clock.json").read_text())
            return loaded
        return {}

    def command(
        self,
        argv: list[str],
        env: dict[str, str] | None = None,
        user: str = "root",
        chdir: str = "/",
        clock: bool = True,
    ) -> list[str]:
        """The command line, run from outside, of `argv` inside."""
        merged = services.plain_environment(user) | (self.clock() if clock else {}) | (env or {})
        return namespace.enter(self.pid, argv, merged, user, chdir)


def only_cluster(layout: Layout, name: str | None) -> str:
    """The cluster meant: the one named, else by TIAS_TESTBED_NAME, or the only one there is."""
    name = name or os.environ.get("TIAS_TESTBED_NAME")
    if name:
        return name
    names = layout.clusters()
    if not names:
        raise TestbedError("no cluster is up: testbed up")
    if len(names) > 1:
        raise TestbedError(f"several clusters are up, say which: --name {' | '.join(names)}")
    return names[0]


def status(layout: Layout) -> Iterator[dict[str, Any]]:
    """One record per cluster: name, slurm, state (up, starting, dead), nodes by state, pyslurm or why not."""
    for name in layout.clusters():
        found: dict[str, Any] = {"name": name, "state": "dead", "logs": str(layout.log(name))}
        with contextlib.suppress(TestbedError, OSError, ValueError, TypeError):
            cluster = Cluster(layout, name)
            ready = (cluster.directory / "ready").exists()
            found |= dataclasses.asdict(cluster.settings) | {"state": "up" if ready else "starting"}
            found |= {"pid": cluster.pid, "pyslurm": cluster.record["pyslurm"]}
            found |= {"slurm_version": cluster.record.get("slurm_version", cluster.settings.slurm)}
            found |= {"no_pyslurm": cluster.record["no_pyslurm"], "checkout": cluster.record["checkout"]}
            if ready:
                found["node_states"] = services.node_states(cluster)
        yield found
