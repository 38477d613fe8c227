"""A script to try `NAME.yaml` with: stochastic gradient descent on a linear regression. Replace it by yours."""

import argparse
import random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--momentum", type=float, required=True)
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--seed", type=int, required=True)
settings = parser.parse_args()

draw = random.Random(settings.seed)
truth, weights, velocity = [1.0, -2.0, 0.5], [0.0] * 3, [0.0] * 3


def row():
    """Return the inputs and the target of an example."""
    x = [draw.gauss(0, 1) for _ in truth]
    return x, sum(a * b for a, b in zip(truth, x, strict=True)) + draw.gauss(0, 0.3)


def error(x, y):
    """Return the prediction of an example minus its target."""
    return sum(a * b for a, b in zip(weights, x, strict=True)) - y


for step in range(1, 101):
    batch = [row() for _ in range(settings.batch_size)]
    for i in range(len(weights)):
        gradient = sum(2 * error(x, y) * x[i] for x, y in batch) / len(batch)
        velocity[i] = settings.momentum * velocity[i] + gradient
    weights = [w - settings.lr * v for w, v in zip(weights, velocity, strict=True)]
    if step % 20 == 0:
        loss = sum(error(*example) ** 2 for example in [row() for _ in range(200)]) / 200
        print(f"step {step}: loss {loss:.5f}")
