"""The time that `plan` predicts from packs that were trained on this machine."""

import pytest
from tests.small import STUDY

from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.preview import prepare_study, preview
from taetpu.study.run_file import run
from taetpu.train.layout import AUTO


@pytest.mark.slow
def test_the_time_of_a_new_study_follows_from_a_trained_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)

    def predicted(steps: int) -> float | None:
        study = load_study(file, [f"train.steps={steps}"])
        folder = StudyFolder(open_store(str(tmp_path / "elsewhere")), study.name)
        return preview(prepare_study(study, folder), folder, AUTO)["seconds"]

    assert predicted(40) is None
    run(file, root=str(tmp_path / "root"))
    short, long = predicted(40), predicted(80)
    assert short is not None
    assert 0 < short < 60
    assert long == pytest.approx(2 * short)
