"""Tensor and data parallel groups in one job: pairs share a layer, columns share gradients."""

import torch
import torch.distributed as dist
from common import HOW, RANK, WORLD, build_model, due, go_on, log, make_batch, setup
from torch import nn


def build_groups():
    rows = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    columns = [dist.new_group(list(range(column, WORLD, 2))) for column in range(2)]
    return rows[RANK // 2], columns[RANK % 2]


def reduce_activations(activations, group):
    dist.all_reduce(activations, group=group)
    return activations / 2


def reduce_gradients(model, group):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)


def total_norm(model):
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).square().sum()
    dist.all_reduce(norm)
    return norm.sqrt()


def exchange(step, model, hidden, tensor_group, data_group):
    wrong = HOW == "order" and due(step)
    if wrong:
        total_norm(model)
    reduce_activations(hidden, data_group if HOW == "other" and due(step) else tensor_group)
    if not wrong:
        total_norm(model)
    reduce_gradients(model, data_group)


def main():
    setup()
    tensor_group, data_group = build_groups()
    model = build_model(width=256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while go_on(step):
        x, y = make_batch(step)
        optimizer.zero_grad()
        hidden = model(x)
        loss = nn.functional.cross_entropy(hidden, y)
        loss.backward()
        exchange(step, model, hidden.detach(), tensor_group, data_group)
        optimizer.step()
        log(step, loss)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
