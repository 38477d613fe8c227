"""Each plug-in of `examples/plugins` computes what its docstring says."""

import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load as load_tensors

from taetpu.core.config import iter_components
from taetpu.core.config_parsing import load_config
from taetpu.core.keys import named, root_key
from taetpu.core.sites import capture
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.optim.hooks import Moment, run_hooks
from taetpu.optim.objectives import CausalLM
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.run import run_study
from taetpu.train import program
from taetpu.train.callbacks import Callback
from taetpu.train.model_io import CONSTANT, from_files
from taetpu.train.step import evaluate

PLUGINS = sorted((Path(__file__).parents[2] / "examples/plugins").glob("*.py"))
TOKEN, SEQ, VOCAB, STEPS = 3, 16, 9, 4
STUDY = f"""
study: examples
plugins: {[str(file) for file in PLUGINS]}
base:
  task: {{kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 8}}
  model: {{dim: 16, num_layers: 2, mixer: {{kind: attention, num_heads: 2}}}}
  train:
    steps: {STEPS}
    batch_size: 4
    optimizer: {{kind: adamw, lr: 1e-2}}
    schedule: {{kind: constant}}
    checkpoint: 1
    keep_checkpoints: true
    sample: none
    metrics: {{largest-parameter: {{every: 2}}}}
seeds: [7]
arms:
  relu: {{model.layers.0.after: relu}}
  squared: {{model.ffn.kind: squared-swiglu}}
  half: {{model.mixer.scores: {{kind: times, factor: 0.5}}}}
  double: {{model.mixer.scores: {{kind: times, factor: 2.0}}}}
  treble: {{model.mixer.scores: {{kind: times, factor: 3.0}}}}
  where: {{model.mixer.scores: {{kind: times-where, token: {TOKEN}, factor: 3.0}}}}
  freeze: {{train.hooks: {{freeze-layers: {{share: 0.5}}}}}}
  freeze-all: {{train.hooks: {{freeze-layers: {{share: 1.0}}}}}}
  corrupt: {{train.hooks: {{corrupt-inputs: {{rate: 0.4}}}}}}
"""
TIMES = ("half", "double", "treble")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    (folder / "study.yaml").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def programs():
    """Every program that is made. Counted before plug-ins are loaded: later it would be a change that they made."""
    found, made = [], program.Program.__init__

    def counted(program, *args, **settings):
        found.append(program)
        made(program, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program.Program, "__init__", counted)
        yield found


@pytest.fixture(scope="module")
def study(folder, programs):
    return load_study(folder / "study.yaml")


@pytest.fixture(scope="module")
def arms(study):
    return {arm.name: arm.config for arm in study.arms}


@pytest.mark.parametrize("file", PLUGINS, ids=lambda file: file.name)
def test_an_example_is_under_25_lines(file):
    assert len(file.read_text().splitlines()) < 25


def test_every_example_is_used_by_an_arm_or_as_a_metric(study, arms):
    used = {component.plugin for config in arms.values() for component in iter_components(config)}
    assert {plugin.sha256 for plugin in study.plugins} <= used
    assert len(study.plugins) == len(PLUGINS) == 7


# --- in the model ----------------------------------------------------------------------------------------------------

SITES = ("residual", "ffn.out", "mixer.scores", "mixer.pattern")


@pytest.fixture(scope="module")
def forward(arms):
    """`forward(arm, tokens) -> (logits, reads)`, every parameter a function of its name."""
    run = jax.jit(lambda model, tokens: capture(model, SITES)(tokens))  # compiled once for each structure

    def value(name, shape):
        noise = np.random.default_rng([zlib.crc32(name.encode())]).standard_normal(shape).astype(np.float32)
        return 1 + 0.1 * noise if len(shape) == 1 else noise / np.sqrt(shape[0])

    def forward(arm, tokens):
        config = arms[arm].model if isinstance(arm, str) else arm
        structure, numbers = split(config, promoted_fields(config))

        @jax.jit
        def blank():  # its parameters are not asked for, so that none is drawn
            params, rest = partition_trainable(bind(structure, numbers).build(VOCAB, SEQ, key=root_key(0)))
            return combine_trainable(jax.tree.map(jnp.zeros_like, params), rest)

        model = blank()
        drawn = {name: value(name, array.shape) for name, array in named_parameters(model).items()}
        return run(with_parameters(model, drawn), jnp.asarray(tokens))

    return forward


