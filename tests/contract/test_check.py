"""The arm contract refuses arms that break it, with the reason, and accepts others. Its comparisons are correct."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.contract.causal import sees_later_tokens
from taetpu.contract.check import check_arms, compare_parameters
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.registry import kinds
from taetpu.nn.block import SLOTS, LayerConfig
from taetpu.nn.named_arrays import named_parameters
from taetpu.spec.loading import load_study
from taetpu.train.step import init_state

PLANTED = Path(__file__).with_name("planted.py")
STUDY = """\
study: s
plugins: [planted.py]
base:
  task: {kind: copy, seq_len: 12, symbols: 5, min_length: 2, max_length: 4, eval_size: 8}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 4, sample: none}
arms:
"""


@pytest.fixture
def study(tmp_path):
    """Return `study(*arms, base="")`, which loads the study with these arms and additional model settings."""

    def loaded(*arms, base=""):
        (tmp_path / "planted.py").write_bytes(PLANTED.read_bytes())
        text = STUDY.replace("num_heads: 2}", f"num_heads: 2}}, {base}") if base else STUDY
        (tmp_path / "s.yaml").write_text(text + "".join(f"  {arm}\n" for arm in arms))
        return load_study(tmp_path / "s.yaml")

    return loaded


def refused(study) -> tuple[str, str]:
    """Return the problem and the path of a study's error."""
    with pytest.raises(UserError) as caught:
        check_arms(study)
    assert caught.value.line is not None
    return caught.value.problem, ".".join(map(str, caught.value.path))


# --- arms that change nothing ----------------------------------------------------------------------------------------

INERT = {  # settings of the baseline -> arms, and the values that the reason names
    "": {
        "{model.layers.1.mixer.head_dim: 8}": ("none -> 8", "8 is the default"),
        "{train.loss_bound: 5}": ("1000.0 -> 5.0", "diverged"),
        "{train.precision: float32}": ("auto -> float32", "this device"),
        "{model.ffn: copied}": ("swiglu -> copied", "same program"),
    },
    "ffn: {kind: relu, hidden: 24}, layers: {1: {mixer: none}}": {
        "{train.optimizer.groups.embedding: {lr: 1}}": ("same program",),
        "{model.ffn.mult: 2}": ("4.0 -> 2.0", "same program"),
        "{model.layers.1.position: none}": ("rope -> none", "same program"),
        "{model.layers.1.position.base: 5}": ("depends on model.layers.1.position.base",),
    },
}


def test_steps_are_traced_only_for_arms_that_evaluate_alike(study):
    """Tracing a step takes most of the time of the check, and different evaluations are part of different steps."""
    arms = {"relu": "{model.ffn: relu}", "gelu": "{model.ffn: gelu-tanh}"}
    apart = check_arms(study(*(f"{name}: {arm}" for name, arm in arms.items()), base="ffn: relu2"))
    assert [name for name, arm in apart.items() if "traced_step" in vars(arm.outline)] == []
    alike = check_arms(study("lion: {train.optimizer: lion}", base="ffn: relu2"))
    assert [name for name, arm in alike.items() if "traced_step" in vars(arm.outline)] == ["baseline", "lion"]


@pytest.mark.parametrize("base", by_default(INERT, ""))
def test_arms_without_effect_are_refused_with_the_reason(study, base):
    arms = INERT[base]
    with pytest.raises(UserError) as caught:
        check_arms(study(*(f"x{i}: {arm}" for i, arm in enumerate(arms)), base=base))
    for i, (error, (arm, values)) in enumerate(zip(caught.value.all_errors, arms.items(), strict=True)):
        path = arm[1:].split(":")[0]
        assert error.problem.startswith(f"arm 'x{i}' changes nothing: ")
        assert [value for value in (path, *values) if value not in error.problem] == []
        assert ".".join(map(str, error.path)) == f"arms.x{i}.{path}"


WINDOW = "model.mixer.mask: {kind: window, width: %s}"


