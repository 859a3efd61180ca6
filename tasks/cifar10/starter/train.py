"""Trains a small convolutional network on a GPU, if there is one, and writes submission.csv.

`python3 train.py EPOCHS`; without a number, 5.
"""

import sys

import numpy as np
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load(split):
    images = np.load(f"data/{split}_images.npy")
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype("float32") / 127.5 - 1)


def network():
    layers, before = [], 3
    for width in (64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(128 * 8 * 8, 10))


def main():
    torch.manual_seed(0)
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    images, labels = load("train"), torch.from_numpy(np.load("data/train_labels.npy")).long()
    model = network().to(DEVICE)
    steps = epochs * (len(images) // 256)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=max(steps, 1))
    for epoch in range(epochs):
        for batch in torch.randperm(len(images))[: steps // epochs * 256].split(256):
            x, y = images[batch].to(DEVICE), labels[batch].to(DEVICE)
            flip = torch.rand(len(x), 1, 1, 1, device=DEVICE) < 0.5
            x = torch.where(flip, x.flip(3), x)
            loss = nn.functional.cross_entropy(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()
    with open("submission.csv", "w") as file, torch.no_grad():
        file.write("id,label\n")
        for split in ("val", "test"):
            guesses = [model(x.to(DEVICE)).argmax(1).cpu() for x in load(split).split(1000)]
            for number, guess in enumerate(torch.cat(guesses).tolist()):
                file.write(f"{split}{number},{guess}\n")


main()
