"""The progress of a run in a log and on a terminal, and the time left."""

import re

import numpy as np
import pytest
from tests.cli.terminal import on_terminal

from taetpu.core.errors import UserError
from taetpu.study import progress

ESCAPES = r"\x1b\[[\d;?]*[A-Za-z]"


def test_log_has_one_plain_line_per_evaluation(trained):
    _, done = trained
    assert "\x1b" not in done.err
    header, columns, first, *evaluations = done.err.splitlines()
    assert header == "study small: arms 2, seeds 2, metric val/loss (nats per token)"
    assert ("mean" in columns, first) == (True, "pack 1 of 1: baseline, low-lr (4 runs)")
    pattern = r"  step (\d+: val_sample|\d+: val)/loss baseline \d\.\d{3}  low-lr \d\.\d{3}  "
    pattern += r"\((?:[\d,]+ tokens/s, )?memory \d+\.\d of \d+\.\d GiB(?:, 0:0\d:\d\d left)?\)"  # a CPU has no peak
    matches = [re.fullmatch(pattern, line) for line in evaluations]
    assert [match and match[1] for match in matches] == ["10: val_sample", "20: val"]


@pytest.mark.parametrize(("asked", "lines"), [(False, []), (True, ["  sample of baseline: a b c"])])
def test_logs_show_samples_if_asked(here, text, asked, lines):
    import io

    from rich.console import Console

    from taetpu.spec.loading import load_study

    run = load_study(here / "s.yaml").runs()[0]
    out = io.StringIO()
    progress.StudyProgress(Console(file=out), samples=asked).on_sample(10, run, "a b\n c")
    assert out.getvalue().splitlines() == lines


def test_progress_shows_the_primary_metric(here, text):
    """While runs train, its sampled counterpart is shown. Shortened names stay distinct."""
    import io

    from rich.console import Console

    from taetpu.spec.loading import load_study

    name = "an-arm-whose-name-is-long-and-has-a-{}-in-the-middle-of-it"
    arms = "".join(f"  {name.format(i)}: {{train.optimizer.lr: 1e-{i}}}\n" for i in (5, 6))
    (here / "s.yaml").write_text(text + arms + "measure: {primary: val/accuracy, direction: max}\n")
    runs = [run for run in load_study(here / "s.yaml").runs() if run.seed == 0]
    out = io.StringIO()
    shown = progress.StudyProgress(Console(file=out, width=200))
    shown.on_study_begin(load_study(here / "s.yaml"))
    shown.on_train_begin(100)
    shown.on_pack_begin(1, 1, runs)
    shown.on_steps(1, np.ones(len(runs), np.float32))
    for split in ("val_sample", "val"):
        for run in runs:
            shown.on_evaluate(10, run, {f"{split}/loss": 2.0, f"{split}/accuracy": 0.25})
        assert f"step 10: {split}/accuracy baseline 0.250" in out.getvalue()
    shown.console.print(shown.render())
    table = out.getvalue().splitlines()[-len(runs) - 2 :]
    assert "val/accuracy" in "".join(table)
    assert len({line.split()[0] for line in table if line.startswith("an-arm")}) == 2


def test_means_are_printed_when_all_runs_are_evaluated(here, text):
    """A run that stops is evaluated before the others, whose values are those of an earlier step."""
    import io

    from rich.console import Console

    from taetpu.spec.loading import load_study

    study = load_study(here / "s.yaml")
    runs, out = [run for run in study.runs() if run.arm == "baseline"], io.StringIO()
    shown = progress.StudyProgress(Console(file=out, width=200))
    shown.on_study_begin(study)
    shown.on_train_begin(100)
    shown.on_pack_begin(1, 1, runs)
    for step, evaluated, value in ((10, runs, 4.0), (20, runs[-1:], 1.0), (20, runs, 2.0)):
        for run in evaluated:
            shown.on_evaluate(step, run, {"val_sample/loss": value})
    lines = [line for line in out.getvalue().splitlines() if "step" in line]
    assert [[part in line for part in ("step 10", "step 20", "4.000", "2.000")] for line in lines] == [
        [True, False, True, False], [False, True, False, True],
    ]  # fmt: skip


def test_post_hoc_tables_are_shown_with_their_failures(wording):
    import io

    from rich.console import Console

    out = io.StringIO()
    shown = progress.StudyProgress(Console(file=out, width=200))
    for done in range(3):
        shown.on_tables(done, 2)
    shown.on_table_failed("runs/s/a/0", "heads-mean", MemoryError("no memory is left"))
    shown.on_table_failed("runs/s/a/1", "heads-mean", UserError("the plug-in is missing", remedy="Restore it."))
    assert len(out.getvalue().splitlines()) == 4
    wording(out.getvalue())
    shown.console.print(shown.render())
    assert "post-hoc ablation 2/2" in out.getvalue()