@pytest.mark.parametrize(
    ("base", "arm", "path"),
    [
        ("", WINDOW % 12, "model.mixer.mask"),
        ("", WINDOW % "none", "model.mixer.mask"),
        ("", "model.layers.0.mixer.mask: {kind: window, width: 40}", "model.layers.0.mixer.mask"),
        ("", f"{WINDOW % 12}, model.norm: layer", "model.mixer.mask"),
        ("layers: {1: {mixer: {kind: attention, num_heads: 2, mask: {kind: window, width: 20}}}}",
         "model.layers.1.mixer.mask.width: 12", "model.layers.1.mixer.mask.width"),
    ],
)  # fmt: skip
def test_a_window_that_covers_whole_sequences_is_refused(study, base, arm, path):
    with pytest.raises(UserError) as caught:
        check_arms(study(f"x: {{{arm}}}", base=base))
    assert caught.value.problem.startswith("arm 'x' changes nothing")
    assert ".".join(map(str, caught.value.path)) == f"arms.x.{path}"
    assert "mask" in caught.value.problem
    assert "below 12" in str(caught.value.remedy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    [
        WINDOW % 11,
        f"{WINDOW % 4}, model.layers.1.mixer.mask: {{kind: window, width: none}}",
    ],
)
def test_a_window_that_hides_positions_is_accepted(study, arm):
    assert len(check_arms(study(f"x: {{{arm}}}"))) == 2


@pytest.mark.slow
def test_error_names_the_value_of_a_list_that_changes_nothing(study):
    loaded = study("x: {model.ffn.hidden: [64, 40]}")
    problem, place = refused(loaded)
    assert problem.startswith("arm 'x=40' changes nothing: model.ffn.hidden: none -> 40 ")
    assert place == "arms.x.model.ffn.hidden.1"


@pytest.mark.slow
def test_override_without_effect_is_refused_beside_one_with_effect(study):
    problem, place = refused(study("x: {model.ffn: none, model.mixer.head_dim: 8}"))
    assert "'x'" in problem
    assert "model.mixer.head_dim: none -> 8" in problem
    assert place == "arms.x.model.mixer.head_dim"


@pytest.mark.slow
def test_value_in_a_product_of_lists_may_have_no_effect(study):
    arms = check_arms(study("x: {model.mixer.head_dim: [8, 4], model.ffn: [relu, none]}"))
    assert len(arms) == 5


@pytest.mark.slow
def test_a_mask_of_ones_equals_no_mask(study):
    arms = check_arms(study("x: {model.mixer.drop_heads: [1]}", "y: {model.layers.0.drop: [ffn]}"))
    assert len({id(arm.outline) for arm in arms.values()}) == 1  # one program with different numbers


@pytest.mark.slow
def test_equal_arms_are_refused(study):
    problem, place = refused(study("x: {model.ffn.hidden: 64}", "y: {model.ffn.mult: 4}"))
    assert problem.startswith("arms 'x' and 'y' ")
    assert "same program" in problem
    assert "same numbers" in problem
    assert place == "arms.y.model.ffn.mult"


@pytest.mark.slow
def test_arms_with_different_constants_in_the_program_differ(study):
    arms = check_arms(study("x: {model.ffn: honest}", "y: {model.ffn: {kind: honest, weight: 3.0}}"))
    assert arms["x"].outline.operations == arms["y"].outline.operations
    assert not arms["x"].same_as(arms["y"])


# --- arms that change more than they declare -------------------------------------------------------------------------

MORE = {  # the arm, the parameters and the change that the message names, and a key word of the remedy
    "{model.layers.0.mixer.kind: meddling}": ("layers.0.ffn.down, layers.0.ffn.gate", "attention -> meddling", "dims"),
    "{model.mixer.kind: meddling}": ("layers.0-1.ffn.down", "attention -> meddling", "dims"),
    "{model.layers.0.mixer.kind: biasing}": ("layers.0.ffn.down_bias", "attention -> biasing", "dims"),
    "{model.mixer.kind: louder}": ("layers.0-1.mixer.wq starts", "attention -> louder", "own_init"),
}


def test_arms_that_change_more_than_they_declare_are_refused(study):
    with pytest.raises(UserError) as caught:
        check_arms(study(*(f"x{i}: {arm}" for i, arm in enumerate(MORE))))
    for i, (error, (arm, (*values, remedy))) in enumerate(zip(caught.value.all_errors, MORE.items(), strict=True)):
        assert error.problem.startswith(f"arm 'x{i}' changes more than")
        assert [value for value in values if value not in error.problem] == []
        assert remedy in str(error.remedy)
        assert (".".join(map(str, error.path)), error.line is None) == (f"arms.x{i}.{arm[1:].split(':')[0]}", False)


