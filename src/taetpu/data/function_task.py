"""A task that is a Python function: it draws a question and its answer, as texts."""

import inspect
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import create_model

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Task
from taetpu.data.example_source import ExampleSource
from taetpu.data.synthetic.attention_free_bound import score_counted_policies
from taetpu.data.tokenizers.characters import REJECT, CharTokenizer, library_characters

END = "\n"
"""The token after an answer, and after it the padding."""

Example = tuple[str, str]  # question, answer


class FunctionTask(Task):
    """Base of the tasks that `task_function` makes. Tokens are the characters of all examples, and a line end.

    A sequence is a question, its answer and a line end. The answer and the line end are scored. Training examples
    whose question is also a question of an evaluation set are left out.
    """

    has_answers = True
    function: ClassVar[Callable[..., Any]]

    seq_len: Size = 64
    """Number of tokens in a sequence: the characters of the longest question with its answer."""
    examples: Size = 10_000
    """Number of training examples that are drawn."""
    eval_size: Size = 512
    """Number of examples of each evaluation set."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return True

    def prepare(self, folder: Path) -> ExampleSource:
        """See `Task.prepare`."""
        if self.eval_lengths:
            remedy = "Remove the field. A parameter of the function can change the lengths of its examples."
            raise UserError(f"task {self.kind!r} has examples of one length", path=("eval_lengths",), remedy=remedy)
        drawn = {name: [self._draw(name, i) for i in range(self.eval_size)] for name in ("val", "test")}
        held_out = {question for examples in drawn.values() for question, _ in examples}
        trained = [self._draw("train", i) for i in range(self.examples)]
        kept = [example for example in trained if example[0] not in held_out]
        if not kept:
            problem = f"all {self.examples:,} training questions are also questions of an evaluation set"
            raise UserError(problem, path=("examples",), remedy="Draw more different questions, or lower eval_size.")
        drawn = {"train": kept, **drawn}
        characters = {character for examples in drawn.values() for pair in examples for character in "".join(pair)}
        tokens = {character: number for number, character in enumerate([END, *sorted(characters)])}
        tokenizer = CharTokenizer(library_characters(tokens, REJECT))
        parts = {name: self._encode(examples, tokenizer) for name, examples in drawn.items()}
        loss, accuracy = score_counted_policies(parts["train"], parts["val"], len(tokens))
        chance = {"chance_loss": math.log(len(tokens)), "chance_accuracy": 1 / len(tokens)}
        facts = {
            **chance, "bayes_loss": None, "decoy_loss": loss, "decoy_accuracy": accuracy,
            "decoy": "the best of the tables of token, position and both, counted on the training examples",
            "removed": len(trained) - len(kept),
        }  # fmt: skip
        source = ExampleSource(parts, [], facts, tokenizer=tokenizer)
        source.special_tokens = {"eos_token_id": tokens[END]}
        return source

    def _draw(self, split: str, number: int) -> Example:
        """Return one example.

        Raises:
            UserError: if the function fails, or does not return two texts that fit into `seq_len`.
        """
        function = type(self).function
        settings = {name: getattr(self, name) for name in _parameters(function)}
        where = f"task {self.kind!r}: its function"
        try:
            pair = function(random.Random(f"{split} {number}"), **settings)
        except Exception as error:
            remedy = "Repair the function."
            raise UserError(f"{where} raised {type(error).__name__}: {error}", remedy=remedy) from error
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise UserError(f"{where} returned {pair!r}", remedy="Return a question and an answer, two texts.")
        question, answer = pair
        if not question or not answer or END in question + answer:
            problem = f"{where} returned the question {question!r} and the answer {answer!r}"
            raise UserError(problem, remedy="Return texts of one line that are not empty.")
        if (count := len(question) + len(answer)) > self.seq_len:
            problem = f"{where} returned {count} characters, {question + answer!r}, but seq_len is {self.seq_len}"
            raise UserError(problem, path=("seq_len",), remedy="Raise seq_len, or draw shorter texts.")
        return question, answer

    def _encode(self, examples: list[Example], tokenizer: CharTokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, targets and weights, `(examples, seq)`."""
        lines = "".join((question + answer).ljust(self.seq_len + 1, END) for question, answer in examples)
        whole = tokenizer.encode(lines).reshape(len(examples), -1)
        start, length = (np.array([[len(text)] for text in texts]) for texts in zip(
            *((question, question + answer) for question, answer in examples), strict=True))  # fmt: skip
        place = np.arange(1, self.seq_len + 1)
        weights = ((place >= start) & (place <= length)).astype(np.float32)
        return whole[:, :-1], whole[:, 1:], weights


def task_function(kind: str) -> Callable[[Callable[..., Any]], type[FunctionTask]]:
    """Register a function as a kind of task: `@task_function("reverse-words")`.

    The function's first argument is a `random.Random`, from which it draws everything. Further arguments have defaults
    and become settings of the task. It returns a question and its answer: two texts of one line.

    Args:
        kind: The name of the kind.

    Returns:
        A decorator that returns the task's config class.

    Raises:
        UserError: if the name is not valid, or if an argument has no default or the name of another setting.
    """

    def made(function: Callable[..., Any]) -> type[FunctionTask]:
        parameters = _parameters(function)
        for name, parameter in parameters.items():
            if parameter.default is inspect.Parameter.empty or name in FunctionTask.model_fields:
                problem = f"argument {name!r} of task {kind!r} has no default"
                if name in FunctionTask.model_fields:
                    problem = f"argument {name!r} of task {kind!r} has the name of a setting that every task has"
                raise UserError(problem, remedy=f"Write {name}=..., or use another name.")
        fields: dict[str, Any] = {
            name: (type(parameter.default) if parameter.annotation is parameter.empty else parameter.annotation,
                   parameter.default)
            for name, parameter in parameters.items()
        }  # fmt: skip
        task = create_model(function.__name__, __base__=FunctionTask, __module__=function.__module__,
                            __doc__=function.__doc__, **fields)  # fmt: skip
        task.__qualname__, task.function = function.__qualname__, staticmethod(function)
        return register("task", kind)(task)

    return made


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the arguments of a function after the first."""
    return dict([*inspect.signature(function, eval_str=True).parameters.items()][1:])
