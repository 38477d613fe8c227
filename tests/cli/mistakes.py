"""Plug-ins with common mistakes, and the expected messages."""

from typing import NamedTuple

STUDY = """\
study: own
plugins: [own.py]
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, sample: none, metrics: []}
seeds: 1
arms:
  own: ARM
"""
IMPORTS = """\
import os, signal, sys
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from taetpu.data.base import Task
from taetpu.nn.position import PositionConfig
from taetpu.plugin import *

"""
MODULE = """
class M(eqx.Module):
    def __call__(self, ARGS):
        BODY

@register("SLOT", "own")
class Own(Component):
    FIELDS
    def init(self, INIT, *, key):
        return M()
"""
LR = "{train.optimizer.lr: 1e-2}"
FFN = "{model.ffn: own}"
AFTER_ARGS = "x, ctx"


def module(slot: str, body: str, args: str = AFTER_ARGS, fields: str = "", init: str = "dims") -> str:
    """Return a plug-in with one kind, whose module has this body."""
    text = MODULE.replace("SLOT", slot).replace("BODY", body).replace("ARGS", args)
    return IMPORTS + text.replace("FIELDS", fields).replace("INIT", init)


def config(slot: str, body: str, base: str = "Component") -> str:
    """Return a plug-in with one kind, whose config class has this body."""
    return f'{IMPORTS}\n@register("{slot}", "own")\nclass Own({base}):\n    {body}\n'


def ffn(body: str = "return 2 * x") -> str:
    return module("ffn", body)


def optimizer(update: str) -> str:
    rule = f"return optax.GradientTransformation(lambda p: jnp.zeros(()), lambda g, s, p=None: {update})"
    return config("optimizer", f"lr: Number = 1e-3\n    def transform(self, lr, decayed):\n        {rule}")


def hook(method: str, args: str, body: str) -> str:
    return config("hook", f"def {method}(self, {args}, now):\n        {body}", "Hook")


def metric(body: str) -> str:
    return config("metric", f"def measure(self, seen):\n        {body}", "Metric")


class Mistake(NamedTuple):
    """A plug-in, the arm that uses it, and fragments of the message: problem, place (a line of the plug-in, or a path
    of the study), remedy.
    """

    source: str | bytes
    arm: str
    problem: tuple[str, ...]
    where: str
    remedy: str = ""


X, WRONG = "(2, 16, 16) float32", ("expected (2, 16, 16) float32",)
CALL = "def __call__"
Q, QK = "(2, 2, 16, 8) float32", "expected a tuple of (2, 2, 16, 8) float32, (2, 2, 16, 8) float32"
FINITE = ("default nan is not allowed", "finite number")
EMBEDDING = module("embedding", "pass").replace("return M()", "return M(dims.weight(key, dims.vocab_size, dims.dim))")
CODING = """    w: jax.Array
    def encode(self, tokens): return self.w[tokens]
    def decode(self, x): return DECODE
    def __call__"""
EMBEDDING = EMBEDDING.replace("    def __call__", CODING)
POSITION = (
    IMPORTS
    + """
class M(eqx.Module):
    def __call__(self, q, k, ctx): return RESULT

@register("position", "own")
class Own(PositionConfig):
    def in_attention(self, head_dim): return M()
"""
)
TASK = """seq_len: int = 16
    @property
    def causal(self): return True
    def prepare(self, folder): return None"""
TREE = "jax.tree.map(lambda a: a.astype(jnp.float16), {})"

