"""A Lightning script: a small network on two noisy spirals. Its CSVLogger writes metrics.csv into the run's folder."""

import argparse
import math

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def make_spirals(seed: int, points: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (points,), generator=generator)
    radius = 0.2 + 0.8 * torch.rand(points, generator=generator)
    angle = 4 * radius + math.pi * label
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(place + 0.05 * torch.randn(points, 2, generator=generator), label.float())


class Classifier(lightning.LightningModule):
    def __init__(self, width: int, activation: str, lr: float):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(2, width), getattr(nn, activation)(), nn.Linear(width, 1))

    def compute_loss(self, batch):
        place, label = batch
        return functional.binary_cross_entropy_with_logits(self.layers(place).squeeze(1), label)

    def training_step(self, batch, index):
        loss = self.compute_loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.compute_loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--activation", default="ReLU")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="logs")
    arguments = parser.parse_args()
    lightning.seed_everything(arguments.seed)
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs, accelerator="cpu", log_every_n_steps=5, enable_progress_bar=False,
        enable_checkpointing=False, logger=CSVLogger(arguments.folder, name="", version=""),
    )  # fmt: skip
    training = DataLoader(make_spirals(1, 1000), batch_size=50, shuffle=True)
    validation = DataLoader(make_spirals(2, 1000), batch_size=1000)
    trainer.fit(Classifier(arguments.width, arguments.activation, arguments.lr), training, validation)


if __name__ == "__main__":
    main()
