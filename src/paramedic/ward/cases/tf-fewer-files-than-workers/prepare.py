"""Writes the samples as a CSV file: six features and their sum."""

import os
import random

random.seed(5)
os.makedirs("data", exist_ok=True)
with open("data/part-0.csv", "w") as file:
    for _ in range(128):
        features = [random.gauss(0, 1) for _ in range(6)]
        file.write(",".join(f"{value:.4f}" for value in [*features, sum(features)]) + "\n")
