"""The page of a review by Flask's test client: tokens, hosts, headers, claims, verdicts of several people."""

import json
import socket
import sys
import threading
from pathlib import Path

import pytest
from review_run import HOSTILE, ReviewedRun, make_run

from curation.errors import ReviewError
from curation.extras.review.folder import Review, make_review
from curation.extras.review.server import CLAIM_SECONDS, Dealing
from curation.extras.review.source import find

flask = pytest.importorskip("flask")

from curation.extras.review.server import HEADERS, make_app, serve  # noqa: E402

TOKEN = "a-token"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ReviewedRun:
    return make_run(tmp_path_factory.mktemp("page") / "run", num_rows=300, budget={"n": 60})


@pytest.fixture
def review(finished: ReviewedRun, tmp_path: Path) -> Review:
    return make_review(tmp_path, "trust", find(finished.directory, None), num=30, seed=0)


class Page:
    """A person's page."""

    def __init__(self, review: Review, person: str = "anna") -> None:
        self.client, self.person = make_app(review, TOKEN, "me").test_client(), person

    def ask(self, action: str, *, status: int = 200, person: str | None = None, **body: object) -> dict:
        asked = {"person": person or self.person, **body}
        found = self.client.post(f"/{TOKEN}/api/{action}", json=asked, base_url="http://127.0.0.1:81")
        assert found.status_code == status, found.text
        return found.json if status == 200 or status == 507 else {"text": found.text}


def test_requests_without_the_token_or_by_a_foreign_name_are_refused(review: Review):
    client = Page(review).client
    for path in ("/", "/page.js", "/b-token/", "/a-toke/", f"//{TOKEN}/", f"/x/{TOKEN}/", "/é/"):
        assert client.get(path, base_url="http://127.0.0.1").status_code == 403, path
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80", "localhost.evil"):
        found = client.get(f"/{TOKEN}/", headers={"Host": host})
        assert found.status_code == 403 and "Host header" in found.text
        assert client.post(f"/{TOKEN}/api/page", json={"person": "a"}, headers={"Host": host}).status_code == 403
    for host in ("127.0.0.1:9", "localhost", "localhost:8080"):
        assert client.get(f"/{TOKEN}/", headers={"Host": host}).status_code == 200


