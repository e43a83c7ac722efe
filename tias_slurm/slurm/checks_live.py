"""Does this site's Slurm let the daemon do what its settings ask for? Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tias_slurm.config import Config
from tias_slurm.slurm import checks_account, checks_conf
from tias_slurm.slurm.finding import Finding
from tias_slurm.slurm.live import SiteFacts
from tias_slurm.slurm.probes import Probes

Check = Callable[[Config, SiteFacts, Probes], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    checks_account.versions,
    checks_account.account,
    checks_account.rights,
    checks_account.root,
    checks_account.private_data,
    checks_conf.lever,
    checks_conf.flags,
    checks_conf.tiers,
    checks_conf.in_scope,
    checks_conf.accounting,
    checks_conf.gpu_weights,
    checks_conf.preemption,
    checks_conf.rate,
    checks_conf.times,
    checks_account.state_dir,
    checks_account.user_export,
    checks_account.controllers,
    checks_account.notify,
)


def judge(config: Config, facts: SiteFacts, probes: Probes) -> list[Finding]:
    """All findings, in the order of `CHECKS`."""
    return [finding for check in CHECKS for finding in check(config, facts, probes)]
