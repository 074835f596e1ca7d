# lines 112-128
def export_snapshot(engine, path):
    os.makedirs(path, exist_ok=True)
    out = {}
    for name, p in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([p], modifier_rank=None):
            out[name] = p.detach().to("cpu", torch.bfloat16).clone()
    torch.save(out, os.path.join(path, "policy.pt"))

# lines 190-203
        if step % cfg.eval_every == 0:
            run_eval(engine, val_loader, step)
        if step % cfg.snapshot_every == 0:          # 400
            if engine.global_rank == 0:
                log(f"exporting snapshot to {cfg.out}/snap-{step}")
                export_snapshot(engine, f"{cfg.out}/snap-{step}")
            deepspeed.comm.barrier()
