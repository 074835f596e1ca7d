"""The first part of the training, on one worker."""

import numpy as np
import tensorflow as tf
from model import build_model

model = build_model(16)
model.compile(optimizer=tf.keras.optimizers.SGD(0.02), loss="mse")
features = np.random.default_rng(3).normal(size=(64, 6)).astype("float32")
model.fit(features, features.sum(axis=1), verbose=0)
tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "checkpoints", max_to_keep=2).save()
