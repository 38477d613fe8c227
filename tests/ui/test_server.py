"""The server as browsers see it: over HTTP, by a real uvicorn."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.ui.served import TOKEN, serving

from taetpu.ui import server as module
from taetpu.ui.server import COOKIE

OPEN: list[http.client.HTTPConnection | http.client.HTTPResponse] = []


@pytest.fixture(autouse=True)
def closed():
    """What `get` opened is closed at a test's end."""
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


def messages(answer) -> Iterator[tuple[str, str, dict]]:
    """`(id, kind, data)` of a stream; comments are left out."""
    fields: dict[str, str] = {}
    while line := answer.readline().decode():
        name, _, value = line.strip().partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def test_only_who_has_the_token_sees_anything(growing, tmp_path) -> None:
    with serving(tmp_path) as port:
        for path in ("/", "/data/studies", "/events/study/toy", "/live.js", "/study/toy?token=other"):
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


def test_pages_may_load_nothing_from_elsewhere(growing, tmp_path) -> None:
    with serving(tmp_path) as port:
        policy = get(port, "/").getheader("Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy
        assert "unsafe-eval" not in policy
        for path in ("/", "/live.js", "/live.css"):
            text = get(port, path).read().decode()
            assert "http://" not in text
            assert "https://" not in text


@pytest.mark.slow
def test_a_stream_goes_on_where_it_was_cut_also_when_the_server_was_killed(growing, tmp_path) -> None:
    growing.train("baseline", 0, 0, 20)
    with serving(tmp_path) as port:
        stream = messages(get(port, "/events/study/toy"))
        cursor, kind, data = next(stream)
        assert kind == "state"
        (key,) = data["runs"]
        assert data["runs"][key]["series"]["train/loss"] == [[10, 20], [0.1, 0.05]]
        growing.train("baseline", 0, 20, 40)
        cursor, kind, data = next(stream)
        assert (kind, data["series"]["train/loss"][0]) == ("points", [30, 40])
        growing.train("baseline", 0, 40, 50)
        again = messages(get(port, "/events/study/toy", **{"Last-Event-ID": cursor}))
        _, kind, data = next(again)
        assert (kind, data["series"]["train/loss"][0]) == ("points", [50])
    with serving(tmp_path, port) as port:
        _, kind, data = next(messages(get(port, "/events/study/toy", **{"Last-Event-ID": cursor})))
        assert (kind, data["runs"][key]["series"]["train/loss"][0]) == ("state", [10, 20, 30, 40, 50])


def test_an_idle_stream_says_that_it_is_there(growing, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT", 0.1)
    with serving(tmp_path) as port:
        answer = get(port, "/events/study/toy")
        assert answer.getheader("Content-Type").startswith("text/event-stream")
        lines = [answer.readline() for _ in range(6)]
        assert b": still here\n" in lines


def test_polling_gives_the_same_messages(growing, tmp_path) -> None:
    growing.train("baseline", 0, 0, 20)
    with serving(tmp_path) as port:
        (state,) = json.loads(get(port, "/data/study/toy?since=").read())
        assert state["kind"] == "state"
        assert json.loads(get(port, f"/data/study/toy?since={state['id']}").read()) == []
        growing.train("baseline", 0, 20, 30)
        (points,) = json.loads(get(port, f"/data/study/toy?since={state['id']}").read())
        assert points["data"]["series"]["train/loss"][0] == [30]


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
        assert run["samples"] == {"20": "a text of other"}
        assert run["metrics"] == {"val/loss": 1.0}
        assert run["series"]["train/loss"] == [[10, 20], [0.1, 0.05]]


@pytest.mark.parametrize("path", ["/data/study/tpy", "/events/study/tpy", "/data/run/toy/baseline/0-12345678"])
def test_what_is_not_there_is_said(growing, tmp_path, path) -> None:
    with serving(tmp_path) as port:
        answer = get(port, path)
        assert answer.status == 404
        assert "no " in json.loads(answer.read())["problem"]


@pytest.mark.parametrize(("name", "content"), [("config.json", "[]"), ("result.json", '{"x":')])
def test_a_damaged_run_is_named_beside_the_others(growing, tmp_path, name: str, content: str) -> None:
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
