"""The page about tasks names every generated task, and its studies with known outcomes claim what their tasks imply."""

import re
from pathlib import Path

import pytest

from taetpu.core.registry import kinds
from taetpu.data.synthetic.generated import GeneratedTask
from taetpu.spec.loading import load_study
from taetpu.stats.claims import LevelClaim, parse_claim
from taetpu.store.documents import from_yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tasks.md").read_text()
KNOWN = sorted(file for file in (ROOT / "studies" / "known").glob("*.yaml") if ".claims" not in file.name)


def test_page_names_every_generated_task() -> None:
    named = set(re.findall(r"`([a-z-]+)`", PAGE))
    assert {kind for kind, cls in kinds("task").items() if issubclass(cls, GeneratedTask)} <= named


def test_page_has_every_study_with_a_known_outcome() -> None:
    assert sorted(re.findall(r"\.\./studies/known/([a-z-]+)\.yaml", PAGE)) == [file.stem for file in KNOWN]


@pytest.mark.parametrize("file", KNOWN, ids=lambda file: file.stem)
def test_claims_are_about_arms_of_their_study(file: Path) -> None:
    asked = from_yaml(file.with_suffix(".claims.yaml").read_bytes(), file.name)
    study = load_study(file)
    assert asked["study"] == study.name == f"known-{file.stem}"
    claims = [parse_claim(text, ("claims", i)) for i, text in enumerate(asked["claims"])]
    assert {claim.arm for claim in claims} <= {arm.name for arm in study.arms}
    assert any(isinstance(claim, LevelClaim) for claim in claims)


@pytest.mark.parametrize(("name", "fact", "above"), [("markov", "bayes_loss", 0.02), ("masked-lm", "decoy_loss", 0.0)])
def test_claimed_levels_follow_from_the_data(name: str, fact: str, above: float) -> None:
    file = ROOT / "studies" / "known" / f"{name}.yaml"
    study = load_study(file)
    reference = study.source(study.arms[0]).facts[fact]
    claims = from_yaml(file.with_suffix(".claims.yaml").read_bytes(), file.name)["claims"]
    (level,) = (float(text.split()[-1]) for text in claims if text.startswith("baseline is below"))
    assert level <= reference + above + 1e-4
