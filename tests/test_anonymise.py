"""No name and no text of a user's in anything that is put out with --anonymise: searched byte by byte."""

import gzip
import json
import unicodedata
from datetime import UTC, datetime

import pytest
from command import T0
from command_desk import Desk
from lived_week import T0 as LIVED
from lived_week import live
from raw_queue import NOW, queue, running

from tias_slurm.anonymise import Names
from tias_slurm.replay.claims import ClaimReport
from tias_slurm.replay.workload import Refusals, Refused, Workload

# conspicuous: none of these comes about by chance
ZOE = "zoë-müllermann"
USERS = ("zacharias", ZOE, unicodedata.normalize("NFD", ZOE), "Qx日本Qx", "tias")
ACCOUNT, TEXT, FILE = "geheimlabor", "Vögelchen", "prüfungsakte"
SECRETS = ("zacharias", ZOE, USERS[2], "Qx日本Qx", ACCOUNT, TEXT, FILE)
HEADER = (
    "JobID|JobIDRaw|User|Account|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|AllocTRES|Comment"
    "|SubmitLine"
)


def forms(secret):
    """How a text may be written: as it is, in JSON, HTML and a terminal's escapes."""
    yield secret.encode()
    yield json.dumps(secret)[1:-1].encode()
    yield secret.encode("unicode_escape")
    yield secret.encode("ascii", "xmlcharrefreplace")
    yield secret.encode("utf-16-le")


def leaks(data):
    """The secrets that are in some bytes."""
    return [s for s in SECRETS for f in forms(s) if f.lower() in data.lower()]


@pytest.fixture
def wild(tmp_path):
    """An export in which names and texts stand wherever they can: also in what is refused."""
    lines = [HEADER]
    for i in range(40):
        submit, user = T0 + 100 * i, USERS[i % len(USERS)]
        comment = (
            "deadline=+2h",
            f"deadline={TEXT}",
            f"{TEXT} requeue={ZOE}",
            "requeue=yes",
            f"deadline=+1h,{TEXT}",
        )[i % 5]
        cells = [
            i + 1,
            i + 1,
            user,
            ACCOUNT,
            "gpu",
            "COMPLETED",
            submit,
            submit,
            submit + 10,
            submit + 3010,
            3000,
            "cpu=4,gres/gpu=2",
            comment,
            f"sbatch --comment={TEXT} {user}.sh",
        ]
        if i == 7:
            cells[6] = f"{TEXT}-{user}"  # a time that is none
        if i == 8:
            cells[10] = user
        lines.append("|".join(map(str, cells)))
    path = tmp_path / f"{FILE}-{ZOE}.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def files_of(directory):
    """All bytes that lie there, also those that lie folded."""
    found = b""
    for path in sorted(directory.rglob("*")):
        found += path.name.encode()
        if path.is_file():
            data = path.read_bytes()
            found += data
            if path.suffix == ".parquet":
                from pyarrow import parquet

                found += json.dumps(
                    parquet.read_table(path).to_pydict(), default=str, ensure_ascii=False
                ).encode()
            if data[:2] == b"\x1f\x8b":
                found += gzip.decompress(data)
    return found


def test_a_dry_run_names_nobody(wild, tmp_path, cli):
    nodes = tmp_path / f"{FILE}.nodes"
    nodes.write_text("NodeName=gn1 Gres=gpu:8 CPUTot=64 RealMemory=1000 State=IDLE Partitions=gpu Reason=x\n")
    out = tmp_path / "out"
    plain = cli("dry-run", wild, "--nodes", nodes, "--json", "--out", tmp_path / "plain")
    assert plain.code == 0, plain.err
    # the search finds what is there
    assert set(leaks(plain.out.encode())) >= {TEXT, FILE}
    assert set(leaks(files_of(tmp_path / "plain"))) >= {"zacharias", TEXT, FILE}
    words = ("dry-run", wild, "--nodes", nodes, "--anonymise")
    table, document = cli(*words, "--out", out), cli(*words, "--json")
    assert (table.code, document.code) == (0, 0), table.err
    assert leaks(table.out.encode() + table.err.encode()) == []
    assert leaks(document.out.encode() + document.err.encode()) == []
    assert leaks(files_of(out)) == []
    assert sorted(p.name for p in out.iterdir()) == [
        "decisions.jsonl",
        "jobs.parquet",
        "metrics.json",
        "report.html",
    ]
    assert "user1" in (out / "report.html").read_text("utf-8")
    # and nothing but the names is another
    before, after = json.loads(plain.out), json.loads(document.out)
    for key in ("policies", "replayed_vs_recorded", "never_fit", "findings"):
        assert before[key] == after[key]
    assert before["deadlines"] == after["deadlines"]
    assert before["cluster"]["gpus"] == after["cluster"]["gpus"]


def test_jobs_keep_who_belongs_to_whom(wild, tmp_path, cli):
    from pyarrow import parquet

    assert cli("dry-run", wild, "--gpus", 16, "--policies", "fifo,tias", "--out", "a").code == 0
    assert (
        cli("dry-run", wild, "--gpus", 16, "--policies", "fifo,tias", "--out", "b", "--anonymise").code == 0
    )
    true, hidden = (parquet.read_table(tmp_path / d / "jobs.parquet").to_pydict() for d in "ab")
    pairs = set(zip(true["user"], hidden["user"], strict=True))
    assert len(pairs) == len({t for t, _ in pairs}) == len({h for _, h in pairs}) == len(USERS)
    assert true["job_id"] == hidden["job_id"]
    assert true["partition"] == hidden["partition"]


