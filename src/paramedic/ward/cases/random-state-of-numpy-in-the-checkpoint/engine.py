import numpy as np
import torch


def save_checkpoint(path, epoch, model, optimizer):
    state = {
        "epoch": epoch,
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": {"torch": torch.get_rng_state(), "numpy": np.random.get_state()},
    }
    torch.save(state, path)
    print(f"=> saved {path}", flush=True)


def load_checkpoint(path, model, optimizer):
    state = torch.load(path, map_location="cpu")
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"]["torch"])
    np.random.set_state(state["rng"]["numpy"])
    return state["epoch"] + 1
