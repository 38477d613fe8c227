"""The server as browsers see it: over HTTP, by a real uvicorn."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

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


def raw(port: int, path: str, *headers: tuple[str, str]):
    """A request with these headers and no others, its path as it stands."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    OPEN.extend((connection, answer))
    return answer


PATHS = ("/", "/live.js", "/vega.js", "/data/studies", "/data/study/toy", "/events/study/toy", "/nowhere")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}", "127.0.0.1@evil",
     "0.0.0.0:{port}", "localhost:port", "127.0.0.1:99999", "127.0.0.1:", "[::1", "[::2]:{port}", "", "127.0.0.1:٣"],
)  # fmt: skip
def test_a_page_whose_domain_was_rebound_reads_nothing(growing, tmp_path, host) -> None:
    """With the cookie, which a browser would not even send there, and with the token in the query."""
    with serving(tmp_path) as port:
        named = host.format(port=port).encode()
        cookie = ("Cookie", "; ".join(f"{COOKIE}-{known}={TOKEN}" for known in (port, None, 80)))
        for path in (*PATHS, f"/?token={TOKEN}"):
            answer = raw(port, path, ("Host", named), cookie)
            assert (answer.status, answer.getheader("Set-Cookie")) == (403, None), path
            told = answer.read().decode()
            assert "127.0.0.1 or localhost" in told
            assert "toy" not in told
            assert TOKEN not in told


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "localhost:9", "LocalHost:{port}", "[::1]:9"])
def test_this_machine_is_named_in_any_way_and_at_the_port_that_ssh_forwards(growing, tmp_path, host) -> None:
    with serving(tmp_path) as port:
        named = ("Host", host.format(port=port))
        answer = raw(port, f"/?token={TOKEN}", named)
        cookie = ("Cookie", answer.getheader("Set-Cookie").partition(";")[0])
        assert raw(port, "/data/studies", named, cookie).status == 200
        stream = raw(port, "/events/study/toy", named, cookie)
        assert next(messages(stream))[1] == "state"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_a_page_of_another_origin_reads_nothing(growing, tmp_path, origin) -> None:
    with serving(tmp_path) as port:
        for path in PATHS:
            answer = get(port, path, Origin=origin.format(port=port))
            assert answer.status == 403, path
            assert answer.getheader("Access-Control-Allow-Origin") is None
        assert get(port, "/data/studies", Origin=f"http://127.0.0.1:{port}").status == 200
        for path in PATHS[:4]:
            assert get(port, path).getheader("Cross-Origin-Resource-Policy") == "same-origin"


@pytest.mark.parametrize(
    "path", ["//evil.example/x", "///evil.example/x", "/\\evil.example/x", "//", "/%2Fevil.example/x"]
)
def test_the_link_leads_to_this_server_alone(growing, tmp_path, path) -> None:
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
        assert b": heartbeat\n" in lines


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