MISTAKES = {
    # what a module returns
    "one channel": Mistake(ffn("return x[..., :1]"), FFN, ("ffn 'own' returns (2, 16, 1) float32", *WRONG), CALL),
    "float16": Mistake(ffn("return x.astype(jnp.float16)"), FFN, ("float16", *WRONG), CALL, ".astype(x.dtype)"),
    "bfloat16 made float32": Mistake(ffn("return x * jnp.ones(16)"), FFN, (X, "expected (2, 16, 16) bfloat16"), CALL),
    "nothing returned": Mistake(ffn("x = 2 * x"), FFN, ("ffn 'own' returns None in training", *WRONG), CALL),
    "mixer": Mistake(
        module("mixer", "return x[:, :1]", init="dims, position"),
        "{model.mixer: own}",
        ("mixer 'own' returns (2, 1, 16) float32", *WRONG),
        CALL,
    ),
    "norm's place": Mistake(
        module("norm", "return x", "x", "placement: str = 'mid'"),
        "{model.norm: own}",
        ("norm 'own' has the unknown placement 'mid'",),
        "arms.own.model.norm",
        "of: output, post, pre, sandwich",
    ),
    "position, queries alone": Mistake(
        POSITION.replace("RESULT", "q"), "{model.position: own}", (f"position 'own' returns {Q}", QK), CALL
    ),
    "logits": Mistake(
        EMBEDDING.replace("DECODE", "(x @ self.w.T).astype(jnp.float16)"),
        "{model.embedding: own}",
        ("embedding 'own'.decode returns (2, 16, 9) float16", "expected (2, 16, 9) float32"),
        "def decode",
    ),
    "no decode": Mistake(
        EMBEDDING.replace("def decode", "def deocde").replace("DECODE", "x"),
        "{model.embedding: own}",
        ("init of embedding 'own'", "expected a module with a method decode"),
        "def init",
    ),
    "draw": Mistake(
        config("init", "def draw(self, dims, role, shape, *, key): return jnp.ones(shape, jnp.float16)"),
        "{model.init: own}",
        ("init 'own'.draw returns (16, 32) float16", "expected (16, 32) float32"),
        "def draw",
    ),
    # what a config class is and builds
    "no __call__": Mistake(
        ffn().replace(CALL, "def call"), FFN, ("expected a module with a method __call__",), "def init"
    ),
    "no context": Mistake(
        module("ffn", "return x", "x"), FFN, ("takes 2 positional arguments but 3",), "own.py", "testing own.py"
    ),
    "no init": Mistake(
        config("ffn", "pass"), FFN, ("Own has no method init",), "@register", "init(self, dims, *, key)"
    ),
    "mixer without position": Mistake(
        module("mixer", "return x"),
        "{model.mixer: own}",
        ("Own.init", "too many positional"),
        "def init",
        "dims, position, *, key",
    ),
    "init returns nothing": Mistake(
        ffn().replace("return M()", "M()"), FFN, ("init of ffn 'own' returns None",), "def init", "`ffn: none`"
    ),
    "init returns a function": Mistake(
        ffn().replace("M()", "lambda x, ctx: x"), FFN, ("holds an object of type function",), "def init", "static=True"
    ),
    "a number in a module": Mistake(
        ffn().replace(f"    {CALL}", f"    scale: float\n    {CALL}").replace("M()", "M(2.0)"),
        FFN,
        ("holds 2.0 in scale",),
        "def init",
        "Fixed",
    ),
    "nan": Mistake(module("ffn", "return x", fields="a: float = float('nan')"), FFN, FINITE, "@register"),
    "a default of another type": Mistake(
        module("ffn", "return x", fields="a: int = 'x'"), FFN, ("default 'x' is not allowed", "integer"), "@register"
    ),
    "an array as a default": Mistake(
        module("ffn", "return x", fields="a: jax.Array = jnp.ones(3)"),
        FFN,
        ("cannot be written",),
        "@register",
        "lists",
    ),
    "an unknown annotation": Mistake(module("ffn", "return x", fields="a: 'Nope' = 3"), FFN, ("Nope",), "@register"),
    "not a PositionConfig": Mistake(
        config("position", "pass"),
        "{model.position: own}",
        ("a position must extend PositionConfig, but Own does not",),
        "@register",
        "class Own(PositionConfig)",
    ),
    "a position that changes nothing": Mistake(
        POSITION.replace("def in_attention", "def in_attentoin"),
        "{model.position: own}",
        ("position 'own' changes nothing",),
        "arms",
        "Define at_input, in_attention or on_scores.",
    ),
    "not a Hook": Mistake(
        config("hook", "pass"), LR, ("a hook must extend Hook, but Own does not",), "@register", "class Own(Hook)"
    ),
    "a task that prepares nothing": Mistake(
        config("task", TASK, "Task"),
        "{task: {kind: own}}",
        ("prepare of task 'own'", "NoneType"),
        "arms.own.task",
        "Source",
    ),
    "half a task": Mistake(
        config("task", "seq_len: int = 16", "Task"), LR, ("Own does not define causal, prepare",), "@register"
    ),
    # training
    "no rule": Mistake(
        config("optimizer", "lr: Number = 1e-3\n    def transform(self, lr, decayed):\n        return None"),
        "{train.optimizer: own}",
        ("transform returns None", "GradientTransformation"),
        "def transform",
        "optax.sgd",
    ),
    "no learning rate": Mistake(
        config("optimizer", "def transform(self, lr, decayed):\n        return optax.sgd(lr)"),
        LR,
        ("Own has no field lr",),
        "@register",
    ),
    "updates in float16": Mistake(
        optimizer(f"({TREE.format('g')}, s)"),
        "{train.optimizer: own}",
        ("float16, expected (9, 16) float32",),
        "def transform",
    ),
    "a state that grows": Mistake(
        optimizer("(g, jnp.zeros(2))"),
        "{train.optimizer: own}",
        ("a state", "(2,) float32, expected () float32"),
        "def transform",
    ),
    "hook, float16": Mistake(
        hook("updates", "u, params", f"return {TREE.format('u')}"),
        "{train.hooks: [own]}",
        ("float16, expected",),
        "def updates",
    ),
    "hook, logits for a loss": Mistake(
        hook("loss", "loss, logits, batch, model", "return logits"),
        "{train.hooks: [own]}",
        ("hook 'own' returns loss as (4, 16, 9) float32, expected () float32",),
        "def loss",
        "a number",
    ),
    "metric, several": Mistake(
        metric("return jnp.ones(3)"), LR, ("of shape (3,)",), "train.metrics.own", "Reduce the value"
    ),
    "metric, no sites": Mistake(
        metric("return seen.loss\n    def sites(self): return 'residual'"),
        LR,
        ("sites() of metric 'own'", "'residual'"),
        "train.metrics.own",
    ),
    # the file
    "a NUL byte": Mistake(f"{ffn()}\0", FFN, ("null bytes",), "own.py", "UTF-8"),
    "an encoding that is none": Mistake(f"# coding: klingon\n{ffn()}", FFN, ("klingon",), "own.py", "UTF-8"),
    "syntax": Mistake(f"{ffn()}def f(:\n", FFN, ("not valid Python", "invalid syntax"), "def f(:"),
    "itself": Mistake(
        f"import own\n{ffn()}", FFN, ("No module named 'own'",), "import own", "a plug-in is a single file"
    ),
    "a missing module": Mistake(f"import nothing_such\n{ffn()}", FFN, ("'nothing_such'",), "import nothing_such"),
    "a slot that is none": Mistake(
        ffn().replace('"ffn"', '"fnn"'), FFN, ("unknown slot 'fnn'",), "@register", "Did you mean 'ffn'?"
    ),
    "a number for a name": Mistake(
        ffn().replace('"own"', "3"), FFN, ("3 is not a name for a kind of ffn",), "@register", "letters"
    ),
    "register without a call": Mistake(
        ffn().replace('@register("ffn", "own")', "@register"), FFN, ("missing 1 required",), "@register"
    ),
    "BaseException in a call": Mistake(
        ffn("raise BaseException('hm')"), FFN, ("raised BaseException in __call__: hm",), "raise Base"
    ),
}
EXITS = {
    "at import": (f"import sys\nsys.exit(0)\n{ffn()}", FFN, "raised SystemExit: 0"),
    "in a call": (ffn("sys.exit(0)"), FFN, "raised SystemExit in __call__: 0"),
    "in a hook": (hook("batch", "batch", "sys.exit(0)"), "{train.hooks: [own]}", "raised SystemExit in batch: 0"),
    "in prepare": (
        config("task", TASK.replace("return None", "sys.exit(0)"), "Task"),
        "{task: {kind: own}}",
        "prepare: 0",
    ),
}
