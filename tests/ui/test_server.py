"""The server over HTTP, run by uvicorn."""

import http.client
import json
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.ui.served import TOKEN, serving

from taetpu.ui.server import COOKIE

OPEN: list[http.client.HTTPConnection | http.client.HTTPResponse] = []


@pytest.fixture(autouse=True)
def closed():
    """Close connections at the end of a test."""
    yield
    while OPEN:
        OPEN.pop().close()


def get(port: int, path: str, token: str | None = TOKEN, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    cookie = {"Cookie": f"{COOKIE}-{port}={token}"} if token else {}
    connection.request("GET", path, headers={**cookie, **headers})
    answer = connection.getresponse()
    OPEN.extend((connection, answer))
    return answer


def messages(port: int, cursor: str = "") -> list[dict]:
    """The new messages on the study `toy`."""
    return json.loads(get(port, f"/data/study/toy?since={cursor}").read())


def test_requests_without_the_token_are_rejected(growing, tmp_path) -> None:
    with serving(tmp_path) as port:
        for path in ("/", "/data/studies", "/data/study/toy", "/static/live.js", "/study/toy?token=other"):
            answer = get(port, path, token=None)
            assert answer.status == 403
            assert b"token" in answer.read()
        answer = get(port, f"/study/toy?x=1&token={TOKEN}", token=None)
        assert (answer.status, answer.getheader("Location")) == (303, "/study/toy?x=1")
        cookie = answer.getheader("Set-Cookie")
        assert f"{COOKIE}-{port}={TOKEN}" in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert get(port, "/").status == 200


def raw(port: int, path: str, *headers: tuple[str, str]):
    """Send a request with exactly these headers and an unnormalised path."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    OPEN.extend((connection, answer))
    return answer


PATHS = ("/", "/static/live.js", "/vega.js", "/data/studies", "/data/study/toy", "/nowhere")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1@evil", ""]
)
def test_requests_for_another_host_read_nothing(growing, tmp_path, host) -> None:
    """The domain of a page may be rebound to 127.0.0.1. The request has the cookie, or the token in the query."""
    with serving(tmp_path) as port:
        named = ("Host", host.format(port=port))
        cookie = ("Cookie", f"{COOKIE}-{port}={TOKEN}")
        for path in (*PATHS, f"/?token={TOKEN}"):
            answer = raw(port, path, named, cookie)
            assert (answer.status, answer.getheader("Set-Cookie")) == (400, None), path
            text = answer.read().decode()
            assert "toy" not in text
            assert TOKEN not in text


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "localhost:9"])
def test_requests_for_this_machine_at_any_port_are_accepted(growing, tmp_path, host) -> None:
    with serving(tmp_path) as port:
        named = ("Host", host.format(port=port))
        answer = raw(port, f"/?token={TOKEN}", named)
        cookie = ("Cookie", answer.getheader("Set-Cookie").partition(";")[0])
        assert raw(port, "/data/studies", named, cookie).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}"])
def test_page_of_another_origin_reads_nothing(growing, tmp_path, origin) -> None:
    with serving(tmp_path) as port:
        for path in PATHS:
            answer = get(port, path, Origin=origin.format(port=port))
            assert answer.status == 403, path
            assert answer.getheader("Access-Control-Allow-Origin") is None
        assert get(port, "/data/studies", Origin=f"http://127.0.0.1:{port}").status == 200
        for path in PATHS[:4]:
            assert get(port, path).getheader("Cross-Origin-Resource-Policy") == "same-origin"


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example/x", "/%2Fevil.example/x"])
def test_redirect_stays_on_this_server(growing, tmp_path, path) -> None:
    with serving(tmp_path) as port:
        answer = raw(port, f"{path}?token={TOKEN}&a=b%26c=d", ("Host", f"127.0.0.1:{port}"))
        there = answer.getheader("Location")
        assert answer.status == 303
        assert urljoin(f"http://127.0.0.1:{port}/", there).startswith(f"http://127.0.0.1:{port}/")
        assert not there.startswith(("//", "/\\"))
        assert there.endswith("?a=b%26c%3Dd")


def test_pages_may_load_nothing_from_elsewhere(growing, tmp_path) -> None:
    with serving(tmp_path) as port:
        policy = get(port, "/").getheader("Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy
        assert "unsafe-eval" not in policy
        for path in ("/", "/static/live.js", "/static/live.css"):
            text = get(port, path).read().decode()
            assert "http://" not in text
            assert "https://" not in text


def test_polling_continues_after_the_last_message_and_restarts_with_the_whole_state(growing, tmp_path) -> None:
    growing.train("baseline", 0, 0, 20)
    with serving(tmp_path) as port:
        (state,) = messages(port)
        (key,) = state["data"]["runs"]
        assert state["kind"] == "state"
        assert state["data"]["runs"][key]["series"]["train/loss"] == [[10, 20], [0.1, 0.05]]
        assert messages(port, state["id"]) == []
        growing.train("baseline", 0, 20, 30)
        (points,) = messages(port, state["id"])
        assert points["data"]["series"]["train/loss"][0] == [30]
        assert messages(port, state["id"]) == [points]  # the answer to the page was lost
    with serving(tmp_path, port):
        (state,) = messages(port, points["id"])
        assert state["data"]["runs"][key]["series"]["train/loss"][0] == [10, 20, 30]


def test_studies_runs_and_one_run(growing, tmp_path) -> None:
    for arm in ("baseline", "other"):
        growing.train(arm, 0, 0, 20)
        growing.finish(arm, 0, 1.0)
    with serving(tmp_path) as port:
        (study,) = json.loads(get(port, "/data/studies").read())
        assert (study["study"], study["done"], study["runs"]) == ("toy", 2, 4)
        runs = json.loads(get(port, "/data/runs").read())
        assert runs["columns"] == ["model.dim"]
        assert [row["settings"]["model.dim"] for row in runs["rows"]] == [8, 16]
        row = runs["rows"][1]
        run = json.loads(get(port, f"/data/run/toy/{row['arm']}/{row['run']}").read())
        assert run["samples"] == {"20": f"a text of {row['arm']}"}
        assert run["metrics"] == {"val/loss": 1.0}
        assert run["series"]["train/loss"] == [[10, 20], [0.1, 0.05]]


@pytest.mark.parametrize("path", ["/data/study/tpy", "/data/run/toy/baseline/0-12345678"])
def test_missing_study_and_run_give_404(growing, tmp_path, path) -> None:
    with serving(tmp_path) as port:
        answer = get(port, path)
        assert answer.status == 404
        assert "no " in json.loads(answer.read())["problem"]


@pytest.mark.parametrize(("name", "content"), [("config.json", "[]"), ("result.json", '{"x":')])
def test_damaged_run_is_reported_and_other_runs_are_listed(growing, tmp_path, name: str, content: str) -> None:
    for seed in (0, 1):
        growing.train("baseline", seed, 0, 20)
        growing.finish("baseline", seed, 0.5)
    damaged = Path(growing.run("baseline", 0).where) / name
    damaged.write_text(content)
    with serving(tmp_path) as port:
        found = json.loads(get(port, "/data/runs").read())
    assert [row["seed"] for row in found["rows"]] == [1]
    (problem,) = found["problems"]
    assert str(damaged) in problem


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 19, "-1", "x", "²"])
def test_unknown_cursors_get_the_whole_state(growing, tmp_path, number: str) -> None:
    with serving(tmp_path) as port:
        life = messages(port)[-1]["id"].partition("-")[0]
        answer = get(port, f"/data/study/toy?since={life}-{quote(number)}")
        assert answer.status == 200
        assert [message["kind"] for message in json.loads(answer.read())] == ["state"]
