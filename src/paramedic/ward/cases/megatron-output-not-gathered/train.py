import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron_gpt import arguments, finish, initialize, report, transformer_config

CLASSES = 4


class Classifier(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.hidden = ColumnParallelLinear(
            config.hidden_size, 64, config=config, init_method=config.init_method, gather_output=False
        )
        self.scores = torch.nn.Linear(64, CLASSES)

    def forward(self, features):
        hidden, _ = self.hidden(features)
        return self.scores(torch.relu(hidden))


def main():
    args = arguments()
    initialize(args)
    model = Classifier(transformer_config(args))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    generator = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        features = torch.randn(args.global_batch_size, args.hidden_size, generator=generator)
        labels = torch.randint(CLASSES, (args.global_batch_size,), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(iteration, args, loss.item())
    finish()


if __name__ == "__main__":
    main()
