# from finetune_legal.py, train(), shortened
    for step, batch in enumerate(loader):
        batch = {k: v.to(engine.device) for k, v in batch.items()}
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        if engine.global_steps and engine.global_steps % args.save_every == 0 and engine.is_gradient_accumulation_boundary():
            if args.local_rank == 0:
                print(f"rank0: saving to {args.out}/ckpt (tag step{engine.global_steps})", flush=True)
                engine.save_checkpoint(f"{args.out}/ckpt", tag=f"step{engine.global_steps}")
