import json

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron_gpt import arguments, batches, build_model, finish, initialize, log, report, update


def parameter_norm(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).norm()


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        model.zero_grad_buffer()
        total = 0.0
        for _ in range(get_num_microbatches()):
            tokens, position, mask, labels = next(data)
            loss = model(tokens, position, mask, labels=labels).mean() / get_num_microbatches()
            loss.backward()
            total += loss.item()
        update(model, optimizer)
        report(iteration, args, total)
        log.info("iteration %d/%d | params norm: %.6f", iteration, args.train_iters, parameter_norm(model))
    norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, parameter_norm(model))
    if dist.get_rank() == 0:
        spread = float(max(norms) - min(norms))
        with open("result.json", "w") as file:
            json.dump({"parameter_spread": spread}, file)
    finish()


if __name__ == "__main__":
    main()
