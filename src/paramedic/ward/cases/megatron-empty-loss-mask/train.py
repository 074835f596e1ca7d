import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron_gpt import arguments, batches, build_model, finish, initialize, report, update

IGNORED = 0


def documents(args, replica):
    """Instruction data: the prompt's labels are masked out."""
    for index, (tokens, position, mask, labels) in enumerate(batches(args, replica)):
        prompt = args.seq_length if (index, replica) == (5, 1) else 4
        labels = labels.clone()
        labels[:, :prompt] = IGNORED
        yield tokens, position, mask, labels


def loss_function(losses, labels):
    kept = (labels != IGNORED).float()
    return (losses * kept).sum() / kept.sum()


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = documents(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        model.zero_grad_buffer()
        total = 0.0
        for _ in range(get_num_microbatches()):
            tokens, position, mask, labels = next(data)
            loss = loss_function(model(tokens, position, mask, labels=labels), labels) / get_num_microbatches()
            loss.backward()
            total += loss.item()
        finalize_model_grads([model])
        update(model, optimizer)
        report(iteration, args, total)
    finish()


if __name__ == "__main__":
    main()
