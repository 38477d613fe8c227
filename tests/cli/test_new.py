"""`taetpu new`: names, templates and files."""

import pytest

from taetpu.spec.loading import load_study


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-idea", "a=b,c", "123", "null"])
def test_new_study_loads_under_its_name(taetpu, here, name):
    code, out, err = taetpu("new", name)
    assert (code, err) == (0, "")
    assert f"wrote {name}.yaml and {name}.py\nnext: taetpu plan {name}.yaml" in out
    study = load_study(here / f"{name}.yaml")
    assert study.name == name
    assert len(study.arms) > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jax", "taetpu.yaml"])
def test_new_study_that_shadows_a_module_is_refused(taetpu, here, contents, name):
    before = contents(here)
    code, out, err = taetpu("new", name)
    module = name.removesuffix(".yaml")
    assert (code, out) == (2, "")
    assert f"{module}.py would shadow" in err
    assert f"Python module {module}" in err
    assert f"e.g. {module}-study" in err
    assert contents(here) == before
    assert taetpu("new", f"{module}-study").code == 0


@pytest.mark.parametrize(
    ("name", "instead"),
    [("", "my-study"), (".", "my-study"), ("..", "my-study"), ("*", "my-study"), ("__init__", "init"), ("a/b", "a-b")],
)
def test_invalid_name_is_refused_with_a_valid_one(taetpu, here, contents, name, instead):
    before = contents(here)
    code, out, err = taetpu("new", name)
    assert (code, out) == (2, "")
    assert f"name {name!r}" in err
    assert "where:  the argument NAME" in err
    assert f"e.g. {instead}" in err
    assert contents(here) == before


def test_new_study_may_have_the_name_of_a_folder(taetpu, here):
    (here / "ideas").mkdir()
    (here / "ideas" / "__init__.py").touch()
    assert taetpu("new", "ideas").code == 0


def test_new_study_may_be_named_by_its_file(taetpu, here):
    assert "wrote my-idea.yaml and my-idea.py" in taetpu("new", "my-idea.yaml")[1]
    assert load_study(here / "my-idea.yaml").name == "my-idea"
