"""Contestants, each in a separate process that trains one window per request.

`python -m benchmarks.contestants` reads a request as a line of JSON and says when it is ready; after that each line is
a number of seconds, and is answered by `{"steps", "seconds", "tokens", "loss"}`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from benchmarks.shapes import Shape
from taetpu.core.jax_setup import cpu_cores, prepare_jax

CUBE = 2048
WARM = 0.3  # seconds before the first window


class Contestant(Protocol):
    """A contestant; `about` describes it."""

    @property
    def about(self) -> dict[str, Any]: ...

    def window(self, seconds: float) -> dict[str, float]: ...


class Matmul:
    """The machine's matmul rate: float32 products of square matrices in jax on all cores."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.multiply, self.matrix = jax.jit(jnp.matmul), jnp.ones((CUBE, CUBE))

    @property
    def about(self) -> dict[str, Any]:
        return {"way": f"{CUBE} cubed, float32"}

    def window(self, seconds: float) -> dict[str, float]:
        steps, passed, began = 0, 0.0, time.perf_counter()
        while passed < seconds or not steps:
            self.multiply(self.matrix, self.matrix).block_until_ready()
            steps, passed = steps + 1, time.perf_counter() - began
        return {"steps": steps, "seconds": passed, "flops": 2 * CUBE**3 * steps}


def contestant(name: str, shape: dict[str, int], text: str, **more: Any) -> Contestant:
    """Return a contestant by name, ready to be timed; `more` is the layout of taetpu's."""
    if name == "matmul":
        return Matmul()
    if more:
        prepare_jax()
        from benchmarks.ours import Ours
        from benchmarks.products import Products

        made = Products if name.startswith("products") else Ours
        return made(Shape(**shape), Path(text), **more)
    import torch

    from benchmarks.peers import Data, fastest

    torch.set_num_threads(cpu_cores())
    return fastest(name, Shape(**shape), Data(Path(text)))


def main() -> None:
    """Answer the parent's requests, a line each, until it ends."""
    os.environ.update(JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries may print: keep that out of the answers
    ready = contestant(**json.loads(sys.stdin.readline()))
    ready.window(WARM)
    print(json.dumps(ready.about), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(ready.window(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
