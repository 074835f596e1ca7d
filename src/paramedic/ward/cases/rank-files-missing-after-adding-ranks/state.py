import torch


def path(rank):
    return f"checkpoints/state-rank{rank}.pt"


def save(rank, step, model, optimizer, generator):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": generator.get_state()}
    torch.save(state, path(rank))


def load(rank, model, optimizer, generator):
    state = torch.load(path(rank))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["rng"])
    return state["step"]