@pytest.mark.nightly
def test_terminal_shows_bar_speed_losses_and_time_left(here, text):
    longer = text.replace("steps: 20,", "steps: 600,").replace("eval_every: 10", "eval_every: 120")
    (here / "s.yaml").write_text(longer)
    code, written = on_terminal(here, ["run", "s.yaml"], answer="", seconds=240)
    assert code == 0, written
    plain = re.sub(ESCAPES, "", written)
    lines = re.split(r"[\r\n]+", plain)
    assert max(map(len, lines)) <= 80
    bars = [line.split() for line in lines if line.startswith("pack 1/1 ")]
    assert any(bar[4] == "compiling" for bar in bars)
    pattern = r"pack 1/1 \S+ +\d+% [\d,]+ tokens/s 0:00:\d\d 0:0\d:\d\d left"
    assert any(re.fullmatch(pattern, line.rstrip()) for line in lines)
    assert any(re.fullmatch(r"arm +train/loss +val(?:_sample)?/loss", line.rstrip()) for line in lines)
    for arm in ("baseline", "low-lr"):
        assert any(re.fullmatch(rf"{arm} +\d\.\d{{3}} +\d\.\d{{3}}", line.rstrip()) for line in lines)
    assert any(line.startswith(("baseline: <bos>", "low-lr: <bos>")) for line in lines)  # a sample
    # The display goes when the run is done; the verdicts stay.
    assert re.search(r"report: runs/small/report/index.html\s*$", plain)


def test_progress_display_fits_80_columns(here, text):
    """The display has long names, many arms, a high speed and days left."""
    from rich.console import Console

    from taetpu.spec.loading import load_study
    from taetpu.train.usage import Usage

    arms = "".join(
        f"  an-arm-whose-name-does-not-know-how-to-end-{i}: {{train.optimizer.lr: 1e-{i}}}\n" for i in range(5, 9)
    )
    (here / "s.yaml").write_text(text.replace("seq_len: 16", "seq_len: 16000") + arms)
    runs = load_study(here / "s.yaml").runs()
    clock = 0.0
    console = Console(width=80, height=24, force_terminal=True, get_time=lambda: clock)
    shown = progress.StudyProgress(console)
    shown.on_train_begin(10**9)
    shown.on_pack_begin(10, 12, runs)
    for step, seconds in ((1, 100.0), (1000, 100.0)):
        clock += seconds
        shown.on_steps(step, np.full(len(runs), 12.3456, np.float32))
    shown.on_usage(Usage(0.4137, 3 * 2**30, 16 * 2**30))
    shown.on_sample(1000, runs[0], "word " * 100)
    with console.capture() as captured:
        console.print(shown.render())
    lines = [line.rstrip() for line in re.sub(ESCAPES, "", captured.get()).splitlines()]
    assert max(map(len, lines)) <= 80
    assert re.fullmatch(r"pack 10/12 \S+ +0% [\d,]+ tokens/s \S+ \d+ days?, \S+ left", lines[0])
    assert lines[1] == "41% of peak, memory 3.0 of 16.0 GiB"
    assert len(lines) < 24


@pytest.mark.parametrize(
    ("after", "terminal", "shown"), [(0.05, True, True), (60.0, True, False), (0.05, False, False)]
)
def test_the_bar_of_a_check_appears_on_a_terminal_after_some_time(monkeypatch, after, terminal, shown):
    import io
    import time

    from rich.console import Console

    monkeypatch.setattr(progress, "SHOWN_AFTER", after)
    out = io.StringIO()
    with progress.parts_bar(Console(file=out, force_terminal=terminal, width=80), "measuring sizes") as update:
        update(0, 12)
        end = time.monotonic() + (20.0 if shown else 0.3)
        while "measuring sizes" not in out.getvalue() and time.monotonic() < end:
            time.sleep(0.02)
    assert ("measuring sizes" in out.getvalue()) == shown
    assert ("0/12" in re.sub(ESCAPES, "", out.getvalue())) == shown


@pytest.mark.parametrize("nodes", [False, True])
def test_data_that_other_nodes_need_is_named(tmp_path, nodes):
    import io

    from rich.console import Console

    from taetpu.spec.loading import load_study

    (tmp_path / "a.txt").write_text("many words, " * 100)
    (tmp_path / "s.yaml").write_text(
        "study: texts\nbase:\n  task: {kind: text, source: a.txt, seq_len: 8}\n"
        "  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}\n"
        "  train: {steps: 6, batch_size: 4}\narms: {low: {train.optimizer.lr: 1e-5}}\nmeasure: {primary: val/loss}\n"
    )
    out = io.StringIO()
    progress.StudyProgress(Console(file=out, width=200), nodes=nodes).on_study_begin(load_study(tmp_path / "s.yaml"))
    assert ("1,200 bytes in 1 file " in out.getvalue()) == nodes
