import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron_gpt import arguments, batches, build_model, finish, initialize, log, report, train_step


@torch.no_grad()
def evaluate(args):
    """The benchmark's model is small: every rank holds all of it and takes its share of the samples."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=1)
    args.tensor_model_parallel_size = 1
    model = build_model(args).eval()
    tokens, position, mask, labels = next(batches(args, parallel_state.get_data_parallel_rank()))
    loss = model(tokens, position, mask, labels=labels).mean()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        report(iteration, args, train_step(model, optimizer, data))
    log.info("benchmark loss: %.6f", evaluate(args))
    finish()


if __name__ == "__main__":
    main()
