"""The configuration files of a cluster, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bed.errors import TestbedError

LOGS = "/var/log/slurm"
HOST = "testbed"
# with a backup: two controllers, each on a host name and an address of its own
CONTROLLERS = {"ctl1": "127.0.1.1", "ctl2": "127.0.1.2"}
# these may stand several times, so --conf adds a line instead of replacing one
_REPEATED = ("nodename", "partitionname", "nodeset", "downnodes", "include", "slurmctldhost")


@dataclass(frozen=True)
class Settings:
    """What a cluster is made of. time_scale: simulated seconds per real second; memory_mb: of each node."""

    name: str
    slurm: str
    nodes: int = 8
    gpus: int = 8
    accounting: bool = False
    time_scale: int = 1
    ctld_port: int = 17000
    dbd_port: int = 17001
    first_node_port: int = 17002
    memory_mb: int = 4000
    priority: str = "multifactor"
    conf: tuple[str, ...] = field(default=())  # Key=Value lines of the user's
    etc: tuple[str, ...] = field(default=())  # files to be copied to /etc/slurm
    backup: bool = False  # a second controller

    @property
    def cluster_name(self) -> str:
        """ClusterName: the name without what a database table's name may not hold."""
        return "".join(c for c in self.name if c.isalnum())

    @property
    def cpus(self) -> int:
        """CPUs of each node: two for each GPU, 16 at least."""
        return max(16, 2 * self.gpus)


def node_range(first: int, last: int) -> str:
    """Slurm's expression for nodes n<first> to n<last>."""
    return f"n{first}" if first == last else f"n[{first}-{last}]"


def _merged(lines: list[tuple[str, str]], extra: Sequence[str]) -> list[tuple[str, str]]:
    for line in extra:
        key, equals, value = line.partition("=")
        if not equals or not key.strip().isidentifier() or "\n" in line:
            raise TestbedError(f"--conf {line!r}: write Key=Value as in slurm.conf(5)")
        key, value = key.strip(), value.strip()
        if key.lower() not in _REPEATED:
            lines = [(name, old) for name, old in lines if name.lower() != key.lower()]
        lines = [*lines, (key, value)]
    return lines


def _controllers(s: Settings) -> dict[str, str]:
    return CONTROLLERS if s.backup else {HOST: "127.0.0.1"}


def slurm_conf(s: Settings) -> str:
    """slurm.conf(5): one host plays all nodes, each with a slurmd on a port of its own."""
    ports = (
        f"{s.first_node_port}" if s.nodes == 1 else f"[{s.first_node_port}-{s.first_node_port + s.nodes - 1}]"
    )
    scaled = s.time_scale > 1
    lines = [
        ("ClusterName", s.cluster_name),
        *(("SlurmctldHost", f"{host}({address})") for host, address in _controllers(s).items()),
        ("SlurmctldPort", str(s.ctld_port)),
        # nothing listens beyond this machine
        ("CommunicationParameters", "NoInAddrAny,NoCtldInAddrAny"),
        ("SlurmUser", "root"),
        ("SlurmdUser", "root"),
        ("AuthType", "auth/munge"),
        ("CredType", "cred/munge"),
        ("StateSaveLocation", "/var/spool/slurmctld"),
        ("SlurmdSpoolDir", "/var/spool/slurmd-%n"),
        # one that starts ends the one that the file names: each of two has a directory of its own there
        ("SlurmctldPidFile", "/run/slurmctld/slurmctld.pid" if s.backup else "/run/slurmctld.pid"),
        ("SlurmdPidFile", "/run/slurmd-%n.pid"),
        ("SlurmctldLogFile", f"{LOGS}/slurmctld.log"),
        ("SlurmdLogFile", f"{LOGS}/slurmd-%n.log"),
        ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/none"),
        ("JobAcctGatherType", "jobacct_gather/none"),
        ("MpiDefault", "none"),
        ("MailProg", "/bin/true"),
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core"),
        ("GresTypes", "gpu"),
        ("JobRequeue", "1"),
        ("ReturnToService", "2"),
        # emulated nodes may claim more than this machine has
        ("SlurmdParameters", "config_overrides"),
        ("SchedulerParameters", "bf_continue,bf_interval=5,sched_interval=10"),
        ("PriorityType", f"priority/{s.priority}"),
    ]
    if s.priority == "multifactor":
        lines += [("PriorityCalcPeriod", "1"), ("PriorityWeightAge", "1000"), ("PriorityMaxAge", "7-0")]
    if s.accounting:
        lines += [
            ("AccountingStorageType", "accounting_storage/slurmdbd"),
            ("AccountingStorageHost", "127.0.0.1"),
            ("AccountingStoragePort", str(s.dbd_port)),
            ("AccountingStorageTRES", "gres/gpu"),
            ("AccountingStorageEnforce", "associations,limits,qos"),
            ("AccountingStoreFlags", "job_comment"),
        ]
        if s.priority == "multifactor":
            lines += [("PriorityWeightFairshare", "1000"), ("PriorityWeightQOS", "2000")]
    # limits in seconds are of the cluster's own clock, and a busy machine answers no faster for it
    lines += [("MessageTimeout", "100" if scaled else "20"), ("TCPTimeout", "60" if scaled else "10")]
    if s.backup:
        lines += [("SlurmctldTimeout", "10")]
    if scaled:
        lines += [("SlurmdTimeout", "3600"), ("BatchStartTimeout", "600")]
    gres = f" Gres=gpu:{s.gpus}" if s.gpus else ""
    shape = f"CPUs={s.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={s.cpus} ThreadsPerCore=1"
    lines += [
        (
            "NodeName",
            f"{node_range(1, s.nodes)} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} "
            f"{shape} RealMemory={s.memory_mb}{gres} State=UNKNOWN",
        ),
        ("PartitionName", f"gpu Nodes={node_range(1, s.nodes)} Default=YES MaxTime=UNLIMITED State=UP"),
        ("PartitionName", f"debug Nodes={node_range(1, max(1, s.nodes // 2))} MaxTime=UNLIMITED State=UP"),
    ]
    return "".join(f"{key}={value}\n" for key, value in _merged(lines, s.conf))


def gres_conf(s: Settings) -> str:
    """gres.conf(5): emulated GPUs need files, a bare Count would drain the nodes."""
    if not s.gpus:
        return ""
    files = "/dev/tias/gpu0" if s.gpus == 1 else f"/dev/tias/gpu[0-{s.gpus - 1}]"
    return f"NodeName={node_range(1, s.nodes)} Name=gpu File={files}\n"


def cgroup_conf(s: Settings) -> str:
    """cgroup.conf(5): nothing here uses cgroups; 22.05 has no "disabled", and its v1 asks for none."""
    return f"CgroupPlugin={'cgroup/v1' if s.slurm == '22.05' else 'disabled'}\n"


def slurmdbd_conf(s: Settings) -> str:
    """slurmdbd.conf(5), to be kept at mode 0600."""
    return f"""AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={s.dbd_port}
SlurmUser=root
PidFile=/run/slurmdbd.pid
LogFile={LOGS}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
MessageTimeout={"100" if s.time_scale > 1 else "20"}
"""


def hosts() -> str:
    """/etc/hosts inside."""
    others = "".join(f"{address} {host}\n" for host, address in CONTROLLERS.items())
    return f"127.0.0.1 localhost {HOST}\n{others}"
