"""What a model reads and returns at each position, as its task decides."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interface:
    """The sizes of a model's inputs and outputs.

    Attributes:
        vocab_size: the number of different input tokens; 0 if inputs are real.
        outputs: the number of outputs at each position; None if they are the logits of the tokens.
        features: the number of real inputs at each position; 0 if inputs are tokens.
        labels: the names of the outputs, such as classes; empty if they have none.
        types: the number of types of tokens, such as those of the first and of the second text of a pair. With more
            than one, each type has a vector that is added to its embeddings.
        pooling: the outputs of a sequence: those of its `first` or `last` position, or the `mean`; empty if each
            position has a result.
    """

    vocab_size: int = 0
    outputs: int | None = None
    features: int = 0
    types: int = 1
    labels: tuple[str, ...] = ()
    pooling: str = ""

    @classmethod
    def of(cls, sizes: "Interface | int") -> "Interface":
        """Return an interface, or that of a model from a number of different tokens to their logits."""
        return cls(sizes) if isinstance(sizes, int) else sizes

    @property
    def input_size(self) -> int:
        """The number of rows of the matrix that embeds inputs: one for each token or feature."""
        return self.features or self.vocab_size

    @property
    def output_size(self) -> int:
        """The number of outputs at each position."""
        return self.vocab_size if self.outputs is None else self.outputs

    @property
    def is_language_model(self) -> bool:
        """Whether the model maps tokens of one type to logits of the same tokens."""
        return not self.features and self.types == 1 and self.outputs is None

    def __str__(self) -> str:
        """Return the sizes as text, e.g. `20 tokens, 3 outputs`."""
        inputs = f"{self.features} real inputs" if self.features else f"{self.vocab_size:,} tokens"
        types = f" of {self.types} types" if self.types > 1 else ""
        outputs = "" if self.outputs is None and not self.features else f", {self.output_size} outputs"
        return f"{inputs}{types}{outputs}"