@pytest.mark.slow
def test_declared_change_of_initial_values_is_accepted(study):
    louder = "layers: {':': {mixer: {kind: louder, num_heads: 2}}}"
    assert set(check_arms(study("x: {model.layers.0.mixer.factor: 3.0}", base=louder))) == {"baseline", "x"}


@pytest.mark.nightly
def test_every_builtin_kind_keeps_the_contract(study):
    loaded = study()
    first = loaded.arms[0].config
    own = {slot: getattr(first.model.layers[0], slot).kind for slot in SLOTS} | {
        "embedding": "tied",
        "init": "scaled-fan-in",
    }
    others = [(slot, kind) for slot in own for kind, cls in kinds(slot).items() if kind != own[slot] and not cls.plugin]
    small = {"mup": {"base_dim": 8}, "factorised": {"size": 4}}
    with_others = {"deepnorm": ", model.norm.placement: post"}
    written = []
    for slot, kind in others:
        cls = kinds(slot)[kind]
        required = {name: cls.example[name] for name, info in cls.model_fields.items() if info.is_required()}
        settings = json.dumps({"kind": kind, **required, **small.get(kind, {})})
        written.append(f"{slot}-{kind}: {{model.{slot}: {settings}{with_others.get(kind, '')}}}")
    arms = check_arms(study(*written))
    assert len(arms) == len(others) + 1


@pytest.mark.slow
def test_change_of_model_sizes_may_change_every_parameter(study):
    loaded = study("dim: {model.dim: 32}", "deep: {model.num_layers: 3}", "bias: {model.bias: true}",
                   "gain: {model.init.gain: 0.1}", "narrow: {model.mixer.num_kv_heads: 1}")  # fmt: skip
    arms = check_arms(loaded)
    redrawn = {name: compare_parameters(arms["baseline"], arm).redrawn for name, arm in arms.items()}
    assert redrawn["bias"] == redrawn["narrow"] == ()
    assert set(redrawn["deep"]) == {f"layers.{i}.{name}" for i in (0, 1) for name in ("mixer.wo", "ffn.down")}


def test_nothing_is_compiled(study):
    loaded = study("x: {model.ffn: relu}", base="layers: {0: {ffn: {kind: swiglu, hidden: 56}}}")
    loaded.runs()  # the task compiles to draw its evaluation set
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    check_arms(loaded)
    assert compiled == []
    jax.jit(lambda x: x + 56).lower(1.0).compile()
    assert compiled != []  # the listener works


# --- comparisons are correct -----------------------------------------------------------------------------------------


def initial(config, source) -> dict[str, np.ndarray]:
    """Return the initial parameters of runs on seeds 0 and 1."""
    many = jit_once(jax.vmap(lambda seed: named_parameters(init_state(config, source, seed).model)))
    return {name: np.asarray(a) for name, a in many(np.arange(2, dtype=np.int32)).items()}


@pytest.mark.slow
def test_equal_parameters_are_bitwise_identical_and_others_are_not(study):
    loaded = study("one: {model.layers.0.ffn: relu}", "queries: {model.mixer.kind: louder-and-says-so}")
    arms = check_arms(loaded)
    old, *others = (initial(arm.config, loaded.source(arm)) for arm in loaded.arms)
    for name, new in zip(("one", "queries"), others, strict=True):
        found = compare_parameters(arms["baseline"], arms[name])
        assert {n for n in new if n in old and np.array_equal(old[n], new[n])} == set(found.equal)
        assert len(found.equal) > len(new) / 2
        assert set(found.redrawn) == ({"layers.0.mixer.wq", "layers.1.mixer.wq"} if name == "queries" else set())


