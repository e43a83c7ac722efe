"""What is left of each budget, for `status`: of a cycle's writes, of the requeues in an hour, of quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tias_slurm.anonymise import Names
    from tias_slurm.config import Config
    from tias_slurm.ledger.store import SqliteStore

Rows = list[tuple[str, str]]
# users and accounts on the page; --json has all
_MOST = 6


def budgets(
    config: Config, store: SqliteStore, left: dict[str, Any], now: float, names: Names | None
) -> dict[str, Any]:
    """Ready for JSON. `left`: what the daemon left of its last cycle; `names`: stand-ins."""
    from tias_slurm.ledger import quota
    from tias_slurm.ledger.requeue_log import RequeueLog

    log = RequeueLog()
    log.loads(store.get("requeues") or "")
    spent = log.last_hour(now)
    most, each = config.requeue.max_per_hour, config.requeue.max_per_user_per_hour
    total = spent.total()
    accounts = quota.left(store.get("quota") or "") if config.deadlines.quota_rate else {}

    def called(kind: Any, name: str) -> str:
        return name if names is None else names.of(kind, name)

    return {
        "writes_per_cycle": left.get("max_writes") or config.planner.max_writes_per_cycle,
        "writes_left_of_last_cycle": left.get("writes_left"),
        "requeue_mode": config.requeue.mode,
        "requeued_this_hour": total,
        "requeues_left_this_hour": None if most is None else max(0, most - total),
        "requeues_per_user_per_hour": each,
        "requeues_by_user": [
            {"user": called("user", user), "this_hour": n, "left": None if each is None else max(0, each - n)}
            for user, n in spent.most_common()
            if n > 0
        ],
        "quota_by_account": [
            {"account": called("account", name), "left_gpu_s": left_gpu_s, "of_gpu_s": of_gpu_s}
            for name, (left_gpu_s, of_gpu_s) in sorted(accounts.items(), key=lambda x: (x[1][0], x[0]))
        ],
    }


def rows(known: dict[str, Any]) -> Rows:
    """The same for the page."""
    from tias_slurm.cli.words import service

    words = f"{known['writes_per_cycle']} writes a cycle"
    if known["writes_left_of_last_cycle"] is not None:
        words += f", {known['writes_left_of_last_cycle']} left of the last"
    words += f"; requeue {known['requeue_mode']}"
    if known["requeue_mode"] != "off" or known["requeued_this_hour"]:
        left = known["requeues_left_this_hour"]
        words += f", {known['requeued_this_hour']} in the last hour"
        words += f", {left} left" if left is not None else ", no limit"
    made: Rows = [("budgets", words)]
    if users := known["requeues_by_user"]:
        some = [f"{u['user']} {u['this_hour']}{_left(u['left'])}" for u in users[:_MOST]]
        made.append(("requeued of", ", ".join(some) + _more(users)))
    if accounts := known["quota_by_account"]:
        some = [
            f"{a['account']} {service(a['left_gpu_s'])} of {service(a['of_gpu_s'])}" for a in accounts[:_MOST]
        ]
        made.append(("quota left", ", ".join(some) + _more(accounts)))
    return made


def _left(left: int | None) -> str:
    return "" if left is None else f" ({left} left)"


def _more(known: list[Any]) -> str:
    return f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
