"""A Hydra app: logistic regression on two noisy spirals, in NumPy. `python train.py KEY=VALUE ...`."""

import json

import hydra
import numpy as np
from omegaconf import DictConfig


def make_spirals(seed: int, points: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 2, points)
    radius = draw.uniform(0.2, 1, points)
    angle = 4 * radius + np.pi * label
    place = radius * np.stack([np.cos(angle), np.sin(angle)])
    return place.T + noise * draw.normal(size=(points, 2)), label


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    draw = np.random.default_rng(config.seed)
    weights, offsets = (
        draw.normal(size=(2, config.features.number)) * config.features.scale,
        draw.uniform(0, 6, config.features.number),
    )
    readout = np.zeros(config.features.number)
    (x, y), (x_test, y_test) = make_spirals(1 + config.seed, 1000, config.noise), make_spirals(0, 1000, config.noise)
    features, test_features = np.cos(x @ weights + offsets), np.cos(x_test @ weights + offsets)
    for _ in range(config.optimizer.steps):
        error = 1 / (1 + np.exp(-features @ readout)) - y
        readout -= config.optimizer.lr * (features.T @ error / len(y) + config.optimizer.decay * readout)
    accuracy = float(np.mean((test_features @ readout > 0) == y_test))
    print(json.dumps({"step": config.optimizer.steps, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
