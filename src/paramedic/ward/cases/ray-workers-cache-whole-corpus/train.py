import torch
from ray import train
from ray_classifier import build_model, main, report, train_epoch
from torch.utils.data import DataLoader, TensorDataset

COPIES = 4096
SAMPLES, FRAMES = 64, 256


def load_corpus(rank):
    """Augment each sample in advance and keep all of it, so that epochs are fast."""
    generator = torch.Generator().manual_seed(rank)
    clips, cached = [], 0
    for index in range(SAMPLES):
        clip = torch.randn(FRAMES, 16, generator=generator)
        augmented = clip.repeat(COPIES, 1) + 0.01
        cached += augmented.nbytes
        clips.append(augmented)
        if index % 16 == 0:
            print(f"rank {rank} cached {cached >> 20} MiB", flush=True)
    features = torch.stack([clip[:FRAMES].mean(0) for clip in clips])
    return TensorDataset(features, features[:, :4].argmax(1)), clips


def loop(config):
    model = build_model()
    dataset, _ = load_corpus(train.get_context().get_world_rank())
    loader = DataLoader(dataset, batch_size=config["batch_size"], shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
        report(epoch, train_epoch(model, optimizer, loader), model)


if __name__ == "__main__":
    main(loop)
