"""Common mistakes in a plug-in are reported with place and remedy; nothing is stored."""

import pytest
from tests.cli.mistakes import EXITS, FFN, MISTAKES, STUDY, ffn
from tests.suites import by_default


@pytest.fixture
def written(here):
    """`written(source, arm)`: writes `own.yaml`, a study with this arm, and its plug-in `own.py`."""

    def write(source: str | bytes, arm: str) -> None:
        source = source if isinstance(source, bytes) else source.encode()
        (here / "own.py").write_bytes(source)
        study = STUDY.replace("ARM", arm)
        (here / "own.yaml").write_text(study.replace("[]", "[own]") if b'"metric", "own"' in source else study)

    return write


@pytest.mark.parametrize("name", by_default(MISTAKES, "no init", "syntax", "one channel"))
def test_plug_in_mistake_is_reported_with_place_and_remedy(taetpu, written, here, name):
    source, arm, problem, where, remedy = MISTAKES[name]
    written(source, arm)
    code, out, err = taetpu("plan", "own.yaml")
    assert (code, out) == (2, "")
    said, _, rest = err.partition("  where:  ")
    place, _, instead = rest.partition("  remedy: ")
    assert said.startswith("error: ")
    for part in problem:
        assert part in said
    text = (source if isinstance(source, bytes) else source.encode()).decode(errors="replace")
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if where in line]
    assert (f"{here / 'own.py'}:{lines[0]}" if lines else where) in place.replace("\n", " ")
    assert remedy in " ".join(instead.split())
    assert not (here / "runs").exists()


RUN = ("at import", "in a call")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), [*((name, "plan") for name in EXITS), *((name, "run") for name in RUN)])
def test_exit_in_a_plug_in_is_an_error(taetpu, written, here, name, command):
    source, arm, problem = EXITS[name]
    written(source, arm)
    code, out, err = taetpu(command, "own.yaml")
    assert (code, out) == (2, "")
    assert problem in err
    assert f"{here / 'own.py'}:" in err
    assert not (here / "runs").exists()


@pytest.mark.parametrize("name", ["no init", "syntax", "one channel"])
def test_taetpu_testing_reports_the_same_mistakes(written, here, capsys, monkeypatch, name):
    """`python -m taetpu.testing` reports the mistakes that `plan` reports, at the same lines."""
    from taetpu.testing.__main__ import main

    source, arm, problem, where, _ = MISTAKES[name]
    written(source, arm)
    monkeypatch.setattr("sys.argv", ["taetpu.testing", "own.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert ended.value.code in (1, 2)
    assert problem[0].removeprefix("ffn 'own' returns (2, 16") in err
    line = next(number for number, line in enumerate(str(source).splitlines(), start=1) if where in line)
    assert f"own.py:{line}" in err


@pytest.mark.slow
def test_correct_plug_in_is_accepted(taetpu, written):
    written(ffn(), FFN)
    assert taetpu("plan", "own.yaml").code == 0
