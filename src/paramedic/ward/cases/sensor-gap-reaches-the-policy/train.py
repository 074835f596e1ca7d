import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Normal

logger = logging.getLogger("ppo")


@dataclass
class Config:
    iterations: int = 15
    obs_dim: int = 6
    act_dim: int = 2
    lr: float = 3e-3


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cfg.obs_dim, 32), nn.Tanh(), nn.Linear(32, cfg.act_dim))
        self.log_std = nn.Parameter(torch.zeros(cfg.act_dim))

    def forward(self, obs):
        return Normal(self.body(obs), self.log_std.exp())


def replay(recording, iteration, cfg):
    g = torch.Generator().manual_seed(1000 * recording + iteration)
    obs = torch.randn(24, cfg.obs_dim, generator=g)
    if recording == 2 and iteration in range(8, 11):
        obs[5:9, 3] = float("nan")  # the lidar was off here
    return obs


def main(cfg=Config()):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[%(asctime)s][%(name)s][rank={rank}] %(message)s")
    torch.manual_seed(rank)
    policy = nn.parallel.DistributedDataParallel(Policy(cfg))
    opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    for iteration in range(cfg.iterations):
        obs = replay(rank, iteration, cfg)
        pi = policy(obs)
        action = pi.sample()
        reward = -(action - obs[:, : cfg.act_dim]).square().sum(-1)
        loss = -(pi.log_prob(action).sum(-1) * (reward - reward.mean())).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        logger.info("iteration %d loss %.3f return %.3f", iteration, loss.item(), reward.mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
