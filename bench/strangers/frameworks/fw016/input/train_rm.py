class Probe:
    """keeps last-token states so that we can plot reward separation at the end"""
    def __init__(self):
        self.trace = []

    def add(self, out, labels):
        self.trace.append((out.hidden_states[-1][:, -1], labels))

...
    probe = Probe()
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            chosen = model(**batch["chosen"], output_hidden_states=True)
            rejected = model(**batch["rejected"], output_hidden_states=True)
            loss = -F.logsigmoid(chosen.logits - rejected.logits).mean()
            accelerator.backward(loss)
            probe.add(chosen, batch["meta"])
            optimizer.step(); sched.step(); optimizer.zero_grad(set_to_none=True)
