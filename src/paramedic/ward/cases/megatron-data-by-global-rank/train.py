import json

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron_gpt import arguments, batches, build_model, finish, initialize, log, report, train_step


def norm_of_layer_norms(model):
    found = [parameter for name, parameter in model.named_parameters() if "layernorm" in name]
    return torch.cat([parameter.detach().flatten() for parameter in found]).norm()


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, dist.get_rank())
    for iteration in range(1, args.train_iters + 1):
        report(iteration, args, train_step(model, optimizer, data))
        norm = norm_of_layer_norms(model)
        log.info("iteration %d/%d | layer norms' parameter norm: %.6f", iteration, args.train_iters, norm)
    group = parallel_state.get_tensor_model_parallel_group()
    norms = [torch.zeros(()) for _ in range(group.size())]
    dist.all_gather(norms, norm, group=group)
    if dist.get_rank() == 0:
        with open("result.json", "w") as file:
            json.dump({"parameter_spread": float(max(norms) - min(norms))}, file)
    finish()


if __name__ == "__main__":
    main()
