"""What the users of the made-up site write into job comments: deadlines, consent, and whatever else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from virtual_site import BEGIN, DAY, HOUR, SUMMER_TIME_ENDS, Dice, Job

MINUTE = 60

INNOCENT = (
    *("baseline", "sweep-17,lr=3e-4", "for the Friday talk", "deadline", "paper deadline 13 Nov", "50123"),
    *("Key=owner,Value=lab2 Key=deadline,Value=2026-11-13", "rule_train_wildcards_fold3", "48:00:00"),
    *('{"gpu_util": 71.4, "gpu_mem_max": 30211, "ngpu": 2}', '{"resume": {"mode": "auto"}}', '["a", "b"]'),
    *("dataset:v3;token=5f2a", "deadlines=none", "mydeadline=+3h", "{ 'note': 'not JSON' }", "project=atlas"),
    "2026-10-19-run2",
)
# one of each kind that the grammar refuses; {day} becomes a date near the job
REFUSED = (
    ("two keys", "deadline=+36h,deadline=+48h"),
    ("no unit", "deadline=+36"),
    ("no value", "deadline="),
    ("a clock time alone", "deadline=18:00"),
    ("a date and a separate clock time", "deadline={day} 18:00"),
    ("a date in another order", "deadline=24.10.2026"),
    ("a date in another order", "deadline=10/24/2026"),
    ("an hour over 23", "deadline={day}T24:30"),
    ("no such day", "deadline=2026-11-31"),
    ("an hour that the clock skips", "deadline=2027-03-28T02:30"),
    ("a word", "deadline=tomorrow"),
    ("an unknown unit", "deadline=+3months"),
    ("JSON of another type", '{"deadline": true}'),
    ("JSON of another type", '{"deadline": ["+36h"]}'),
    ("before the submit", "deadline={past}T12:00"),
    ("before the submit", "deadline=@1700000000"),
)
FORMS = {
    "hours": 24,
    "minutes": 12,
    "days": 10,
    "now": 8,
    "local": 20,
    "seconds and offset": 6,
    "utc": 4,
    "day": 6,
    "epoch": 4,
    "json text": 3,
    "json number": 3,
}


def utc_offset(time: int) -> int:
    """Seconds that Berlin's clocks are ahead of UTC, in the months that matter here."""
    return 2 * HOUR if time < SUMMER_TIME_ENDS else HOUR


def local(time: int) -> datetime:
    """The clock on the wall."""
    return datetime.fromtimestamp(time + utc_offset(time), UTC).replace(tzinfo=None)


def stamp(time: int) -> str:
    """As sacct prints a time: local, without a zone."""
    return local(time).isoformat(timespec="seconds")


def calendar_deadline(dice: Dice, earliest: int) -> int:
    """The next 9:00, 18:00 or Friday 18:00 on the wall that is not before earliest."""
    hour, fridays = dice.pick(((9, False), (18, False), (18, True)))
    day = local(earliest)
    midnight = earliest - (day.hour * HOUR + day.minute * MINUTE + day.second)
    for ahead in range(9):
        noon = midnight + ahead * DAY + 12 * HOUR
        time = noon + (hour - local(noon).hour) * HOUR
        if time >= earliest and (not fridays or local(time).weekday() == 4):
            return time
    raise AssertionError("a week has a Friday")


