"""The studies of the gallery load, train, and have claims about what they measure."""

import shutil
from pathlib import Path

import pytest

import taetpu
from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.stats.claims import Claim, LevelClaim, RepetitionClaim, parse_claim
from taetpu.store.documents import from_yaml
from taetpu.study.claims_file import check_claims
from taetpu.study.gallery_index import entry_files, find_entry, read_gallery

GALLERY = read_gallery()
PUBLIC = Path(__file__).parents[2] / "studies/gallery"


def read_claims(name):
    with entry_files(GALLERY[name]) as (_, file):
        asked = from_yaml(file.read_bytes(), file.name)
    return asked["study"], [parse_claim(text, ("claims", i)) for i, text in enumerate(asked["claims"])]


def test_index_lists_every_study_and_users_see_the_same_files():
    files = {file.name.partition(".")[0] for file in PUBLIC.glob("*.yaml")} - {"index"}
    assert files == {*GALLERY}
    with entry_files(GALLERY["null"]) as (study, claims):
        assert study.samefile(PUBLIC / study.name)
        assert claims.samefile(PUBLIC / claims.name)


@pytest.mark.parametrize("name", GALLERY)
def test_claims_are_about_arms_contrasts_and_tables_of_their_study(name):
    with entry_files(GALLERY[name]) as (file, _):
        study = load_study(file)
    about, claims = read_claims(name)
    assert about == study.name == GALLERY[name].study
    arms, compared = {arm.name for arm in study.arms}, {(c["compare"][0], c["to"][0]) for c in study.contrasts.values()
                                                        if "spread" not in c}  # fmt: skip
    tables = {table.name for table in study.measure.post_hoc}
    for claim in claims:
        if isinstance(claim, LevelClaim):
            assert claim.arm in arms
            assert not claim.table or claim.table in tables
        elif isinstance(claim, Claim):
            assert claim.arm in arms | {*study.contrasts}
            assert claim.other is None or (claim.arm, claim.other) in compared
        else:
            assert isinstance(claim, RepetitionClaim)
            assert len(study.seeds) == 3 * claim.number


@pytest.mark.parametrize("name", ["rank-colapse", "gallery-rank-colapse"])
def test_unknown_study_has_a_suggestion(name):
    with pytest.raises(UserError) as caught:
        find_entry(name)
    assert name in caught.value.problem
    assert "rank-collapse" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("name", GALLERY)
def test_study_trains_for_two_steps_and_its_claims_are_checked(name, tmp_path):
    with entry_files(GALLERY[name]) as (file, _):
        shutil.copytree(file.parent, tmp_path / "gallery")
    file = tmp_path / f"gallery/{name}.yaml"
    text = file.read_text()
    seeds = load_study(file).seeds
    file.write_text(text.replace(f"\nseeds: {len(seeds)}\n", f"\nseeds: {40 if name == 'null' else 2}\n"))
    train = load_study(file).arms[0].config.train
    sets = ["task.eval_size=4"] if "eval_size" in text else []
    if train.steps:
        sets += ["train.steps=2", "train.eval_every=none", *["train.schedule.warmup=1"] * (train.schedule.warmup > 0)]
    outcome = taetpu.run(file, sets, root=str(tmp_path / "runs"))
    assert not outcome.failed
    _, findings = check_claims(file.with_suffix(".claims.yaml"), str(tmp_path / "runs"))
    assert [finding.claim for finding in findings] == read_claims(name)[1]
    assert all(finding.evidence for finding in findings)
