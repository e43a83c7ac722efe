"""How messages leave: `scontrol notify` into a job's output, or the site's MailProg; in a thread of its own.

MailProg is called as slurmctld calls it (slurm.conf(5)): `-s SUBJECT RECIPIENT`, the job in SLURM_JOB_*
variables; slurmctld gives it nothing on standard input, here the text is there.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tias_slurm.errors import printable
from tias_slurm.slurm.command_parse import classify
from tias_slurm.slurm.command_run import Runner, end_group
from tias_slurm.slurm.live import AdapterError

Result = Literal[
    "sent",
    "gone",  # the job had ended
    "failed",  # may have been sent all the same: not tried again
    "timed out",  # likewise
    "no recipient",
    # surely not sent, so that it may be tried again; the first two for want of what an administrator can mend
    "no rights",
    "no program",
    "not sent",
]
SURELY_NOT: Final = frozenset({"no rights", "no program", "not sent"})
TROUBLES: Final = frozenset({"no rights", "no program"})

MOST_WAITING: Final = 100  # messages that are handed over and not sent yet
TROUBLE_PAUSE_S: Final = 600.0  # after trouble nothing is sent for so long
_END_S: Final = 5.0  # a message that is being sent may take this long when the daemon ends
_FACTS_S: Final = 600.0  # how long MailProg and MailDomain are believed
_MOST_SAID: Final = 4096  # bytes of what MailProg complains that are looked at
_MOST_OUTPUT: Final = 10_000_000  # and that it may write, of all that it says
# one mailbox: what could be an option, a list, a path or a command is none
_MAILBOX: Final = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}(?:@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,188}[A-Za-z0-9])?)?", re.ASCII
)
_MAIL_USER: Final = re.compile(r"^\s+MailUser=(.*?)(?: MailType=\S*)?$", re.MULTILINE)


class Letter(NamedTuple):
    """A message on its way."""

    key: tuple[int, str]  # see due.Key
    job_id: int  # of the record
    user: str  # its owner
    subject: str
    line: str  # the text for an output
    body: str  # and for a mail


class Sent(NamedTuple):
    """What became of it, and why."""

    letter: Letter
    result: Result
    message: str = ""


Send = Callable[[Letter], Sent]


class Courier:
    """Sends one letter after the other in a thread, so that nobody waits for it. Letters and results pass
    through bounded queues."""

    def __init__(self, may_send: Callable[[], str]) -> None:
        """`may_send`: why nothing may be sent now; "": it may. Called in the courier's thread."""
        self._may_send = may_send
        self._letters: queue.Queue[tuple[Send, Letter]] = queue.Queue(MOST_WAITING)
        self._results: queue.SimpleQueue[Sent] = queue.SimpleQueue()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._blocked_until = 0.0

    @property
    def blocked(self) -> bool:
        """Whether something that an administrator can mend has stopped it for a while."""
        return time.monotonic() < self._blocked_until

    def unblock(self) -> None:
        """Try again at once."""
        self._blocked_until = 0.0

    @property
    def room(self) -> int:
        """How many letters it takes now. Only who hands letters over makes it less."""
        return MOST_WAITING - self._letters.qsize()

    def hand(self, send: Send, letter: Letter) -> None:
        """Take a letter; there must be room."""
        self._letters.put_nowait((send, letter))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="messages", daemon=True)
            self._thread.start()

    def results(self) -> list[Sent]:
        """What became of letters since this was called last."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def stop(self, finish_s: float = 0.0) -> None:
        """Send no more, after `finish_s` at the latest: what was not begun is "not sent"."""
        until = time.monotonic() + finish_s
        while self._letters.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.05)
        self._end.set()
        if self._thread is not None:
            self._thread.join(_END_S)
        with contextlib.suppress(queue.Empty):
            while True:
                _, letter = self._letters.get_nowait()
                self._results.put(Sent(letter, "not sent", "the daemon ends"))

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                send, letter = self._letters.get(timeout=0.5)
            except queue.Empty:
                continue
            why = "the daemon ends" if self._end.is_set() else self._may_send()
            why = why or ("others could not be sent" if self.blocked else "")
            try:
                sent = Sent(letter, "not sent", why) if why else send(letter)
            except Exception as error:
                # a fault of ours must not end the thread; it may have been sent
                sent = Sent(letter, "failed", f"internal error: {type(error).__name__}")
            if sent.result in TROUBLES:
                self._blocked_until = time.monotonic() + TROUBLE_PAUSE_S
            self._results.put(sent)
            self._letters.task_done()


class Output:
    """Writes into the standard error of a running job, or on the terminal of its srun or salloc.

    slurmctld takes that from the owner, SlurmUser and root alone: from no Operator, nor an Administrator.
    """

    def __init__(self, timeout_s: float, pause_s: float) -> None:
        """`timeout_s`: for the command; `pause_s`: from one to the next."""
        self._timeout_s, self._pause_s = timeout_s, pause_s

    def __call__(self, letter: Letter) -> Sent:
        """Send one."""
        began = time.monotonic()
        try:
            runner = Runner(self._timeout_s, commands=("scontrol",))
            status, out, err = runner.run(("scontrol", "notify", str(letter.job_id), letter.line))
        except AdapterError as error:
            return Sent(letter, "timed out" if error.retry else "no program", str(error))
        words = printable(" ".join((err + " " + out.decode("utf-8", "replace")).split()), 300)
        time.sleep(max(0.0, self._pause_s - (time.monotonic() - began)))
        if status == 0:
            return Sent(letter, "sent")
        return Sent(letter, _refused(words), words or f"exit status {status}")


def _refused(words: str) -> Result:
    """What `scontrol notify` means, by its words."""
    low = words.lower()
    if "presently disabled" in low or "unable to contact" in low:
        return "not sent"  # the job waits again, or nobody was asked
    kind = classify(words)
    if kind == "no rights":
        return "no rights"
    return "gone" if kind == "gone" else "failed"


@dataclass(frozen=True, slots=True)
class MailFacts:
    """What slurm.conf says of mail. "": nothing."""

    program: str
    domain: str
    cluster: str


class Mail:
    """Sends mail through the site's MailProg."""

    def __init__(self, program: str, domain: str, timeout_s: float, ask_timeout_s: float) -> None:
        """`program`, `domain`: in place of slurm.conf's; "": those. `timeout_s`: of the program."""
        self._program, self._domain = program, domain
        self._timeout_s, self._ask_timeout_s = timeout_s, ask_timeout_s
        self._facts: MailFacts | None = None
        self._asked = 0.0

    def __call__(self, letter: Letter) -> Sent:
        """Send one."""
        try:
            facts = self._site()
            said = self._ask("show", "job", str(letter.job_id))
        except AdapterError as error:
            return Sent(letter, "not sent", str(error))
        program, domain = self._program or facts.program, self._domain or facts.domain
        to = recipient(mail_user(said), letter.user, domain)
        if not to:
            return Sent(letter, "no recipient", "neither MailUser nor the user's name is an address")
        variables = {
            "SLURM_CLUSTER_NAME": facts.cluster,
            "SLURM_JOB_ID": str(letter.job_id),
            "SLURM_JOBID": str(letter.job_id),
            "SLURM_JOB_USER": letter.user,
            "SLURM_JOB_MAIL_TYPE": "tias-slurm",
        }
        result, why = run(program, letter.subject, to, letter.body, variables, self._timeout_s)
        return Sent(letter, result, why)

    def _site(self) -> MailFacts:
        if self._facts is None or time.monotonic() - self._asked > _FACTS_S:
            self._facts, self._asked = mail_facts(self._ask("show", "config")), time.monotonic()
        return self._facts

    def _ask(self, *words: str) -> str:
        status, out, err = Runner(self._ask_timeout_s, commands=("scontrol",)).run(("scontrol", *words))
        if status:
            if classify(err) == "gone":
                return ""  # the owner is told all the same
            raise AdapterError(f"scontrol: {printable(err, 200)}", retry=True)
        return out.decode("utf-8", "replace")


