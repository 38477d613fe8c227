"""A model opened with its tokenizer, data, metrics and config, and calls that read and edit its activations."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.core.sites import Edit, Read, capture, find_sites
from taetpu.data.base import Source
from taetpu.data.items.item_set import prefix_token, special_numbers
from taetpu.data.tokenizers.files import StartTokenizerConfig
from taetpu.lens.finite import NotFinite, with_finiteness
from taetpu.lens.inputs import (
    LENGTHS,
    MAX_HEADS,
    MAX_NUMBERS,
    Tokens,
    as_real_inputs,
    as_sequences,
    check_length,
    check_numbers,
    pad_left,
)
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.stack import separate_stacks
from taetpu.spec.resolved_study import Sources
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.metrics import Series
from taetpu.store.runs import RunFolder
from taetpu.train.model_io import SavedModel

SHOWN = 6
"""The maximum number of components of a kind in the name of a model."""


@dataclass(frozen=True)
class Output:
    """The result of a call to a model.

    Attributes:
        logits: The logits, or other outputs, of each position, in float32. Those of padding have no meaning.
        tokens: The input.
        sites: The activations that were asked for, by site. Sites in layers have a leading layer axis; a site whose
            shape differs between layers is a `core.sites.Ragged`.
    """

    __repr__ = short_repr

    logits: Float[Array, "batch seq outputs"]
    tokens: Tokens
    sites: Mapping[str, Read]


@dataclass(frozen=True)
class Removal:
    """Components that are removed from a model.

    Attributes:
        parts: The names of the components of each kind.
        how: What takes their place: one of `lens.ablation.removal.HOW`.
        reference: The `Documents` of means and optimal constants; None for zeros.
    """

    parts: Mapping[str, tuple[str, ...]]
    how: str
    reference: Any = None

    def __str__(self) -> str:
        """Return the components in words, such as `heads 0.1, 1.2 (mean)`."""
        kinds = []
        for what, names in self.parts.items():
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            kinds.append(what if names == (what,) else f"{what} {', '.join(names[:SHOWN])}{more}")
        return " and ".join(kinds) + ("" if self.how == "zero" else f" ({self.how})")


@dataclass(frozen=True)
class OpenedModel(SavedModel):
    """A trained or imported model with everything that belongs to it.

    Attributes:
        name: The run as `study/arm/seed`, or the folder of the model.
        run: The folder of the run; None for models that were not trained by taetpu.
        step: The number of training steps; None if unknown.
        data_folder: The folder to which paths in the run's task are relative.
        removals: The components that are removed from the model, for each call of `taetpu.without`.
    """

    def __repr__(self) -> str:
        """Return the name and the sizes of the model."""
        layers, parameters = len(self.config.layers), sum(array.size for array in named_parameters(self.model).values())
        sizes = [f"{layers} layers", f"{parameters:,} parameters", str(self.interface)]
        steps = [] if self.step is None else [f"step {self.step:,}"]
        return f"OpenedModel({', '.join([repr(self.name), *sizes, *steps])})"

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of the trained arrays by logical name, such as `layers.3.mixer.wq`."""
        return {name: np.array(array) for name, array in named_parameters(self.model).items()}

    name: str = ""
    run: RunFolder | None = None
    step: int | None = None
    data_folder: Path = Path()
    removals: tuple[Removal, ...] = ()
    _programs: dict[Hashable, Callable[..., Any]] = field(default_factory=dict, repr=False, compare=False)

    def encode(self, inputs: Any, multiple: int = LENGTHS) -> Tokens:
        """Return texts or token numbers as a batch that is padded on the left.

        Args:
            inputs: A text, token numbers, or a list of these; an array `(seq,)` or `(batch, seq)`; or `Tokens`. For a
                model that reads real inputs, an array `(seq, features)` or `(batch, seq, features)`.
            multiple: The length of the batch is a multiple of this number.

        Raises:
            UserError: if an input is empty, unknown, or longer than the model's positions.
        """
        if isinstance(inputs, Tokens):
            return inputs
        if self.interface.features:
            tokens = as_real_inputs(inputs, self.interface.features)
            self.check_length(tokens.ids.shape[1])
            return tokens
        rows = self.as_sequences(inputs)
        self.check_length(max(map(len, rows)))
        return pad_left(rows, multiple)

    def as_sequences(self, inputs: Any) -> list[np.ndarray]:
        """Return the token numbers of each input; see `lens.inputs.as_sequences`."""
        return as_sequences(inputs, self.symbols or self.tokenizer, self.vocab_size)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text (`eos_token_id` of Hugging Face); empty for models without one."""
        return special_numbers(self.special_tokens, "eos_token_id", self.vocab_size)

    @property
    def prefix_token(self) -> int | None:
        """The token before texts that have no context: the one that begins texts, else one that ends them."""
        return prefix_token(self.special_tokens, self.vocab_size)

    def decode(self, ids: Any) -> str:
        """Return the text of token numbers; names or numbers separated by spaces if the model has no tokenizer."""
        ids = np.asarray(ids).ravel()
        if self.symbols is not None:
            return self.symbols.show(ids)
        return " ".join(map(str, ids)) if self.tokenizer is None else self.tokenizer.decode(ids)

    def decode_after(self, prompt: Any, ids: Any) -> str:
        """Return the text of token numbers that follow a prompt; see `decode`.

        Some tokenizers drop the space before the first word, which is not the first one here.
        """
        if self.tokenizer is None:
            return self.decode(ids)
        before, whole = self.decode(prompt), self.decode(np.concatenate([prompt, np.asarray(ids, np.int32)]))
        return whole[len(before) :] if whole.startswith(before) else self.decode(ids)

    def token_texts(self, ids: Any) -> list[str]:
        """Return the text of each token within a text; its number if the model has no tokenizer."""
        different, places = np.unique(np.asarray(ids), return_inverse=True)
        texts = [self.decode_after([number], [number]) for number in different]  # each different token once
        return [texts[place] for place in places.ravel().tolist()]

    def __call__(
        self,
        inputs: Any,
        sites: str | Iterable[str] = (),
        edits: Iterable[Edit] = (),
        values: Mapping[str, Any] | None = None,
        *,
        types: Any = None,
        finite: bool = True,
    ) -> Output:
        """Return the logits, or other outputs, of inputs, and the activations at sites.

        Inputs of different lengths are padded on the left to the longest one; `Output.tokens` says where.

        Args:
            inputs: See `encode`. A batch of `encode` is used with its padding.
            sites: The names of the sites to read (see `site_layers`), or one name.
            edits: Edits of activations (see `core.sites.Edit`).
            values: The arrays that edits name. New values do not cause recompilation.
            types: The type of each token, `(batch, seq)`, for models with several types; all 0 by default.
            finite: Whether logits and activations that are not finite are refused.

        Raises:
            NotFinite: if `finite` is set, and a logit or an activation is not finite.
            UserError: if an input cannot be read, or the model has no such site or layer.
        """
        sites = (sites,) if isinstance(sites, str) else tuple(sites)
        tokens, edits = self.encode(inputs, multiple=1), tuple(edits)

        def forward(model: Any, ids: Array, padding: Array, types: Any, values: Any) -> Any:
            return capture(lambda: model(ids, padding=padding, types=types), sites, edits)(values=values)

        if types is not None and np.shape(types) != tokens.padding.shape:
            problem = f"types has shape {np.shape(types)}, and the inputs {tokens.padding.shape}"
            raise UserError(problem, path=("types",), remedy="Pass one type for each token of inputs of one length.")
        program = self.program(("call", sites, edits), lambda: forward, finite=finite)
        logits, reads = program(self.model, tokens.ids, tokens.padding, types, dict(values or {}))
        return Output(logits, tokens, reads)

    def program(
        self, key: Hashable, build: Callable[[], Callable[..., Any]], *, donate: tuple[int, ...] = (),
        finite: bool = True,
    ) -> Callable[..., Any]:  # fmt: skip
        """Return the compiled function with a key, which is built on first use. All views compute with it.

        The compiled function raises `NotFinite` if a number of its result is NaN or infinite, and `finite` is set.

        Args:
            key: The key. Functions of one key must compute the same.
            build: A function that returns the function to compile.
            donate: The positions of the arguments whose memory the function may use.
            finite: Whether numbers that are not finite are refused.
        """
        compiled = self.build_once(key, lambda: jax.jit(with_finiteness(build()), donate_argnums=donate))

        def call(*args: Any) -> Any:
            out, is_finite = compiled(*args)
            if finite and not is_finite:
                raise NotFinite(self.name, self.model)
            return out

        return call

    def check_language_model(self) -> None:
        """Raise `UserError` unless the model maps tokens to logits of the same tokens."""
        if not self.interface.is_language_model:
            problem = f"this model does not predict tokens: it has {self.interface}"
            raise UserError(problem, remedy="Use a model that was trained to predict tokens.")

    def check_predicts_next(self, *, generates: bool = False) -> None:
        """Raise `UserError` unless the model predicts next tokens: of one type, from tokens before them only.

        Args:
            generates: Whether tokens are generated, which may see all tokens of a prompt.
        """
        self.check_language_model()
        for number, layer in enumerate(self.config.layers):
            mixer = layer.typed_mixer
            mask = mixer.effective_mask
            prefixed = mask is not None and (mask.needs_prefix or (generates and mask.hides_targets))
            if not (mixer.is_causal or prefixed):
                problem = f"attention in layer {number} of {self.name} is not causal: it predicts no next tokens"
                remedy = "Use an evaluation set of the run's task, such as val, or another model."
                raise UserError(problem, remedy="Use a causal model." if generates else remedy)

    @property
    def predicts_next(self) -> bool:
        """Whether the logits of a position are those of the next token, because no scored token sees later ones."""
        return self.config.predicts_next

    def targets(self, row: Int[np.ndarray, " seq"]) -> Int[np.ndarray, " seq"]:
        """Return the token that each position of a text predicts: the next one, with -1 for the last position.

        If tokens see later ones, it is the token at the position.
        """
        return np.append(row[1:], -1) if self.predicts_next else row

    def check_finite(self, values: Any) -> None:
        """Raise `NotFinite` if a number that the model computed is NaN or infinite."""
        if not np.isfinite(values).all():
            raise NotFinite(self.name, self.model)

    def check_length(self, tokens: int, sequences: int = 1, *, logits: bool = False, heads: int | None = None) -> None:
        """Check that the model can read texts at once.

        Args:
            tokens: The number of tokens of the longest text.
            sequences: The number of texts that are read together.
            logits: Whether the logits of all positions are in memory.
            heads: The number of heads whose attention weights are in memory; by default, those of a layer.

        Raises:
            UserError: if the model has no positions for so many tokens, or they would need too much memory.
        """
        check_length(self.config, self.seq_len, tokens)
        check_numbers(tokens, sequences * self.interface.output_size if logits else 0, 1, "logits")
        if heads is not None or sequences * tokens**2 > MAX_NUMBERS // MAX_HEADS:
            dims = self.config.dims(self.interface, self.seq_len)
            mixers = [self.config.layers[i].typed_mixer for i in self.site_layers.get("mixer.pattern", ())]
            known = [mixer.heads(dims) for mixer in mixers]
            largest = max((1 if sizes is None else sizes.num_heads for sizes in known), default=0)
            count = largest if heads is None else heads
            check_numbers(tokens, sequences * count, 2, f"attention weights in {count} heads")

    def build_once(self, key: Hashable, build: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return the function with a key, which is built on first use."""
        if key not in self._programs:
            self._programs[key] = build()
        return self._programs[key]

    def with_programs_of(self, other: "OpenedModel") -> "OpenedModel":
        """Return this model with the compiled programs of another model, which must have the same config and sizes."""
        new = replace(self, _programs=other._programs)
        new.__dict__["site_layers"] = other.site_layers
        return new

    @cached_property
    def unrolled(self) -> LM:
        """The model with one stack per layer, for decoding; see `nn.stack.separate_stacks`."""
        return replace(self.model, stacks=separate_stacks(self.model.stacks))

    @cached_property
    def site_layers(self) -> dict[str, tuple[int, ...]]:
        """The layers of each site of the model, by name; empty for sites outside the layers."""
        ids = jnp.zeros((1, min(self.seq_len, 8)), jnp.int32)
        return find_sites(self.model, ids)

    # --- of a run ----------------------------------------------------------------------------------------------------

    def _own_run(self, what: str) -> RunFolder:
        if self.run is None:
            raise UserError(f"{self.name} was not trained in a study, so it has no {what}", remedy="Open a run.")
        return self.run

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of the run's `config.json`.

        Raises:
            UserError: if the model is not that of a run.
        """
        return self._own_run("config of training").config()

    @cached_property
    def run_config(self) -> ResolvedConfig:
        """The resolved config of the run: task, model and training."""
        return load_config(ResolvedConfig, self.record["config"])

    @cached_property
    def metrics(self) -> dict[str, Series]:
        """The metrics of training by name, each with `step` and `value`."""
        return self._own_run("metrics").metrics()

    @cached_property
    def result(self) -> dict[str, Any]:
        """The result of training; empty if the run has not ended."""
        return self._own_run("result").result() or {}

    @cached_property
    def symbols(self) -> Source | None:
        """The prepared task if its tokens have names but are not text; None for other models."""
        if self.tokenizer is not None or self.run is None or not self.interface.is_language_model:
            return None
        try:
            return self.data if self.data.names else None
        except UserError:  # the model is usable without its data
            return None

    @cached_property
    def data(self) -> Source:
        """The prepared task, with the evaluation sets of training.

        Raises:
            UserError: if the data is missing, or differs from the data of training.
        """
        config = self.run_config
        tokenizer = getattr(config.task, "tokenizer", None)
        if isinstance(tokenizer, StartTokenizerConfig) and self.tokenizer is not None:  # the model need not exist
            tokenizer = tokenizer.of_model(self.tokenizer.to_json(), self.vocab_size)
            config = config.model_copy(update={"task": config.task.model_copy(update={"tokenizer": tokenizer})})
        source = Sources(self.data_folder).prepare(config)
        if source.fingerprint != self.record["data"]:
            problem = "the task's data differs from the data that this run was trained on"
            remedy = "Restore the data, or name the folder of the study file (data_folder, --data-folder)."
            raise UserError(problem, file=self._own_run("data").where, remedy=remedy)
        return source
