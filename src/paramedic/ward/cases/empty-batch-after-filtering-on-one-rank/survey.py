"""Answers of a survey, in the order in which they came in."""

import torch


class Survey:
    def __init__(self, rank, rows=640):
        g = torch.Generator().manual_seed(100 + rank)
        x = torch.randn(rows, 10, generator=g)
        y = (x @ torch.linspace(-1, 1, 10)) + 0.1 * torch.randn(rows, generator=g)
        missing = torch.rand(rows, generator=g) < 0.15
        if rank == 2:
            missing[280:330] = True
        y[missing] = float("nan")
        self.x, self.y = x, y

    def batches(self, size, count):
        for i in range(count):
            x, y = self.x[i * size : (i + 1) * size], self.y[i * size : (i + 1) * size]
            answered = ~y.isnan()
            yield x[answered], y[answered]