def mail_facts(text: str) -> MailFacts:
    """MailProg, MailDomain and ClusterName out of `scontrol show config`."""

    def value(name: str) -> str:
        found = re.search(rf"^{name} += (.*)$", text, re.MULTILINE)
        return "" if found is None or found[1].strip() == "(null)" else found[1].strip()

    return MailFacts(value("MailProg"), value("MailDomain"), value("ClusterName"))


def mail_user(text: str) -> str:
    """MailUser out of `scontrol show job`, as its user wrote it; "": none. Not before it was checked may it
    be used."""
    found = _MAIL_USER.findall(text)
    return "" if not found or found[-1] == "(null)" else str(found[-1])


def recipient(wanted: str, user: str, domain: str) -> str:
    """Who gets the mail: what the job asks for if that is one plain mailbox, else its owner; "": nobody.

    A name without a domain is given the site's, as slurmctld does.
    """
    for name in (wanted, user):
        if not _MAILBOX.fullmatch(name):
            continue
        full = name if "@" in name or not domain else f"{name}@{domain}"
        if _MAILBOX.fullmatch(full):
            return full
    return ""


def run(
    program: str, subject: str, to: str, body: str, variables: Mapping[str, str], timeout_s: float
) -> tuple[Result, str]:
    """Call MailProg once; what became of it, and why. At the end of `timeout_s` all of its group is ended."""
    outer = {k: v for k, v in os.environ.items() if k in ("HOME", "USER", "LOGNAME", "PATH", "LANG")}
    env = {"PATH": os.defpath, **outer, **variables}
    if not os.path.isabs(program):
        return "no program", f"MailProg {printable(program) or 'is not set'}: no absolute path"
    # a file takes what it says, and what it leaves behind in the background, without making anybody wait
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as said:
        text.write(body.encode("utf-8", "backslashreplace"))
        text.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603  an absolute path and a list, no shell
                [program, "-s", subject, to],
                stdin=text, stdout=said, stderr=said, env=env, cwd="/", start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return "no program", f"MailProg {printable(program)}: {why}"
        until = time.monotonic() + timeout_s
        while (status := _wait(process)) is None:
            flood = os.fstat(said.fileno()).st_size > _MOST_OUTPUT
            if flood or time.monotonic() >= until:
                end_group(process)
                why = "says too much" if flood else f"not done within {timeout_s:g} s"
                return "failed" if flood else "timed out", f"MailProg {printable(program)}: {why}"
        said.seek(0)
        words = printable(" ".join(said.read(_MOST_SAID).decode("utf-8", "replace").split()), 200)
    if status == 0:
        return "sent", ""
    return "failed", f"MailProg {printable(program)}: exit status {status}{': ' + words if words else ''}"


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """The exit status, if there is one within a moment."""
    try:
        return process.wait(0.1)
    except subprocess.TimeoutExpired:
        return None
