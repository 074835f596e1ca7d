import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron_gpt import arguments, batches, build_model, finish, initialize, log, report, train_step


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    total = 0.0
    for _ in range(2):
        tokens, position, mask, labels = next(data)
        total += model(tokens, position, mask, labels=labels).mean().item()
    model.train()
    return total / 2


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, parallel_state.get_data_parallel_rank())
    validation = batches(args, 999)
    for iteration in range(1, args.train_iters + 1):
        report(iteration, args, train_step(model, optimizer, data))
        if iteration == 2 and dist.get_rank() == 0:
            log.info("validation loss at iteration %d: %.6f", iteration, evaluate(model, validation))
        dist.barrier()
    finish()


if __name__ == "__main__":
    main()