def test_stand_ins_do_not_tell_the_name():
    """The first one is user1 whoever it is: no list of names leads back."""
    assert [Names().of("user", name) for name in USERS] == ["user1"] * len(USERS)
    names = Names()
    made = [names.of("user", n) for n in ("b", "", "a", "b", "user1")]
    assert made == ["user1", "", "user2", "user1", "user3"]
    # a user and an account of one name are two things
    assert names.of("account", "b") == "account1"


def test_a_table_without_accounts_and_with_gaps():
    import pandas as pd

    jobs = pd.DataFrame({"user": ["ann", None, float("nan"), "ann"], "gpus": [1, 1, 1, 1]})
    refused = Refusals(examples=[Refused("/home/ann/x", 3, "bad time", "ann")])
    Names().workload(Workload(jobs, True, 1, 4, refused), ClaimReport())
    assert jobs["user"].tolist() == ["user1", "", "", "user1"]
    assert refused.examples == [Refused("file1", 3, "bad time", "")]


# ---- the daemon's own commands


@pytest.fixture
def desk(tmp_path, monkeypatch, cli):
    made = Desk(tmp_path, monkeypatch, cli)
    yield made
    made.close()


def test_status_history_and_explain_name_nobody(desk, monkeypatch):
    waits = {"user": ZOE, "account": ACCOUNT}
    desk.show(
        queue(
            {**waits, "comment": f"deadline={TEXT}"},
            {**waits, "comment": f"deadline=+3h requeue={TEXT}"},
            running(user="zacharias", account=ACCOUNT, comment=TEXT),
        ),
        answers={101: "refused"},
    )
    desk.adapter.words = f"slurm_update: {ZOE} may not, says {TEXT}"
    daemon = desk.daemon()
    daemon.cycle()
    monkeypatch.setenv("LOGNAME", "zacharias")
    (desk.state / "paused").write_text(json.dumps({"time": NOW, "by": "zacharias", "reason": TEXT}))
    daemon.cycle()
    shown = [("status",), *((c, job) for c in ("history", "explain") for job in ("100", "101", "102"))]
    for words in shown:
        for more in ((), ("--json",)):
            plain, hidden = (desk.run(*words, *more, *extra) for extra in ((), ("--anonymise",)))
            assert leaks(hidden.out.encode() + hidden.err.encode()) == [], (words, more)
            assert hidden.out
            assert plain.out
    told = b"".join(desk.run(*words).out.encode() for words in shown)
    assert set(leaks(told)) >= {"zacharias", ZOE, ACCOUNT, TEXT}, "nothing to hide: the test is void"
    job = json.loads(desk.run("explain", "100", "--json", "--anonymise").out)
    assert (job["user"], job["account"]) == ("user1", "account1")
    assert job["claim_refused"][0]["code"]
    (entry,) = json.loads(desk.run("history", "101", "--json", "--anonymise").out)["actions"]
    assert (entry["result"], entry["message"]) == ("refused", "")


def test_status_of_a_cycle_that_failed(desk):
    from tias_slurm.slurm.live import AdapterError

    desk.show(queue({}), AdapterError(f"squeue: {TEXT} {ZOE}", retry=True))
    daemon = desk.daemon()
    daemon.cycle()
    daemon.cycle()
    for more in ((), ("--json",)):
        done = desk.cli("status", "--config", desk.path, "--anonymise", *more)
        assert leaks(done.out.encode() + done.err.encode()) == []
        assert "no answer" in done.out


def test_a_report_names_nobody(tmp_path, cli):
    week = live(tmp_path)
    who = {f"u{i}": name for i, name in enumerate(USERS)}
    lines = week.export.read_text().splitlines()
    made = [lines[0]]
    for i, line in enumerate(lines[1:]):
        cells = line.split("|")
        cells[3], cells[4] = who[cells[3]], ACCOUNT
        # the ledger knows of the deadlines what the comments here do not say
        cells[19], cells[20] = f"{TEXT} deadline={TEXT}{i} requeue=yes", f"sbatch --comment={TEXT} {ZOE}"
        made.append("|".join(cells))
    made.append("|".join(TEXT for _ in cells))
    export, nodes = tmp_path / f"{FILE}.txt", tmp_path / f"{FILE}-nodes.toml"
    export.write_text("\n".join(made) + "\n")
    nodes.write_text("[[nodes]]\nname = 'n[1-2]'\ngpus = 8\n")
    since, until = (datetime.fromtimestamp(t, UTC).isoformat() for t in (LIVED - 60, week.end.max() + 2))
    words = ["report", "--config", week.config, "--export", export, "--nodes", nodes, "--since", since]
    words += ["--until", until]
    plain = cli(*words, "--json", "--out", tmp_path / "plain")
    assert plain.code == 0, plain.err
    told = plain.out.encode() + files_of(tmp_path / "plain")
    assert set(leaks(told)) >= {"zacharias", TEXT, FILE}
    page = cli(*words, "--anonymise", "--out", tmp_path / "out")
    hidden = cli(*words, "--anonymise", "--json")
    assert (page.code, hidden.code) == (0, 0), page.err
    for done in (page, hidden):
        assert leaks(done.out.encode() + done.err.encode()) == []
    assert leaks(files_of(tmp_path / "out")) == []
    before, after = json.loads(plain.out), json.loads(hidden.out)
    assert before["outcome"] == after["outcome"]
    assert before["done"]["requeues"] == after["done"]["requeues"]
    a, b = ([m["user"] for m in d["done"]["requeue_list"]] for d in (before, after))
    assert a
    assert len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))
