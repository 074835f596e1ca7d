class BalancedTopKRouter(TopKRouter):
    """Top-k router whose selection bias is nudged towards an even load, without auxiliary loss."""

    def __init__(self, config, rate=1e-3):
        super().__init__(config)
        self.rate = rate
        self.balance_bias = torch.nn.Parameter(
            torch.zeros(config.num_moe_experts, dtype=torch.float32), requires_grad=False
        )

    def routing(self, logits):
        scores = torch.sigmoid(logits.float())
        _, top = torch.topk(scores + self.balance_bias, self.topk, dim=-1)
        if self.training:
            load = torch.bincount(top.flatten(), minlength=self.config.num_moe_experts).float()
            with torch.no_grad():
                self.balance_bias += self.rate * torch.sign(load.mean() - load)
        probs = scores.gather(-1, top)
        return probs / probs.sum(-1, keepdim=True), top
