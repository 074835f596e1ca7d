import torch
from ray import train
from ray_classifier import build_loader, build_model, main, report, train_epoch


def loop(config):
    model, loader = build_model(), build_loader(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        loss = train_epoch(model, optimizer, loader)
        if train.get_context().get_world_rank() == 0:
            report(epoch, loss, model)


if __name__ == "__main__":
    main(loop)
