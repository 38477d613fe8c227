"""Forwards of `taetpu tpu ssh -L`: their form, and ports that are in use."""

import socket

import pytest

from taetpu.cloud.port_forwarding import Forward, check_free, parse_forward
from taetpu.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "forward"),
    [
        ("8888", Forward(8888, "localhost", 8888)),
        ("8889:localhost:8888", Forward(8889, "localhost", 8888)),
        ("1:10.0.0.2:65535", Forward(1, "10.0.0.2", 65535)),
        ("8888:[::1]:80", Forward(8888, "[::1]", 80)),
    ],
)
def test_a_forward_is_parsed_and_only_this_computer_reaches_it(text, forward):
    assert parse_forward(text) == forward
    assert forward.option == f"127.0.0.1:{forward.port}:{forward.host}:{forward.host_port}"


@pytest.mark.parametrize(
    "text", ["", "x", "8888:", "8888:localhost", "0.0.0.0:8888:localhost:8888", "8888:a b:1", "٨٨", "-1", "8888:h:1 -v"]
)
def test_another_form_is_refused(text):
    with pytest.raises(UserError, match="forward") as error:
        parse_forward(text)
    assert repr(text) in error.value.problem
    assert "8888:localhost:8888" in (error.value.remedy or "")


@pytest.mark.parametrize(("text", "port"), [("0", 0), ("65536", 65536), ("8888:localhost:99999", 99999)])
def test_a_port_outside_the_range_is_refused(text, port):
    with pytest.raises(UserError, match=f"65535, got {port} "):
        parse_forward(text)


def test_a_port_in_use_is_refused_with_a_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} ") as error:
            check_free([Forward(port, "localhost", 8888)])
    other, _, rest = (error.value.remedy or "").partition("-L ")[2].partition(":")
    assert rest == "localhost:8888."
    check_free([Forward(int(other), "localhost", 8888), Forward(port, "localhost", 8888)])
    with pytest.raises(UserError, match=f"port {port} .*twice"):
        check_free([Forward(port, "localhost", 1), Forward(port, "localhost", 2)])
