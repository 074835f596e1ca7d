from torch.optim.lr_scheduler import LambdaLR


def linear_with_warmup(optimizer, warmup_steps, total_steps):
    """Rise over the first steps, then fall in a straight line to nothing at the last."""

    def factor(step):
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)