@pytest.fixture(scope="module")
def tokens():
    """Two sequences, the token of `where` at place 5 of the first and at the start of the second."""
    found = np.random.default_rng(0).integers(TOKEN + 1, VOCAB, (2, SEQ))
    found[0, 5] = found[1, 0] = TOKEN
    return found


@pytest.fixture(scope="module")
def plain(forward, tokens):
    return forward("baseline", tokens)


def test_relu_acts_after_the_first_layer_only(forward, tokens, plain):
    before, after = (np.asarray(reads["residual"]) for _, reads in (plain, forward("relu", tokens)))
    assert (before[0] < 0).mean() > 0.2
    np.testing.assert_allclose(after[0], np.maximum(before[0], 0), atol=1e-6)
    assert (after[1] < 0).mean() > 0.2


@pytest.mark.slow
def test_squared_swiglu_squares_the_output_of_swiglu(forward, tokens, plain):
    np.testing.assert_allclose(
        forward("squared", tokens)[1]["ffn.out"][0], np.square(plain[1]["ffn.out"][0]), rtol=1e-4, atol=1e-5
    )
    assert (np.asarray(plain[1]["ffn.out"][0]) < 0).any()


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "factor"), [*zip(TIMES, (0.5, 2.0, 3.0), strict=True)])
def test_scaled_scores_equal_attention_with_another_scale(forward, tokens, plain, arm, factor):
    head_dim = 16 // 2
    mixer = {"kind": "attention", "num_heads": 2, "scale": factor * head_dim**-0.5}
    builtin = load_config(ModelConfig, {"dim": 16, "num_layers": 2, "mixer": mixer}).resolve()
    logits, reads = forward(arm, tokens)
    np.testing.assert_allclose(logits, forward(builtin, tokens)[0], rtol=1e-4, atol=1e-4)
    assert np.abs(reads["mixer.pattern"][0] - plain[1]["mixer.pattern"][0]).max() > 0.01


@pytest.mark.slow
def test_where_acts_from_the_first_occurrence_of_the_token(forward, tokens, plain):
    logits, where = forward("where", tokens)
    pattern, treble = where["mixer.pattern"][0], forward("treble", tokens)[1]["mixer.pattern"][0]
    np.testing.assert_allclose(logits[0, :5], plain[0][0, :5], atol=1e-5)
    assert (np.abs(logits[0, 5:] - plain[0][0, 5:]).max(-1) > 1e-3).all()
    np.testing.assert_allclose(pattern[0, :, :5], plain[1]["mixer.pattern"][0][0, :, :5], atol=1e-6)
    np.testing.assert_allclose(pattern[0, :, 5:], treble[0, :, 5:], atol=1e-6)
    np.testing.assert_allclose(pattern[1], treble[1], atol=1e-6)  # there from the start


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_inputs_are_corrupted_at_the_given_rate_and_targets_are_unchanged(arms):
    tokens = jnp.arange(4000).reshape(40, 100)  # all different, so that whatever is replaced shows
    batch = Batch(tokens, tokens + 1, jnp.ones(tokens.shape))
    moment = Moment(jnp.int32(0), STEPS, root_key(0))
    found = run_hooks(arms["corrupt"].train.hooks, "batch", batch, now=moment)
    np.testing.assert_array_equal(found.targets, batch.targets)
    np.testing.assert_array_equal(found.weights, batch.weights)
    share = float((found.tokens != tokens).mean())
    assert abs(share - 0.4) < 4 * (0.4 * 0.6 / tokens.size) ** 0.5
    assert set(np.unique(found.tokens)) <= set(range(4000))


# --- trained ---------------------------------------------------------------------------------------------------------


TRAINED = ("half", "double", "treble", "freeze", "freeze-all", "corrupt")


class Trained:
    """The arms that act in training, trained, and the programs that were compiled for them."""

    def __init__(self, folder, programs, text=STUDY, trained=TRAINED):
        folder.mkdir()
        head, _, arms = text.partition("arms:\n")
        lines = [line for line in arms.splitlines(True) if line.split(":")[0].strip() in trained]
        (folder / "study.yaml").write_text("".join([head, "arms:\n" if lines else "", *lines]))
        study, root = load_study(folder / "study.yaml"), folder / "root"
        self.folder, self.programs = StudyFolder(open_store(root), study.name), programs
        self.outcome = run_study(study, self.folder, Callback())
        self.runs = {run.arm: run for run in self.folder.runs()}

    def weights(self, arm, step):
        """Return the parameters after a step, by name."""
        run = self.runs[arm]
        files = run.read_model() if step == STEPS else run.read_checkpoint(step)
        stored = load_tensors(files["model.safetensors"])
        return {name: array for name, array in stored.items() if not name.startswith(CONSTANT)}


