running = 0.0
history = []
for step, batch in enumerate(loader, 1):
    with accelerator.accumulate(model):
        out = model(**batch)
        aux = out.logits.float().logsumexp(-1).pow(2).mean()
        loss = out.loss + 1e-4 * aux
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); scheduler.step(); optimizer.zero_grad()
    history.append({"step": step, "loss": loss.item(), "logits": out.logits})
    running = 0.98 * running + 0.02 * loss.item()
    if step % 25 == 0:
        report(step, running, accelerator)
