def sync_grads(model, group=None):
    ws = dist.get_world_size(group)
    for n, p in sorted(model.named_parameters()):
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad.div_(ws)
