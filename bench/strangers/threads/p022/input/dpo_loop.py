# dpo_loop.py  (accelerate, hand-written DPO)
stats = {"chosen": [], "rejected": [], "margin": []}
ref_cache = {}

for step, batch in enumerate(loader):
    with accelerator.accumulate(policy):
        pi_c, pi_r = seq_logps(policy, batch["chosen"]), seq_logps(policy, batch["rejected"])
        with torch.no_grad():
            rf_c, rf_r = seq_logps(ref, batch["chosen"]), seq_logps(ref, batch["rejected"])
        margin = (pi_c - pi_r) - (rf_c - rf_r)
        loss = -F.logsigmoid(beta * margin).mean()
        accelerator.backward(loss, retain_graph=args.log_token_grads)
        stats["chosen"].append(pi_c); stats["rejected"].append(pi_r); stats["margin"].append(margin)
        optim.step(); sched.step(); optim.zero_grad()
    if step % 20 == 0:
        log(step, loss, torch.stack([m.mean() for m in stats["margin"][-20:]]).mean())
        log_memory(step)
