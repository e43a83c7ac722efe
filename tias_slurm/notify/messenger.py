"""Telling owners of jobs: what a cycle of the daemon does about messages. It sends none itself, waits for
nobody, and whatever goes wrong with messages ends no cycle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tias_slurm.config import Config
from tias_slurm.jobs import PENDING, Bools, Floats, Ints
from tias_slurm.ledger.claim_life import REASONS as UNACCEPTED
from tias_slurm.ledger.store import LedgerError, SqliteStore
from tias_slurm.ledger.table import CLAIM, COUNTS, FIRST, REQUEUED_AT, REQUEUES
from tias_slurm.notify import words as notice_words
from tias_slurm.notify.book import NoticeBook, Row
from tias_slurm.notify.due import (
    IMPOSSIBLE,
    REFUSED,
    REQUEUE,
    Kept,
    Key,
    Notice,
    Standing,
    due,
    left_this_hour,
)
from tias_slurm.notify.due import requeued as was_requeued
from tias_slurm.notify.senders import SURELY_NOT, TROUBLES, Courier, Letter, Mail, Output, Send
from tias_slurm.notify.words import Message
from tias_slurm.service.live_cycle import LiveCycle
from tias_slurm.slurm.live_cluster import job_names

# told of each message: its reason, how it went, what became of it
Count = Callable[[str, str, str], None]
_TIDY_S = 86_400.0


class Messenger:
    """Who is told what in one ledger. `settle`, then `cycle` after each good cycle, `close` at the end."""

    def __init__(self, log: Any, count: Count, may_send: Callable[[], str]) -> None:
        """`may_send`: why nothing may be sent now; "": it may. Called in another thread."""
        self._log, self._count = log, count
        self._courier = Courier(may_send)
        self._config: Config | None = None
        self._book: NoticeBook | None = None
        self._send: Send | None = None
        self._enforce = False
        self._rows: dict[Key, Row] | None = None  # as the ledger has them; None: to be read
        self._said = ""
        self._tidied = -_TIDY_S

    def settle(self, config: Config, store: SqliteStore, *, enforce: bool) -> None:
        """Go on with these settings and this ledger."""
        n, limit = config.notify, config.daemon.rpc_timeout_s
        self._config, self._book, self._enforce = config, NoticeBook(store), enforce
        self._send = None
        if n.how == "output":
            self._send = Output(limit, 1.0 / config.daemon.writes_per_second)
        elif n.how == "mail":
            self._send = Mail(n.mail_prog, n.mail_domain, n.timeout_s, limit)
        self._rows, self._said = None, ""
        self._courier.unblock()

    def cycle(self, made: LiveCycle, *, paused: bool) -> int:
        """After a good cycle; how many messages wait. Never raises."""
        try:
            return self._cycle(made, paused)
        except LedgerError as error:
            self._trouble(str(error))
        except Exception as error:
            # a fault of ours in here must cost nobody his cycle
            self._trouble(f"internal error: {type(error).__name__}")
            self._log.exception("messages failed")
        self._rows = None  # what is in memory may not be what is kept
        return 0

    def close(self, finish_s: float = 0.0) -> None:
        """Send no more, after `finish_s` at the latest. What was not begun is left to the next daemon. Never
        raises."""
        self._courier.stop(finish_s)
        try:
            if self._book is not None:
                self._take_in()
        except LedgerError as error:
            self._trouble(str(error))

    # -- how it is done

    def _cycle(self, made: LiveCycle, paused: bool) -> int:
        config, book, observed = self._config, self._book, made.cluster.observed
        if config is None or book is None:
            return 0
        self._take_in()
        if config.notify.how == "off" or observed is None:
            return 0
        rows, now = self._known(), observed.snapshot.now
        if not paused and not self._courier.blocked:
            kept = [row.kept for row in rows.values()]
            room = left_this_hour(kept, now, config.notify.max_per_hour)
            if self._enforce:
                room = min(room, self._courier.room)
            self._act(made, due(_standing(made, config), kept, room), now)
        self._tidy(observed.snapshot.jobs.job_id, observed.snapshot.jobs.array_id)
        return sum(row.kept.waits for row in rows.values())

    def _act(self, made: LiveCycle, step: Any, now: float) -> None:
        """Keep what a step comes to, then hand over what is to be sent: after a crash none goes twice."""
        rows, book, config, observed = self._known(), self._book, self._config, made.cluster.observed
        assert book is not None
        assert config is not None
        assert observed is not None
        changed: list[Row] = []
        letters: list[Letter] = []
        how = config.notify.how
        for key in step.drop:
            old = rows[key]
            changed.append(old._replace(kept=old.kept._replace(result="dropped"), message="it had ended"))
            self._count(key[1], how, "dropped")
        gone = set(step.forget)
        for notice in step.wait:
            kept = Kept(notice.key, now, notice.about, math.nan)
            changed.append(Row(kept, how, 0, "", _text(made, config, notice)))
        for notice in step.send:
            before = None if notice.key in gone else rows.get(notice.key)
            text = _text(made, config, notice, before.text if before is not None else None)
            since = now if before is None else before.kept.time
            record = int(observed.snapshot.jobs.job_id[notice.row])
            result = "" if self._enforce else "dry run"
            kept = Kept(notice.key, since, notice.about, now, result)
            changed.append(Row(kept, how, record, "", text))
            user = observed.snapshot.users[int(observed.snapshot.jobs.user[notice.row])]
            letters.append(Letter(notice.key, record, user, text.subject, text.line, text.body))
        if gone:
            book.forget(gone)
            for key in gone:
                rows.pop(key, None)
        if changed:
            book.keep(changed)
            rows.update({row.kept.key: row for row in changed})
        for letter in letters:
            word = "notify" if self._enforce else "would notify"
            self._log.info(word, job=letter.key[0], record=letter.job_id, reason=letter.key[1], how=how)
            if not self._enforce:
                self._count(letter.key[1], how, "dry run")
            elif self._send is not None:
                self._courier.hand(self._send, letter)
        if step.held_back:
            self._log.info("messages held back", messages=step.held_back)

    def _take_in(self) -> None:
        """Note what became of what was handed over."""
        changed: list[Row] = []
        results = self._courier.results()
        if not results:
            return
        rows, book, config = self._known(), self._book, self._config
        assert book is not None
        assert config is not None
        for sent in results:
            row = rows.get(sent.letter.key)
            if row is None:
                continue
            self._count(sent.letter.key[1], row.how or config.notify.how, sent.result)
            kept = row.kept._replace(result=sent.result)
            if sent.result in SURELY_NOT:
                kept = row.kept._replace(taken_up=math.nan, result="")
            changed.append(row._replace(kept=kept, message=sent.message))
            if sent.result in TROUBLES:
                self._trouble(sent.message)
            elif sent.result not in ("sent", "gone", "not sent"):
                self._log.warning(
                    "notify failed",
                    job=sent.letter.key[0],
                    reason=sent.letter.key[1],
                    result=sent.result,
                    message=sent.message,
                )
        book.keep(changed)
        rows.update({row.kept.key: row for row in changed})

    def _known(self) -> dict[Key, Row]:
        if self._rows is None:
            assert self._book is not None
            self._rows = {row.kept.key: row for row in self._book.all()}
        return self._rows

    def _tidy(self, ids: Ints, arrays: Ints) -> None:
        """Once a day: drop what is older than keep_days, but of jobs that are still here."""
        assert self._config is not None
        assert self._book is not None
        if time.monotonic() - self._tidied < _TIDY_S:
            return
        self._tidied = time.monotonic()
        before = time.time() - 86_400.0 * self._config.daemon.keep_days
        here = frozenset(ids.tolist()) | frozenset(arrays.tolist())
        rows = self._known()
        old = [key for key, row in rows.items() if row.kept.time < before and key[0] not in here]
        if old:
            self._book.forget(old)
            for key in old:
                del rows[key]

    def _trouble(self, message: str) -> None:
        """Say it, once as long as it stays so."""
        if message != self._said:
            self._log.error("messages", message=message)
        self._said = message


def _standing(made: LiveCycle, config: Config) -> Standing:
    """What there is to say after a good cycle."""
    observed, ledger = made.cluster.observed, made.ledger
    assert observed is not None
    jobs, (_, t) = observed.snapshot.jobs, ledger.table
    refusals = made.cluster.claims.refusals
    refused = np.array([bool(refusals(job)) for job in jobs.job_id.tolist()], dtype=np.bool_)
    impossible = np.zeros(len(jobs), dtype=np.bool_)
    if made.controller.seen is not None:
        impossible = made.controller.seen.ranking.fallen & (jobs.state == PENDING)
    claim: Floats = np.where(t[:, COUNTS] > 0, t[:, CLAIM], np.nan)
    reachable = np.ones(len(jobs), dtype=np.bool_)
    if config.notify.how == "output":
        raw, rows = made.cluster.raw, observed.rows.tolist()
        assert raw is not None
        reachable = np.array([raw.state[r] == "RUNNING" and not raw.flags[r] for r in rows], dtype=np.bool_)
    return Standing(
        jobs,
        t[:, FIRST],
        claim,
        observed.ours,
        refused | (ledger.unaccepted > 0),
        impossible & np.isfinite(claim),
        was_requeued(t[:, REQUEUES], t[:, REQUEUED_AT], jobs.submit) | _by_slurm(made),
        reachable,
    )


def _by_slurm(made: LiveCycle) -> Bools:
    """Which jobs Slurm's own preemption has requeued, as far as that is known. Shape (n,)."""
    (ids, t), reruns = made.ledger.table, made.ledger.reruns
    if reruns is None:
        return np.zeros(len(ids), dtype=np.bool_)
    return reruns.preempted(ids, t[:, FIRST])


def _text(made: LiveCycle, config: Config, notice: Notice, before: Message | None = None) -> Message:
    """What is said. `before`: what was to be said when it had to wait."""
    job, reason = notice.key
    key, row = config.deadlines.key, notice.row
    observed, raw = made.cluster.observed, made.cluster.raw
    assert observed is not None
    assert raw is not None
    if reason == REQUEUE:
        if before is not None:
            return before  # the requeues may be another's matter since
        name = job_names(raw, [int(observed.rows[row])])[0]
        return notice_words.requeue(name, by_slurm=bool(_by_slurm(made)[row]))
    if reason == REFUSED:
        refusals = made.cluster.claims.refusals(int(observed.snapshot.jobs.job_id[row]))
        return notice_words.refused(str(job), key, refusals, UNACCEPTED[int(made.ledger.unaccepted[row])])
    assert reason == IMPOSSIBLE
    if before is not None:
        return before
    behind = made.policy.settings.overdue == "last"
    passed = notice.about <= observed.snapshot.now
    return notice_words.impossible(str(job), key, passed=passed, behind=behind)
