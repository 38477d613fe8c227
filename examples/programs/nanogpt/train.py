"""A small GPT on sums such as `17+25=42`, with the interface of nanoGPT's train.py.

`python train.py CONFIG.py --KEY=VALUE ...` changes the settings below, first by the file and then by the arguments.
"""

import ast
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

out_dir = "out"
init_from = "scratch"  # or "auto": go on from the checkpoint in out_dir, if there is one
seed = 1
eval_interval = 100
eval_iters = 10
log_interval = 10
batch_size = 32
block_size = 64
n_layer = 2
n_head = 4
n_embd = 64
dropout = 0.0
bias = False
learning_rate = 1e-3
weight_decay = 0.1
warmup_iters = 20
max_iters = 500

settings = {
    name: value for name, value in globals().items() if type(value) in (bool, int, float, str) and name[0] != "_"
}
for word in sys.argv[1:]:
    if not word.startswith("--"):
        changed = {}
        exec(Path(word).read_text(), {}, changed)
    else:
        name, _, text = word[2:].partition("=")
        try:
            changed = {name: ast.literal_eval(text)}
        except (SyntaxError, ValueError):
            changed = {name: text}
    for name, value in changed.items():
        if name not in settings:
            sys.exit(f"unknown setting: {name}")
        if type(value) is not type(settings[name]) and not (
            isinstance(value, int) and isinstance(settings[name], float)
        ):
            sys.exit(f"{name} must be a {type(settings[name]).__name__}, got {value!r}")
        globals()[name] = settings[name] = value

characters = "0123456789+=\n"
numbers = {character: number for number, character in enumerate(characters)}


def make_tokens(first: int, count: int) -> torch.Tensor:
    """Return lines of sums as token numbers."""
    generator = torch.Generator().manual_seed(first)
    pairs = torch.randint(0, 100, (count, 2), generator=generator).tolist()
    return torch.tensor([numbers[character] for a, b in pairs for character in f"{a}+{b}={a + b}\n"])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.out = nn.Linear(n_embd, n_embd, bias=bias)

    def forward(self, x):
        heads = [part.unflatten(-1, (n_head, -1)).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1)]
        z = functional.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=dropout if self.training else 0.0)
        return functional.dropout(self.out(z.transpose(1, 2).flatten(2)), dropout, self.training)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(n_embd, bias=bias) for _ in range(2))
        self.attention = Attention()
        layers = (nn.Linear(n_embd, 4 * n_embd, bias=bias), nn.GELU(), nn.Linear(4 * n_embd, n_embd, bias=bias))
        self.ffn = nn.Sequential(*layers, nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.ffn(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(characters), n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.norm = nn.LayerNorm(n_embd, bias=bias)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = self.norm(self.blocks(x)) @ self.tokens.weight.T / math.sqrt(n_embd)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


splits = {"train": make_tokens(1, 5_000), "val": make_tokens(2, 1_000)}


def make_batch(split: str, step: int):
    """Return tokens and targets, which depend on the seed and the step only, so that a resumed run sees the same."""
    tokens = splits[split]
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, len(tokens) - block_size - 1, (batch_size,), generator=generator)
    windows = torch.stack([tokens[start : start + block_size + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def estimate_loss(split: str) -> float:
    model.eval()
    losses = [model(*make_batch(split, -1 - index)).item() for index in range(eval_iters)]
    model.train()
    return sum(losses) / len(losses)


torch.set_num_threads(1)
torch.manual_seed(seed)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, betas=(0.9, 0.95))
checkpoint, first = Path(out_dir) / "ckpt.pt", 0
checkpoint.parent.mkdir(parents=True, exist_ok=True)
if init_from == "auto" and checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
print(f"number of parameters: {sum(parameter.numel() for parameter in model.parameters())}")
started = time.perf_counter()
for step in range(first, max_iters + 1):
    if step % eval_interval == 0 or step == max_iters:
        print(f"step {step}: train loss {estimate_loss('train'):.4f}, val loss {estimate_loss('val'):.4f}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)  # at once, so that a killed run leaves a whole checkpoint
    if step == max_iters:
        break
    torch.manual_seed(seed * 1_000_003 + step)  # of dropout
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1, (step + 1) / (warmup_iters + 1))
    loss = model(*make_batch("train", step))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % log_interval == 0:
        milliseconds = 1000 * (time.perf_counter() - started) / (step - first + 1)
        print(f"iter {step}: loss {loss.item():.4f}, time {milliseconds:.2f}ms", flush=True)
