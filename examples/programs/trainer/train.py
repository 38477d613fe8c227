"""A tiny Llama, trained from scratch by the Trainer of Hugging Face transformers on sums such as `17+25=42`.

`python train.py ARGUMENTS.json`: the fields of `ModelSettings` and of `TrainingArguments`.
"""

import random
import sys
from dataclasses import dataclass

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CHARACTERS = "0123456789+=\n"
LENGTH = 32


@dataclass
class ModelSettings:
    hidden_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    hidden_act: str = "silu"
    attention_dropout: float = 0.0


class Sums(torch.utils.data.Dataset):
    """Windows of text; training and evaluation draw their sums with different seeds."""

    def __init__(self, seed: int, windows: int):
        draw = random.Random(seed)
        text = ""
        while len(text) < windows * LENGTH:
            first, second = draw.randrange(100), draw.randrange(100)
            text += f"{first}+{second}={first + second}\n"
        tokens = torch.tensor([CHARACTERS.index(character) for character in text])
        self.windows = tokens[: windows * LENGTH].view(windows, LENGTH)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def main() -> None:
    settings, arguments = HfArgumentParser((ModelSettings, TrainingArguments)).parse_json_file(sys.argv[1])
    torch.manual_seed(arguments.seed)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=settings.hidden_size,
        intermediate_size=4 * settings.hidden_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        hidden_act=settings.hidden_act,
        attention_dropout=settings.attention_dropout,
        max_position_embeddings=LENGTH,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(model, arguments, train_dataset=Sums(1, 2000), eval_dataset=Sums(2, 100))
    trainer.train()
    trainer.save_state()  # trainer_state.json, from which the metrics are read


if __name__ == "__main__":
    main()
