import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron_gpt import arguments, batches, build_model, finish, initialize, report, update


class ActorCritic(GPTModel):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.value = torch.nn.Linear(self.config.hidden_size, 1)

    def forward(self, tokens, position, mask, labels):
        losses = super().forward(tokens, position, mask, labels=labels)
        hidden = self.embedding(tokens, position)
        return losses


def main():
    args = arguments()
    initialize(args)
    model = build_model(args, ActorCritic)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        model.zero_grad_buffer()
        total = 0.0
        with model.no_sync():
            for _ in range(get_num_microbatches() - 1):
                tokens, position, mask, labels = next(data)
                loss = model(tokens, position, mask, labels).mean() / get_num_microbatches()
                loss.backward()
                total += loss.item()
        tokens, position, mask, labels = next(data)
        loss = model(tokens, position, mask, labels).mean() / get_num_microbatches()
        loss.backward()
        finalize_model_grads([model])
        update(model, optimizer)
        report(iteration, args, total + loss.item())
    finish()


if __name__ == "__main__":
    main()