def test_seed_reads_the_same_windows_with_any_model(study, tmp_path):
    (tmp_path / "text.txt").write_text("hello world. " * 40)
    text = "task: {kind: text, source: text.txt, seq_len: 12, split: order}"
    loaded = study("x: {model.ffn: relu}", "y: {train.batch_size: 8}", "z: {task.seq_len: 8}", base="")
    file = tmp_path / "s.yaml"
    file.write_text(
        "".join(f"  {text}\n" if "task:" in line else f"{line}\n" for line in file.read_text().splitlines())
    )
    loaded = load_study(file)
    arms = check_arms(loaded)
    assert [arms[name].same_data(arms["baseline"]) for name in "xyz"] == [True, False, False]
    rows = {arm.name: loaded.source(arm).rows(1, 5, 7, arm.config.train.batch_size) for arm in loaded.arms}
    assert np.array_equal(rows["baseline"], rows["x"])
    assert not np.array_equal(rows["baseline"].ravel(), rows["y"].ravel()[: rows["baseline"].size])


@pytest.mark.slow
def test_reads_are_the_numbers_that_the_program_reads(study):
    arms = check_arms(study("x: {model.layers.0.mixer: none}", "y: {model.position: learned}"))
    unread = {name: set(arm.numbers) - arm.outline.reads for name, arm in arms.items()}
    assert unread["baseline"] == {"model.position.base"}  # rope acts inside the layers only
    assert unread["x"] == {"model.position.base", "model.layers.0.position.base"}
    assert unread["y"] == set()
    assert {"model.init.gain", "train.optimizer.lr", "train.clip"} <= arms["x"].outline.reads


# --- arms that are not causal ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_component_that_reads_later_tokens_is_refused_on_causal_tasks_only(study):
    loaded = study("leak: {model.layers.0.ffn: hindsight}")
    problem, place = refused(loaded)
    assert problem.startswith("arm 'leak' is not causal")
    assert place == "arms.leak.model.layers.0.ffn"
    arm = loaded.arms[1]
    shown = arm.config.model_copy(
        update={"task": build_component("task", {"kind": "sort", "form": "encoder", "seq_len": 12})}
    )
    assert not sees_later_tokens(shown, loaded.source(arm))


@pytest.mark.slow
def test_equal_layers_of_a_deep_model_are_traced_once(study, monkeypatch):
    """The time of `plan` must not grow with the number of layers."""
    calls, init = [], LayerConfig.init

    def counted(self, *args, **kwargs):
        calls.append(self)
        return init(self, *args, **kwargs)

    monkeypatch.setattr(LayerConfig, "init", counted)
    check_arms(study("deep: {model.num_layers: 40}"))
    assert len(calls) < 20


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["mla, head_dim: 7", "mla, head_dim: 7, rope_dim: 2", "gated-delta, head_dim: 5"])
def test_only_the_rotated_parts_of_heads_must_be_even(study, mixer):
    """Rotations act on `rope_dim` elements in mla, and on none in mixers without attention."""
    arm = f"x: {{model.mixer: {{kind: {mixer}, num_heads: 2}}}}"
    check_arms(study(arm))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "position", "accepted"),
    [
        ("mla, rope_dim: 3", "xpos", False),
        ("mla, rope_dim: 6", "{kind: rope, fraction: 0.5}", False),
        ("mla, rope_dim: 8", "{kind: rope, fraction: 0.5}", True),
        ("mla, rope_dim: 3", "alibi", True),
        ("mla, head_dim: 8, rope_dim: 3", "none", True),
        ("attention, head_dim: 7", "xpos", False),
    ],
)
def test_odd_rotated_parts_are_refused_at_the_position(study, mixer, position, accepted):
    found = study(f"x: {{model.mixer: {{kind: {mixer}, num_heads: 2}}, model.position: {position}}}")
    if accepted:
        check_arms(found)
        return
    problem, path = refused(found)
    assert "an even head_dim" in problem
    assert path == "arms.x.model.position"


@pytest.mark.slow
def test_an_override_that_needs_another_one_is_not_refused(tmp_path):
    """Without the adapter, its parameter group matches nothing. This does not count against the arm."""
    (tmp_path / "study.yaml").write_text("""\
study: s
base:
  task: {kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4}
seeds: 1
arms:
  lora: {model.adapter: lora, train.optimizer.groups: {adapters: {match: "*.adapter.*", lr: 2.0}}}
""")
    check_arms(load_study(tmp_path / "study.yaml"))
