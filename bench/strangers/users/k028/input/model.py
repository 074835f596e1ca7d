class ReefNet(L.LightningModule):
    def __init__(self, n_species, lr=3e-4):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = timm.create_model("efficientnet_b3", pretrained=True, num_classes=0)
        self.head_species = nn.Linear(1536, n_species)
        self.head_depth = DepthDecoder(1536)
        self.crit = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.head_species(self.backbone(x))

    def training_step(self, batch, idx):
        x, y = batch
        loss = self.crit(self(x), y)
        self.log("train/loss", loss)
        return loss
