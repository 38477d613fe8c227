"""Commands on hosts that were taken away: the API is asked what became of them, and what to do is said."""

import re

import pytest
from tests.cli.test_remote import project, taetpu  # noqa: F401 (fixture)

UP = ("tpu", "up", "--spot", "--yes")
KINDS = {
    "gce": (*UP, "--type", "v6e-8", "--zone", "us-east5-b"),
    "tpu-api": (*UP, "--type", "v5e-8", "--zone", "us-west4-a"),
}
ON_HOSTS = (
    ("tpu", "run", "python", "show.py"),
    ("tpu", "sync"),
    ("tpu", "logs"),
    ("tpu", "stop"),
    ("tpu", "ssh"),
    ("dev", "run", "-i", "show.py"),
    ("dev", "sync", "--watch"),
    ("dev", "scrap", "show.py"),
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", KINDS)
def test_a_machine_that_was_preempted_is_told_so(fake, project, backend):  # noqa: F811
    taetpu(*KINDS[backend])
    taetpu("tpu", "run", "true")
    assert taetpu("tpu", "ssh", "--", "exit", "255", code=255).stderr == "", "it is there, and that was its own code"
    fake.preempt("t")
    for words in ON_HOSTS:
        told = taetpu(*words, code=2).stderr
        over = (
            r"over: it does not answer, and is .* by the API's word\n.*, `taetpu tpu down t` removes what is left of it"
        )
        gone = (
            r"gone: it does not answer, and the API knows no such machine\n.*"  # Compute Engine deletes it in the end
        )
        assert re.search(rf"^error: t is ({over}|{gone})\n$", told, re.MULTILINE), (words, told)
        assert "  remedy: `taetpu tpu up t` makes it anew" in told
        assert "Traceback" not in told
        assert "taetpu doctor" not in told
    taetpu("tpu", "down", "--yes")


@pytest.mark.slow
def test_a_machine_that_is_gone_is_told_so(fake, project):  # noqa: F811
    taetpu(*KINDS["gce"])
    with fake.world.lock:
        fake.world.table("gce.instances").clear()
    fake.hosts.halt("t")
    told = taetpu("tpu", "sync", code=2).stderr
    assert told.startswith("error: t is gone: it does not answer, and the API knows no such machine\n")


@pytest.mark.slow
def test_one_that_is_there_and_does_not_answer_is_not_called_gone(fake, project):  # noqa: F811
    taetpu(*KINDS["gce"])
    fake.hosts.halt("t")
    told = taetpu("tpu", "sync", code=3).stderr
    assert "`taetpu doctor` looks at IAP and the firewall" in told
