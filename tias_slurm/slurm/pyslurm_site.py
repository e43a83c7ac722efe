"""pyslurm's nodes -> columns, its configuration -> what we know of the site. Imports nothing of pyslurm's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tias_slurm.gpu_weights import kinds
from tias_slurm.slurm.command_parse import pieces_of
from tias_slurm.slurm.pyslurm_pipe import Column
from tias_slurm.slurm.pyslurm_rows import floats, ints


def node_columns(nodes: Iterable[Any]) -> dict[str, Column]:
    """Columns of RawNodes, by name; partitions and features as comma lists."""
    rows = []
    for node in nodes:
        try:
            rows.append(
                (
                    node.name,
                    node.state or "UNKNOWN",
                    _gres_gpus(node.configured_gres),
                    _gres_gpus(node.allocated_gres),
                    node.effective_cpus or node.total_cpus,
                    node.allocated_cpus,
                    float(node.real_memory or 0) - float(node.memory_reserved_for_system or 0),
                    float(node.allocated_memory or 0),
                    ",".join(node.partitions or []),
                    _gres_kinds(node.configured_gres),
                    pieces_of(n.split(":")[0] for n in node.configured_gres or ()),
                    ",".join(node.active_features or []),
                    node.threads_per_core or 1,
                )
            )
        except Exception:  # noqa: S112  # a node that cannot be read is one that cannot be planned with
            continue
    names = (
        "name", "state", "gpus", "gpus_used", "cpus", "cpus_used", "mem_mb", "mem_used_mb", "partitions",
        "gpu_types", "other_gres", "features", "threads",
    )  # fmt: skip
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    made: dict[str, Column] = {
        name: ints(columns[name]) for name in ("gpus", "gpus_used", "cpus", "cpus_used", "threads")
    }
    made |= {name: floats(columns[name]) for name in ("mem_mb", "mem_used_mb")}
    texts = ("name", "state", "partitions", "gpu_types", "other_gres", "features")
    made |= {name: list(columns[name]) for name in texts}
    return made


def _gres_kinds(gres: Any) -> str:
    """Types of the same GPUs."""
    typed = {name[4:]: int(count) for name, count in (gres or {}).items() if name.startswith("gpu:")}
    return kinds(typed, _gres_gpus(gres))


def _gres_gpus(gres: Any) -> int:
    """GPUs of `{"gpu": 8}` or `{"gpu:a100": 8}`; where both are there, the first counts all."""
    untyped = typed = 0
    for name, count in (gres or {}).items():
        if name == "gpu":
            untyped = int(count)
        elif name.startswith("gpu:"):
            typed += int(count)
    return max(untyped, typed)


def facts(config: Any) -> dict[str, Any]:
    """SiteFacts as a dict; texts as scontrol prints them, but "" for its (null)."""

    def listed(values: Iterable[str]) -> str:
        return ",".join(values)

    def options(values: Any) -> str:
        return ",".join(k if v is True else f"{k}={v}" for k, v in (values or {}).items())

    tres = (config.priority_weight_tres or {}).values()
    return {
        "version": config.version or "",
        "cluster": config.cluster_name or "",
        "priority_type": config.priority_type or "",
        "priority_flags": listed(config.priority_flags),
        "priority_weights": {
            "Age": int(config.priority_weight_age or 0),
            "Assoc": int(config.priority_weight_assoc or 0),
            "Fairshare": int(config.priority_weight_fair_share or 0),
            "JobSize": int(config.priority_weight_job_size or 0),
            "Partition": int(config.priority_weight_partition or 0),
            "QOS": int(config.priority_weight_qos or 0),
            "TRES": sum(int(float(value)) for value in tres),
        },
        "site_factor_plugin": config.priority_site_factor_plugin or "",
        "scheduler_parameters": options(config.scheduler_parameters),
        "slurmctld_parameters": options(config.slurmctld_parameters),
        "preempt_type": config.preempt_type or "",
        "preempt_mode": config.preempt_mode or "",
        "private_data": listed(config.private_data) or "none",
        "accounting_store_flags": listed(config.accounting_store_flags).lower(),
        "slurm_user": config.slurm_user_name or "",
        "state_save_location": config.state_save_location or "",
        "min_job_age_s": int(config.min_job_age or 0),
        "message_timeout_s": int(config.message_timeout or 0),
        "preempt_exempt_time_s": float(config.preempt_exempt_time or 0),
        "tracked_tres": listed(config.accounting_storage_tres or ()),
    }