@pytest.fixture(scope="module")
def trained(folder, programs):
    return Trained(folder / "trained", programs)


@pytest.mark.nightly
def test_all_arms_are_trained_and_judged(trained):
    assert trained.outcome.failed == []
    assert trained.outcome.results["complete"] is True
    assert len({arm["mean"] for arm in trained.outcome.results["arms"]}) == 1 + len(TRAINED)


@pytest.mark.nightly
def test_arms_that_differ_in_a_number_share_one_program(trained):
    """Factors share a program, and so do the two shares of frozen layers."""
    assert len(trained.programs) == 4
    assert [program.advance._cache_size() for program in trained.programs] == [1] * 4
    packs = [{arm for arm, _, _ in p["runs"]} for p in trained.folder.read_plan()["packs"]]
    assert {"freeze", "freeze-all"} in packs
    assert all(members <= set(TIMES) for members in packs if members & set(TIMES))


def moved(trained, arm, step):
    """The parts that step number `step` (from 1) moved, of those that `weights` name: layers, and the rest."""
    before, after = trained.weights(arm, step - 1), trained.weights(arm, step)
    parts = {name: ".".join(name.split(".")[:2]) if name.startswith("layers.") else "rest" for name in before}
    return {part: {bool((before[n] != after[n]).any()) for n in parts if parts[n] == part} for part in parts.values()}


@pytest.mark.nightly
@pytest.mark.parametrize("step", range(2, STEPS + 1))
def test_frozen_layers_keep_their_bits_and_others_change(trained, step):
    """Under AdamW, with moments from the steps before and with weight decay."""
    key = named(root_key(7), "hooks", step - 1, "freeze-layers", "updates")
    moves = np.asarray(jax.random.bernoulli(key, 0.5, (2,)))
    assert moved(trained, "freeze", step) == {"rest": {True}} | {f"layers.{i}": {bool(m)} for i, m in enumerate(moves)}
    assert moved(trained, "freeze-all", step) == {"rest": {True}, "layers.0": {False}, "layers.1": {False}}
    assert moved(trained, "baseline", step) == {"rest": {True}, "layers.0": {True}, "layers.1": {True}}


@pytest.mark.nightly
def test_corruption_affects_training_but_not_evaluation(trained, study, arms):
    run = trained.runs["corrupt"]
    source = study.sources.prepare(arms["corrupt"])
    data = source.evaluation("val")
    windows = Batch(*(jnp.asarray(a)[None] for a in (data.tokens, data.targets, data.weights)))
    sums = jax.jit(lambda m: evaluate(m, windows, 1, dtype=jnp.float32, objective=CausalLM()))(
        from_files(run.read_model()).model
    )
    assert float(sums["nll"].sum() / sums["weight"].sum()) == pytest.approx(
        run.result()["metrics"]["val/loss"], abs=1e-5
    )
    losses = [trained.runs[arm].metrics()["train/loss"].value for arm in ("corrupt", "baseline")]
    assert not np.array_equal(*losses)


@pytest.mark.nightly
def test_the_largest_parameter_is_measured_before_the_step(trained):
    series = trained.runs["baseline"].metrics()["largest-parameter"]
    assert list(series.step) == [2, 4]
    for step, value in zip(series.step, series.value, strict=True):
        assert value == max(np.abs(array).max() for array in trained.weights("baseline", int(step) - 1).values())


@pytest.mark.nightly
def test_training_gives_the_same_bits_without_the_metric(trained, folder):
    text = STUDY.replace("metrics: {largest-parameter: {every: 2}}", "log_every: 2")
    unmeasured = Trained(folder / "unmeasured", [], text, trained=())
    one, other = unmeasured.weights("baseline", STEPS), trained.weights("baseline", STEPS)
    assert {name: a.tobytes() for name, a in one.items()} == {name: a.tobytes() for name, a in other.items()}
    assert unmeasured.runs["baseline"].id == trained.runs["baseline"].id
