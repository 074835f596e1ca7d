from pathlib import Path

import torch

FOLDER = Path("checkpoints")


def latest():
    found = list(FOLDER.glob("step_*.pt"))
    return max(found) if found else None


def save(step, **parts):
    target = FOLDER / f"step_{step}.pt"
    torch.save({"step": step} | {k: v.state_dict() for k, v in parts.items()}, target)
    return target


def restore(**parts):
    """The step to go on from; 0 where there is nothing to go on from."""
    path = latest()
    if path is None:
        return 0
    state = torch.load(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["step"]