def test_files_are_plain_and_every_answer_forbids_foreign_scripts(review: Review):
    client = Page(review).client
    kinds = {"": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
    for name, kind in kinds.items():
        found = client.get(f"/{TOKEN}/{name}", base_url="http://localhost")
        assert found.status_code == 200 and found.mimetype == kind
        assert {key: found.headers[key] for key in HEADERS} == HEADERS
        assert "://" not in found.text and "innerHTML" not in found.text  # no network, no markup from text
    page = client.get(f"/{TOKEN}/", base_url="http://localhost").text
    assert "<script src" in page and "<script>" not in page and "style=" not in page and "onclick" not in page
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert client.get(f"/{TOKEN}/draw.json", base_url="http://localhost").status_code == 404
    refused = client.get("/", base_url="http://localhost")
    assert {key: refused.headers[key] for key in HEADERS} == HEADERS


def test_rows_come_as_json_and_trust_only_when_asked(review: Review):
    page = Page(review)
    shown = page.ask("page")
    rows = {str(row["row_id"]): row for row in review.rows.to_pylist()}
    row = shown["row"]
    assert rows[row["row_id"]]["prompt"] == row["prompt"] and isinstance(row["row_id"], str)
    assert "trust" not in row and row["has_trust"] and (shown["num_rows"], shown["num_judged"]) == (30, 0)
    assert page.ask("trust", row_id=row["row_id"])["trust"] == pytest.approx(rows[row["row_id"]]["trust"])
    hostile = [row for row in review.rows.to_pylist() if HOSTILE in row["label"]]
    assert hostile
    found = page.client.post(f"/{TOKEN}/api/page", json={"person": "a"}, base_url="http://localhost")
    assert found.mimetype == "application/json"


def test_a_verdict_is_in_the_log_before_the_next_row_comes(review: Review):
    page = Page(review)
    for number, verdict in enumerate(("right", "wrong", "unsure"), start=1):
        row_id = page.ask("page")["row"]["row_id"]
        after = page.ask("verdict", row_id=row_id, verdict=verdict, saw_trust=number == 2)
        line = json.loads((review.folder / "verdicts.jsonl").read_text().splitlines()[-1])
        assert (line["row_id"], line["verdict"], line["person"]) == (int(row_id), verdict, "anna")
        assert line["saw_trust"] == (number == 2) and line["via"] == "page"
        assert after["num_judged"] == after["num_own"] == number and after["row"]["row_id"] != row_id
    back = page.ask("back")
    assert back["row"]["row_id"] == row_id and back["num_judged"] == 2
    assert page.ask("back")["num_judged"] == 1 and page.ask("back")["num_judged"] == 0
    assert page.ask("back")["num_judged"] == 0  # nothing is left to take back
    assert len((review.folder / "verdicts.jsonl").read_text().splitlines()) == 6


def test_another_server_goes_on_where_the_first_was_killed(review: Review):
    first = Page(review)
    asked = [first.ask("page")["row"]["row_id"]]
    for _ in range(10):
        asked.append(first.ask("verdict", row_id=asked[-1], verdict="right")["row"]["row_id"])
    second = Page(Review(review.folder))
    found = second.ask("page")
    assert found["num_judged"] == 10 and found["row"]["row_id"] == asked[-1]
    assert len(set(asked)) == 11


def test_people_have_rows_of_their_own_and_all_are_judged_once(review: Review):
    """Eight people at once, in threads of one server, until nothing is left."""
    app = make_app(review, TOKEN, "me")
    problems = []

    def work(person: str) -> None:
        client = app.test_client()

        def ask(action: str, **body: object) -> dict:
            return client.post(
                f"/{TOKEN}/api/{action}", json={"person": person, **body}, base_url="http://localhost"
            ).json

        try:
            page = ask("page")
            while page["row"] is not None:
                page = ask("verdict", row_id=page["row"]["row_id"], verdict="right")
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    entries = review.log.entries()
    assert sorted(entry.row_id for entry in entries) == sorted(review.rows["row_id"].to_pylist())


def test_a_claim_ends_when_its_person_is_gone(review: Review):
    now = [0.0]
    dealing = Dealing(review, clock=lambda: now[0])
    first = dealing.page("anna")["row"]["row_id"]
    assert dealing.page("ben")["row"]["row_id"] != first and dealing.page("anna")["row"]["row_id"] == first
    for row_id in review.rows["row_id"].to_pylist():
        if str(row_id) not in (first,):
            dealing.judge("ben", row_id, "right", saw_trust=False)
    left = dealing.page("ben")
    assert left["row"] is None and left["num_elsewhere"] == 1
    now[0] = CLAIM_SECONDS + 1
    assert dealing.page("ben")["row"]["row_id"] == first
    dealing.judge("anna", int(first), "wrong", saw_trust=False)  # late, but kept
    after = dealing.judge("ben", int(first), "right", saw_trust=False)
    assert after["num_judged"] == 30 and after["row"] is None and after["num_elsewhere"] == 0
    assert {person: entry.verdict for person, entry in review.log.standing()[int(first)].items()} == {
        "anna": "wrong",
        "ben": "right",
    }


def test_requests_that_make_no_sense_are_refused(review: Review):
    page = Page(review)
    row_id = page.ask("page")["row"]["row_id"]
    page.ask("verdict", status=400, row_id="5", verdict="right")
    page.ask("verdict", status=400, row_id=row_id, verdict="maybe")
    page.ask("verdict", status=400, row_id="x", verdict="right")
    page.ask("verdict", status=400, row_id=None, verdict="right")
    page.ask("verdict", status=400, verdict="right")
    page.ask("drop", status=400)
    page.ask("page", status=400, person="  ")
    page.ask("page", status=400, person="x" * 101)
    page.ask("verdict", status=413, row_id=row_id, verdict="x" * 70_000)
    assert page.client.post(f"/{TOKEN}/api/page", data="{}", base_url="http://localhost").status_code == 415
    assert not (review.folder / "verdicts.jsonl").exists()


def test_a_verdict_that_cannot_be_kept_is_told(review: Review):
    page = Page(review)
    row_id = page.ask("page")["row"]["row_id"]
    (review.folder / "verdicts.jsonl").symlink_to("/dev/full")
    assert "is not kept" in page.ask("verdict", status=507, row_id=row_id, verdict="right")["error"]
    (review.folder / "verdicts.jsonl").unlink()
    assert page.ask("verdict", row_id=row_id, verdict="right")["num_judged"] == 1


def test_a_port_that_is_taken_is_told(review: Review):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ReviewError, match=f"--port {taken.getsockname()[1]}: cannot be used"):
            serve(review, taken.getsockname()[1], "me", print)


def test_without_flask_the_page_says_what_to_install(review: Review, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "flask", None)
    with pytest.raises(
        ReviewError, match=r'pip install "trust-curation\[review\]", or give verdicts by `curate review import'
    ):
        make_app(review, TOKEN, "me")


def test_a_failure_is_told_without_the_token(
    review: Review, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    def fail(dealing: Dealing, person: str) -> dict:
        raise RuntimeError("odd")

    monkeypatch.setattr(Dealing, "page", fail)
    found = Page(review).ask("page", status=500)
    assert "RuntimeError" in found["text"] and "RuntimeError: odd" in caplog.text
    assert TOKEN not in caplog.text + "".join(capfd.readouterr()) + found["text"]
