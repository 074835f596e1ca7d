"""How large the activations of each layer are."""


class Probe:
    def __init__(self, model):
        self.acts = {}
        for name, layer in model.named_children():
            layer.register_forward_hook(self._keep(name))

    def _keep(self, name):
        def hook(module, inputs, output):
            self.acts.setdefault(name, []).append(output.detach())

        return hook

    def result(self):
        return {name: sum(a.abs().mean().item() for a in acts) / len(acts) for name, acts in self.acts.items()}
