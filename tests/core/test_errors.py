"""Messages of user errors."""

import pytest

from taetpu.core.errors import UserError, dotted_path, suggest


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("bad"), "bad"),
        (UserError("bad", path=("a", 0)), "bad\n  where:  a.0"),
        (UserError("bad", file="s.yaml", line=3), "bad\n  where:  s.yaml:3"),
        (UserError("bad", path=("a",), file="s.yaml", remedy="c"), "bad\n  where:  s.yaml at a\n  remedy: c"),
    ],
)
def test_message_has_problem_place_and_remedy(error, text):
    assert str(error) == text


def test_within_extends_only_the_path():
    error = UserError("bad", path=("a",), line=3, remedy="r").within("base", "model", file="s.yaml", line=9)
    assert str(error) == "bad\n  where:  s.yaml:3 at base.model.a\n  remedy: r"


def test_suggest_names_the_nearest():
    assert suggest("swigul", ["swiglu", "relu"]) == "Did you mean 'swiglu'? Use one of: relu, swiglu."
    assert suggest("gelu", ["geglu", "gelu-erf"]).startswith("Did you mean 'gelu-erf'?")
    assert suggest("zzz", ["swiglu", "relu"]) == "Use one of: relu, swiglu."
    assert suggest("a", []).startswith("No names")
    assert dotted_path(("layers", -1, "ffn")) == "layers.-1.ffn"


def test_suggest_limits_the_number_of_names() -> None:
    names = [f"model.layers.{i}.mixer.num_heads" for i in range(60)] + ["model.dim", "train.steps"]
    told = suggest("dim", names)
    assert told.startswith("Did you mean 'model.dim'? Use one of: model.dim, ")
    assert told.endswith("and 38 more.")
    assert suggest("train.step", names).startswith("Did you mean 'train.steps'? ")
