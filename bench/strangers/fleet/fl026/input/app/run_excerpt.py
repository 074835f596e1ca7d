    for it in range(start, cfg.max_iters):
        loss = step(batch)
        if os.path.exists("/var/run/maintenance-event"):     # written by the node agent
            ckpt.save(state, it)
            break
        loss_t = loss.detach()
        dist.all_reduce(loss_t, op=dist.ReduceOp.AVG)
