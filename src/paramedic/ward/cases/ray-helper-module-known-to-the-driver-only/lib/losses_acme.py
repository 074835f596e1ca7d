import torch


def huber(prediction, target, delta=1.0):
    error = (prediction - target).abs()
    return torch.where(error < delta, 0.5 * error**2, delta * (error - 0.5 * delta)).mean()
