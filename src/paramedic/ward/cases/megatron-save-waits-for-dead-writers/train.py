import os

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron_gpt import arguments, batches, build_model, finish, initialize, log, report, train_step


def save(model, folder):
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(model.module.sharded_state_dict(), folder)
    log.info("saved checkpoint to %s", folder)


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    if args.load:
        state = dist_checkpointing.load(model.module.sharded_state_dict(), args.load)
        model.module.load_state_dict(state)
        log.info("loaded checkpoint from %s", args.load)
    data = batches(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        report(iteration, args, train_step(model, optimizer, data))
    if args.save:
        save(model, os.path.join(args.save, f"iter_{args.train_iters:07d}"))
    finish()


if __name__ == "__main__":
    main()
