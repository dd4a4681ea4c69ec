"""What is shown of a job: all of it, and nothing that somebody has named as anything but text."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from clonos.nodes.views import DriverView, JobStatus
from clonos.watch.picture import in_notebook, picture
from clonos.watch.server import page
from clonos.watch.snapshot import RECOVERIES_MAX, snapshot
from clonos.watch.terminal import terminal
from tests.watch import jobs

NASTY = "<script>alert('x')</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Tags(HTMLParser):
    """Which tags there are, which texts, and whether each is closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_snapshot_is_json_and_stays_small():
    job = jobs.recovering(parallelism=14)
    assert json.loads(json.dumps(job))["tasks"][3]["name"] == "payments[3]"
    assert len(json.dumps(job)) < 40_000
    many = tuple(jobs.recovery(0, "payments[0]", float(n)) for n in range(1_000))
    compiled = jobs.compiled()
    shown = jobs.shown(compiled, recoveries=many)
    assert len(shown["recoveries"]) == RECOVERIES_MAX
    assert shown["recovered"] == 1_000


def test_chains_lie_behind_those_they_read():
    chains = {chain["name"]: chain for chain in jobs.recovering()["chains"]}
    assert {name: chain["depth"] for name, chain in chains.items()} == {
        "payments": 0, "last of user": 1, "new amounts": 1,
    }  # fmt: skip
    assert chains["new amounts"]["reads"] == ["payments"]
    assert list(chains["payments"]["operators"]) == ["payments", "positive", "score"]


def test_what_calls_have_cost_is_shown_where_there_were_any():
    job = jobs.recovering()
    assert "calls answered" not in picture(job)
    job["calls"], job["costs"] = 7_103, {"score": 14.2, NASTY: 0.5}
    shown = Tags(picture(job))
    assert "calls answered" in shown.texts
    assert "7,103" in shown.texts
    assert f"cost: score 14.20, {NASTY} 0.50" in shown.texts
    assert "script" not in shown.seen
    out = StringIO()
    Console(file=out, width=400).print(terminal(job))
    assert "7,103 calls answered, cost: score 14.20" in out.getvalue()


def test_the_past_and_what_is_tried_on_it_are_shown():
    job = jobs.recovering()
    assert "points of its past" not in picture(job)
    assert "Branches" not in picture(job)
    assert "past since" not in written(job)
    job["past"] = {"points": 37, "since": "1999-05-04T08:00:12.000+00:00", "nbytes": 310_700}
    said = ["8 steps followed", NASTY]
    job["trials"] = [
        {"what": f"canary of {NASTY}", "is_running": True, "said": said},
        {"what": "branch of score", "is_running": False, "said": []},
    ]
    tags = Tags(picture(job))
    assert "script" not in tags.seen
    for shown in ("37", "points of its past", "8 steps followed", NASTY, "runs", "is over"):
        assert shown in tags.texts, shown
    assert any(text.startswith("since 1999-05-0") for text in tags.texts)
    lines = written(job)
    assert "past since 1999-05-0" in lines
    assert f"canary of {NASTY} runs" in lines
    assert "branch of score is over" in lines


def test_parts_of_a_recovery_add_up():
    finished, *_, going_on = jobs.recovering()["recoveries"]
    assert finished["is_over"]
    assert sum(finished["ms"].values()) == pytest.approx(1.3 * 48)
    assert list(finished["ms"]) == ["fence", "logs", "slot", "restore", "replay"]
    assert not going_on["is_over"]
    assert sum(going_on["ms"].values()) == pytest.approx(37)
    assert list(going_on["ms"])[-1] == "replay", "what goes on just now"


def test_a_picture_shows_all():
    html = picture(jobs.recovering())
    texts = " ".join(Tags(html).texts)
    for shown in ("fraud", "recovering", "payments[1]", "last of user[0]", "replaying",
                  "fencing", "37 ms so far", "62 ms, 5 min ago",
                  "#100", "alerts 1,204", "standby of"):  # fmt: skip
        assert shown in texts, shown


def test_a_picture_of_a_job_that_has_just_begun():
    job = jobs.compiled()
    operators = {code.task.id: [name for name, _ in code.operators] for code in job.codes}
    view = DriverView((), (), JobStatus("tasks: 6 waiting for a slot", True, False))
    shown = snapshot("fraud", "fraud-1", 1, job.plan, operators, view, (), 0.0)
    texts = " ".join(Tags(picture(shown)).texts)
    assert "none yet" in texts
    assert "checkpoint" in texts
    assert "waiting for a slot" in written(shown)


def test_names_are_text():
    job = jobs.compiled(name=NASTY, operator=NASTY)
    shown = jobs.shown(job, warnings=(f"{NASTY} is slow",), away={0: NASTY})
    for html in (picture(shown), in_notebook(shown)):
        assert "<script" not in html
        assert Tags(html).seen.count("script") == 0
    tags = Tags(page(shown, "nonce"))
    assert tags.seen.count("script") == 1, "our own"
    assert f"{NASTY} is slow" in tags.texts
    assert "alert('x')" in written(shown)


def test_a_picture_loads_nothing_from_elsewhere():
    html = page(jobs.recovering(), "nonce")
    assert "//" not in html.replace("http://www.w3.org", "")
    assert "@import" not in html
    assert "url(" not in html
    assert "style=" not in html, "the page's own policy forbids it"


def written(job):
    out = StringIO()
    Console(file=out, width=160, no_color=True).print(terminal(job))
    return out.getvalue()


def test_the_terminal_shows_the_same():
    said = written(jobs.recovering())
    for shown in ("fraud", "payments[0]", "■ fencing", "■ replaying", "checkpoint #100",
                  "37 ms so far", "replay 18 ms", "2 recoveries"):  # fmt: skip
        assert shown in said, shown


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_a_browser_shows_it(tmp_path):
    """What the parser makes of it, and that it is as wide as the window, also of a phone."""
    assert CHROMIUM is not None
    measure = (
        "<script nonce=n>const e = document.documentElement; document.title ="
        "(e.scrollWidth <= e.clientWidth ? 'fits, ' : 'too wide, ') +"
        "document.querySelectorAll('.clonos tbody tr').length + ' tasks'</script>"
    )
    path = Path(tmp_path, "page.html")
    shown = jobs.recovering(parallelism=14, operator=NASTY * 3)
    path.write_text(page(shown, "n").replace("</html>", f"{measure}</html>"))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900",
        f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert "<title>fits, 42 tasks</title>" in dom
    assert dom.count("<script") == 2, "the page's and this test's"
