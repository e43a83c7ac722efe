"""The command line: up, down, status, exec, shell, clean."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence

from bed import cluster
from bed.errors import TestbedError
from bed.layout import Layout, checked_name
from bed.mounts import remove_tree
from bed.proc import say
from bed.releases import DEFAULT_RELEASE, RELEASES
from bed.slurmconf import Settings
from bed.venvs import INNER_CHECKOUT

_PASSED = ("TERM", "COLUMNS", "LINES", "NO_COLOR", "CI")
_PASSED_PREFIXES = ("TIAS_", "PYTEST_", "HYPOTHESIS_")


def _count(low: int, high: int) -> object:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not between {low} and {high}")
        return value

    parse.__name__ = "number"
    return parse


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="testbed", description="A whole Slurm cluster on this machine (docs/testbed.md)."
    )
    commands = top.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring a cluster up and wait until all nodes are idle")
    up.add_argument("--slurm", choices=sorted(RELEASES), default=DEFAULT_RELEASE)
    up.add_argument("--name", help="default: slurm and the release's digits, as slurm2605")
    up.add_argument("--nodes", type=_count(1, 256), default=8)
    up.add_argument("--gpus", type=_count(0, 64), default=8, help="emulated GPUs of each node")
    up.add_argument("--accounting", action="store_true", help="slurmdbd, MariaDB, accounts, users and QOS")
    up.add_argument(
        "--time-scale", type=_count(1, 100), default=1, metavar="N", help="run the clock N times as fast"
    )
    up.add_argument("--backup", action="store_true", help="two slurmctlds, on ctl1 and ctl2")
    up.add_argument("--pyslurm", action=argparse.BooleanOptionalAction, default=True)
    up.add_argument(
        "--priority", choices=("multifactor", "basic"), default="multifactor", help="PriorityType"
    )
    up.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a line of slurm.conf; repeatable"
    )
    up.add_argument(
        "--etc", action="append", default=[], metavar="FILE", help="a file to copy to /etc/slurm; repeatable"
    )
    down = commands.add_parser("down", help="end a cluster; safe at any time")
    down.add_argument("--name")
    down.add_argument("--all", action="store_true", help="every cluster, and what crashed builds left")
    status = commands.add_parser("status", help="what is up")
    status.add_argument("--json", action="store_true")
    for name, text in (("exec", "run a command inside"), ("shell", "a shell inside")):
        inner = commands.add_parser(name, help=text)
        inner.add_argument("--name")
        inner.add_argument("--user", default="root", help="alice, bob, carol, tias or root")
        inner.add_argument("--chdir", default=INNER_CHECKOUT, help=f"default: the checkout, {INNER_CHECKOUT}")
        inner.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
        inner.add_argument(
            "--real-time", action="store_true", help="not under the cluster's accelerated clock"
        )
        if name == "exec":
            inner.add_argument("argv", nargs="*", metavar="-- CMD")
    commands.add_parser("clean", help="down --all, then remove the cache")
    return top


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0, 1 after a line that tells the failure, or that of the inner command."""
    words = list(sys.argv[1:] if words is None else words)
    # what stands after the first -- is the inner command's, whatever it looks like
    cut = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:cut])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if os.geteuid() != 0:
            raise TestbedError("root is needed, for namespaces, mounts and device files")
        if cut < len(words) and args.command != "exec":
            raise TestbedError(f"{args.command} takes no command: testbed exec -- CMD")
        if args.command == "exec":
            args.argv += words[cut + 1 :]
            if not args.argv:
                raise TestbedError("what to run? testbed exec -- CMD")
        return _run(args, Layout.from_environment())
    except TestbedError as error:
        say(str(error))
    except BrokenPipeError:
        pass  # whoever read our output has enough
    except OSError as error:
        say(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _run(args: argparse.Namespace, layout: Layout) -> int:
    if args.command == "up":
        default = os.environ.get("TIAS_TESTBED_NAME") or f"slurm{args.slurm.replace('.', '')}"
        name = checked_name(args.name or default)
        settings = Settings(
            name=name,
            slurm=args.slurm,
            nodes=args.nodes,
            gpus=args.gpus,
            accounting=args.accounting,
            time_scale=args.time_scale,
            memory_mb=_memory_mb(),
            priority=args.priority,
            conf=tuple(args.conf),
            etc=tuple(args.etc),
            backup=args.backup,
        )
        cluster.up(layout, settings, args.pyslurm)
    elif args.command == "down":
        _down(args, layout)
    elif args.command == "status":
        _status(args, layout)
    elif args.command == "clean":
        cluster.down_all(layout)
        remove_tree(layout.cache)
    else:
        return _enter(args, layout)
    return 0


def _memory_mb() -> int:
    """RealMemory of each node: a slurmd refuses more than the machine has."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return min(16000, have * 9 // 10)


def _down(args: argparse.Namespace, layout: Layout) -> None:
    if args.all:
        cluster.down_all(layout)
    elif args.name or layout.clusters():
        cluster.down(layout, cluster.only_cluster(layout, args.name))
    else:
        say("nothing is up")


def _status(args: argparse.Namespace, layout: Layout) -> None:
    found = list(cluster.status(layout))
    if args.json:
        print(json.dumps(found, indent=1))
        return
    if not found:
        print("nothing is up")
    for one in found:
        if "slurm" not in one:
            print(f"{one['name']}: {one['state']}; testbed down --name {one['name']}; logs: {one['logs']}")
            continue
        nodes = ", ".join(f"{count} {state}" for state, count in (one.get("node_states") or {}).items())
        print(f"{one['name']}: {one['state']}, Slurm {one['slurm_version']}, nodes: {nodes or 'no answer'}")
        accounting = "on" if one["accounting"] else "off"
        print(f"  {one['gpus']} GPUs a node, accounting {accounting}, clock x{one['time_scale']}")
        print(f"  pyslurm: {one['pyslurm'] or 'none: ' + one['no_pyslurm']}")
        print(f"  logs: {one['logs']}, checkout: {one['checkout']}, process 1: {one['pid']}")


def _enter(args: argparse.Namespace, layout: Layout) -> int:
    inside = cluster.Cluster(layout, cluster.only_cluster(layout, args.name))
    env = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
    for pair in args.env:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise TestbedError(f"--env {pair!r}: write NAME=VALUE")
        env[name] = value
    argv = args.argv if args.command == "exec" else ["/bin/bash"]
    words = inside.command(argv, env, args.user, args.chdir, clock=not args.real_time)
    sys.stdout.flush()
    os.execvp(words[0], words)
