"""Which of several daemons acts: the one beside the controller in charge, for as long as it holds the lease.

The lease is a small file that all daemons see. Nobody compares clocks of two machines: a holder trusts its
own clock for `hold_s` after it began to renew, everybody else waits until the file has not changed for
`lasts_s` (hold_s and a margin) by theirs. So the holder has stopped writing, the write under way included,
before the lease can be taken. Each taking raises `term`, which the ledger keeps too: what an earlier holder
still wants to note there is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from tias_slurm.errors import InputError, printable
from tias_slurm.own_files import hint, open_own, same_place

VERSION = 1  # of the file
ALONE = "-"  # where no lease decides: the daemon of the host that is named goes on without one
_MOST_BYTES = 10_000
_MOST_MOVES = 10
# a lock on the lease is held for the time of a read and a write, s
_LOCK_WAIT_S = 5.0
# the longest write to the controller is a look, the change and another look: so many calls
CALLS_PER_WRITE = 2


@dataclass(frozen=True)
class Timing:
    """How long a lease holds. Seconds."""

    hold_s: float  # the holder may write for so long after it began to renew
    lasts_s: float  # others may take what has not changed for so long

    @property
    def poll_s(self) -> float:
        """How often the lease is renewed, or looked at."""
        return self.hold_s / 5


@dataclass(frozen=True)
class Lease:
    """What is in the file."""

    holder: str = ""  # host:pid:start; "": given back
    host: str = ""
    term: int = 0  # rises with each taking
    beat: int = 0  # rises with each renewal
    lasts_s: float = 0.0
    expires: float = 0.0  # epoch s, for people: nobody decides by it
    ledger: str = ""  # identity of the ledger that whoever enforced last kept
    sent: int = 0  # how many bursts of writes that ledger had begun; 0: nothing was ever written
    moved: str = ""  # the lease by which it is decided from now on, or ALONE; "": this one


@dataclass(frozen=True)
class Knowledge:
    """What a daemon knows of the values that were written: its ledger, and up to which burst."""

    ledger: str
    sent: int
    term: int = 0  # the last in which it was led


def timing(interval_s: float, rpc_timeout_s: float) -> Timing:
    """How long leases hold: taken within two intervals, so that a new leader acts within three.

    Raises InputError if the settings leave no room for that.
    """
    margin = CALLS_PER_WRITE * rpc_timeout_s
    if margin > interval_s:
        raise InputError(
            f"daemon.lease_path needs a daemon.rpc_timeout_s of at most half of cycle.interval_s, here "
            f"{interval_s / CALLS_PER_WRITE:g}: a write under way must end before another daemon takes over; "
            f"got {rpc_timeout_s:g}"
        )
    # clocks may run apart by 1 %
    return Timing(interval_s, interval_s + 1.01 * max(margin, 0.5 * interval_s))


def clock() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseFile:
    """The lease as one daemon sees it. Not for two threads at once."""

    def __init__(self, path: str, timing: Timing, *, enforce: bool, now: Callable[[], float] = clock) -> None:
        """`enforce`: whether we would write anything. `now`: a clock, s."""
        self.path, self.timing, self.enforce, self._now = path, timing, enforce, now
        self.host = this_host()
        self.me = f"{self.host}:{os.getpid()}:{secrets.token_hex(6)}"
        self.term = 0  # of our last taking
        self.seen = Lease()
        self._seen_since = now()
        self._valid_until = -math.inf

    @property
    def held(self) -> bool:
        """Whether we may write now."""
        return self._now() < self._valid_until

    @property
    def free(self) -> bool:
        """Whether what was seen last may be taken: given back, or silent for too long."""
        if self.seen.moved:
            return self.seen.moved == ALONE and self.seen.host == self.host
        return not self.seen.holder or self._now() - self._seen_since >= self.seen.lasts_s

    def look(self) -> Lease:
        """The lease as it stands. Raises InputError for a file that cannot be read, or is no lease."""
        lease = _read(self.path)
        if lease != self.seen:
            self.seen, self._seen_since = lease, self._now()
        return lease

    def take(self, knowledge: Knowledge | None) -> bool:
        """Take a free lease; False: it is not. `knowledge`: of the ledger that we would keep; None: new.

        Raises InputError if we must not: what the last leader wrote is not in our ledger, or the file cannot
        be used."""
        with _locked(self.path):
            began = self._now()
            lease = self.look()
            if not self.free:
                return False
            problem = unknown(lease, knowledge) if self.enforce else ""
            if problem:
                raise InputError(problem)
            known = knowledge or Knowledge(lease.ledger, lease.sent)
            self.term = max(lease.term, known.term) + 1
            kept = (
                known if self.enforce else lease
            )  # a dry run wrote nothing: what was there before stays true
            self._write(
                Lease(self.me, self.host, self.term, 0, self.timing.lasts_s, 0.0, kept.ledger, kept.sent)
            )
            self._valid_until = began + self.timing.hold_s
        return True

    def renew(self, knowledge: Knowledge | None = None) -> bool:
        """Renew ours; `knowledge`: our ledger, when something is about to be sent. False: it is no longer
        ours. Raises InputError if the file cannot be used: it may still be ours then."""
        with _locked(self.path):
            began = self._now()
            lease = self.look()
            if not self.term or lease.holder != self.me or lease.term != self.term:
                self.drop()
                return False
            if knowledge is not None and self.enforce:
                lease = replace(lease, ledger=knowledge.ledger, sent=knowledge.sent)
            self._write(replace(lease, beat=lease.beat + 1, lasts_s=self.timing.lasts_s))
            self._valid_until = began + self.timing.hold_s
        return True

    def drop(self) -> None:
        """Stop writing; who waits for the lease goes on waiting."""
        self._valid_until = -math.inf

    def give_back(self) -> None:
        """Let the next one begin at once: nothing of ours is under way any more. Never raises."""
        self.drop()
        if not self.term:
            return
        with contextlib.suppress(InputError), _locked(self.path):
            lease = self.look()
            if lease.holder == self.me and lease.term == self.term:
                self._write(replace(lease, holder="", expires=round(time.time(), 1)))
        self.term = 0

    # -- when another file, or none, decides from now on

    def forward(self, to: str) -> None:
        """Send all who wait for this lease to another one, "": to none; it is ours, or free.

        Raises InputError if it is another's, or went elsewhere."""
        with _locked(self.path):
            lease = self.look()
            if lease.moved:
                where, host = end_of(self.path)
                there = peek(to) if where == ALONE and to else None
                if same(where, to or ALONE) or (there is not None and there.host == host):
                    return
                raise InputError(went(self.path, lease))
            ours = self.term and lease.holder == self.me and lease.term == self.term
            if not ours and not self.free:
                raise InputError(
                    f"[daemon] lease_path: {printable(lease.host, 64)} leads by the old one; reload the "
                    "daemon there first, then this one"
                )
            self.drop()
            moved = os.path.abspath(to) if to else ALONE
            self._write(replace(lease, holder="", host=self.host, moved=moved, expires=round(time.time(), 1)))
        self.term = 0

    def inherit(self, before: Lease, old: str) -> Lease:
        """Have here what the lease at `old` knew ("": there was none), unless somebody is here already; what
        was here, for `put_back`. Raises InputError where the lead went elsewhere from here."""
        with _locked(self.path):
            former = self.look()
            if former.holder:
                return former
            if former.moved:
                where, host = end_of(self.path)
                if not (same(where, old) if old and where != ALONE else where == ALONE and host == self.host):
                    raise InputError(went(self.path, former))
            known = former
            if not former.sent or former.ledger == before.ledger:
                known = replace(former, ledger=before.ledger, sent=max(before.sent, former.sent))
            known = replace(known, moved="", term=max(before.term, former.term))
            if known != former:
                self._write(known)
        return former

    def put_back(self, former: Lease) -> None:
        """After `inherit`, for who does not come after all. Never raises."""
        with contextlib.suppress(InputError, OSError), _locked(self.path):
            if self.look().holder in ("", self.me):
                if former == Lease():
                    os.unlink(self.path)
                else:
                    self._write(former)

    def _write(self, lease: Lease) -> None:
        if lease.holder:
            lease = replace(lease, expires=round(time.time() + lease.lasts_s, 1))
        text = json.dumps({"version": VERSION, **asdict(lease)}) + "\n"
        temp = f"{self.path}.{self.me.replace(':', '.')}.tmp"
        try:
            file = open_own(temp, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(file, text.encode())
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(temp, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise _refusal(self.path, error) from None
        self.seen, self._seen_since = lease, self._now()


def this_host() -> str:
    """This host's name as SlurmctldHost gives it: without the domain."""
    return socket.gethostname().partition(".")[0]


def unknown(lease: Lease, knowledge: Knowledge | None) -> str:
    """Why a daemon that knows so much must not write after the holders of a lease; "": it may.

    What another wrote would pass for the users' own values.
    """
    if not lease.sent:
        return ""
    same = knowledge is not None and knowledge.ledger == lease.ledger
    if same and knowledge is not None and knowledge.sent >= lease.sent:
        return ""
    what = "an older copy of the one" if same else "not the one"
    return (
        f"the ledger here is {what} that {printable(lease.host, 64)} kept, which led until now: put [daemon] "
        "state_dir on a file system that both see, or copy the ledger (docs/operate.md, two controllers)"
    )


def went(path: str, lease: Lease) -> str:
    """What to tell who waits for a lease that does not decide any more."""
    name, host = printable(path, 300), printable(lease.host, 64)
    if lease.moved == ALONE:
        return (
            f"{name}: the daemon of {host} went on without this lease; end this one, or set lease_path there "
            "again and reload"
        )
    where = printable(lease.moved, 300)
    return (
        f'{name}: {host} went from this lease to another: set [daemon] lease_path = "{where}" and reload; to '
        "come back, set it anew and reload the daemon that leads there"
    )


def end_of(path: str) -> tuple[str, str]:
    """The lease that decides for who has this one, or ALONE; and the host that it was left by."""
    host = ""
    for _ in range(_MOST_MOVES):
        lease = peek(path)
        if lease is None or not lease.moved:
            break
        path, host = lease.moved, lease.host
        if path == ALONE:
            break
    return path, host


def same(one: str, other: str) -> bool:
    """Whether two paths, which may not be there, mean one place; ALONE is none."""
    return (one == other) if ALONE in (one, other) else same_place(one, other)


def peek(path: str) -> Lease | None:
    """The lease, for who only looks; None: none that can be read."""
    with contextlib.suppress(InputError):
        return _read(path)
    return None


def _read(path: str) -> Lease:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            document = json.loads(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return Lease()
    except OSError as error:
        raise _refusal(path, error) from None
    except (ValueError, RecursionError):
        document = None
    usual = asdict(Lease())
    if isinstance(document, dict):
        document.setdefault("moved", "")  # the first ones had none
    if (
        not isinstance(document, dict)
        or document.get("version") != VERSION
        or not all(
            type(document.get(name)) in ((int, float) if type(value) is float else (type(value),))
            for name, value in usual.items()
        )
    ):
        raise InputError(
            f"{printable(path, 300)}: not a lease of this version; run the same tias-slurm on all hosts, or "
            "remove the file with all daemons stopped"
        )
    return Lease(**{name: document[name] for name in usual})


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Nobody else reads and writes the lease meanwhile. On a network file system a lock also brings what
    others wrote here (nfs(5), "Using file locks with NFS")."""
    name = f"{path}.lock"
    try:
        file = open_own(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal(name, error) from None
    try:
        until = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() > until:
                    raise _refusal(name, error) from None
            time.sleep(0.02)
        yield
    finally:
        os.close(file)


def _refusal(path: str, error: OSError) -> InputError:
    return InputError(
        f"{printable(path, 300)}: {error.strerror or error}{hint(error)}; [daemon] lease_path must lie in a "
        "directory that all daemons may write, on a file system with locks"
    )
