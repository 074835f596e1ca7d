"""Graph neural network for node classification; data-parallel over sampled subgraphs, gradients in one flat buffer."""

import json

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

NODES, CLASSES, FEATURES = 1200, 4, 16


def community_graph(seed=0):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (NODES,), generator=g)
    same = (label[:, None] == label[None]).float()
    edges = (torch.rand(NODES, NODES, generator=g) < 0.004 + 0.016 * same).float()
    edges = ((edges + edges.T) > 0).float()
    centers = torch.randn(CLASSES, FEATURES, generator=g)
    x = 0.6 * centers[label] + torch.randn(NODES, FEATURES, generator=g)
    return x, edges, label


class GCN(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.a = nn.Linear(FEATURES, width)
        self.b = nn.Linear(width, CLASSES)

    def forward(self, x, adjacency):
        h = F.relu(adjacency @ self.a(x))
        return adjacency @ self.b(F.dropout(h, 0.2, self.training))


def normalise(edges):
    edges = edges + torch.eye(len(edges))
    d = edges.sum(1).rsqrt()
    return d[:, None] * edges * d[None]


def average_gradients(model):
    world = dist.get_world_size()
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.reduce(flat, dst=0)
    flat /= world
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
        offset += p.numel()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x, edges, label = community_graph()
    torch.manual_seed(2)
    model = GCN()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    sample = torch.Generator().manual_seed(1000 + rank)
    for step in range(1, 301):
        nodes = torch.randperm(NODES, generator=sample)[:300]
        logits = model(x[nodes], normalise(edges[nodes][:, nodes]))
        loss = F.cross_entropy(logits, label[nodes])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if rank == 0 and step % 30 == 0:
            accuracy = (logits.argmax(1) == label[nodes]).float().mean()
            print(f"step {step} loss {loss.item():.4f} accuracy {accuracy:.3f}", flush=True)

    flat = parameters_to_vector(model.parameters()).detach()
    everyone = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(everyone, flat)
    if rank == 0:
        with open("result.json", "w") as f:
            json.dump({"spread": (everyone[0] - everyone[1]).abs().max().item()}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