def deadline_text(dice: Dice, submit: int, time: int, form: str) -> tuple[str, int]:
    """A deadline at time or a little later in one of FORMS: the comment and the time that it means."""
    window = time - submit
    if (form == "minutes" and window > 20 * HOUR) or (form in ("days", "day") and window < 20 * HOUR):
        form = "hours"
    hours, minutes = -(-window // HOUR), -(-window // MINUTE)
    if form == "hours":
        return f"deadline=+{hours}h", submit + hours * HOUR
    if form == "minutes":
        return f"deadline=+{minutes}m", submit + minutes * MINUTE
    if form == "days":
        days, rest = divmod(hours, 24)
        return f"deadline=+{days}d" + (f"{rest}h" if rest else ""), submit + hours * HOUR
    if form == "now":
        if hours < 8:
            return f"deadline=now+{minutes}minutes", submit + minutes * MINUTE
        return f"deadline=now+{hours}hours", submit + hours * HOUR
    if form == "day":
        clock = local(time)
        passed = clock.hour * HOUR + clock.minute * MINUTE + clock.second
        wall = time + utc_offset(time) - passed + DAY  # the next midnight, as if Berlin were on UTC
        return f"deadline={clock:%Y-%m-%d}", wall - utc_offset(wall - 2 * HOUR)
    time = -(-time // MINUTE) * MINUTE
    clock = local(time)
    if form == "local":
        return f"deadline={clock:%Y-%m-%dT%H:%M}", time
    if form == "seconds and offset":
        return f"deadline={clock:%Y-%m-%dT%H:%M:%S}+0{utc_offset(time) // HOUR}:00", time
    if form == "utc":
        return f"deadline={datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}", time
    if form == "epoch":
        return f"deadline=@{time}", time
    if form == "json text":
        return json.dumps({"run": dice.below(900), "deadline": f"{clock:%Y-%m-%dT%H:%M}"}), time
    return json.dumps({"deadline": time, "requeue": dice.pick(("yes", "no"))}), time


def dress(dice: Dice, text: str) -> str:
    """A deadline among other things that people write."""
    if text.startswith("{"):
        return text
    if dice.chance(60):
        text = text.replace("deadline", dice.pick(("Deadline", "DEADLINE")))
    if dice.chance(450):
        extra = dice.pick(
            {"requeue=yes": 6, "requeue=no": 2, "requeue=yes;checkpoint=15m": 5, "checkpoint=1h": 1}
        )
        text += dice.pick((",", ";", " ")) + extra
    if dice.chance(200):
        text = dice.pick(("proj=atlas", "fold3", "ablation-b")) + dice.pick((",", "; ", " ")) + text
    return text


def write_comment(dice: Dice, job: Job) -> str:
    """The comment of one job, '' for most."""
    if job.array and job.task:
        raise ValueError("the tasks of an array share one comment")
    if dice.chance(350 if job.gpus else 60):
        if dice.chance(35):
            _, text = REFUSED[dice.below(len(REFUSED))]
            day, past = f"{local(job.submit + DAY):%Y-%m-%d}", f"{local(job.submit - 3 * DAY):%Y-%m-%d}"
            return text.replace("{day}", day).replace("{past}", past)
        if dice.chance(300):
            time = calendar_deadline(dice, job.submit + job.duration * 11 // 10)
        else:
            time = job.submit + job.duration * dice.between(120, 400) // 100 + 15 * MINUTE
        return dress(dice, deadline_text(dice, job.submit, time, dice.pick(FORMS))[0])
    if dice.chance(180):
        return dice.pick(
            {"requeue=yes": 5, "requeue=no": 2, "requeue=yes,checkpoint=15m": 5, "checkpoint=30m": 1}
        )
    return dice.pick(INNOCENT) if dice.chance(150) else ""


def oddities(jobs: list[Job], comments: dict[int, str]) -> None:
    """Put in what chance may have left out: each refused kind once, and a deadline in the doubled hour."""
    spare = [j for j in jobs if j.gpus and not j.array and not comments[id(j)] and j.submit > BEGIN + 2 * DAY]
    for job, (_, text) in zip(spare[::40], REFUSED, strict=False):
        day, past = f"{local(job.submit + DAY):%Y-%m-%d}", f"{local(job.submit - 3 * DAY):%Y-%m-%d}"
        comments[id(job)] = text.replace("{day}", day).replace("{past}", past)
    night = [j for j in spare if SUMMER_TIME_ENDS - DAY < j.submit < SUMMER_TIME_ENDS - 8 * HOUR]
    comments[id(night[-1])] = "deadline=2026-10-25T02:30,requeue=yes"
