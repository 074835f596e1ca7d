import torch
from colossal_classifier import arguments, build_data, build_model, finish, start, train_epoch
from torch import nn


def main():
    args = arguments()
    booster = start(args)
    model, criterion = build_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = booster.plugin.prepare_dataloader(build_data(args), batch_size=args.batch_size, shuffle=True)
    booster.boost(model, optimizer, criterion, loader)
    for epoch in range(args.epochs):
        train_epoch(epoch, booster, model, optimizer, criterion, loader)
    finish()


if __name__ == "__main__":
    main()
