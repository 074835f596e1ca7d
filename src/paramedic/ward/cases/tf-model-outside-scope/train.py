"""Digit classifier on two workers with MultiWorkerMirroredStrategy and Keras."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf

EPOCHS = 2
STEPS = 4
GLOBAL_BATCH = 32


def digits():
    rng = np.random.default_rng(7)
    images = rng.normal(size=(256, 8, 8, 1)).astype("float32")
    labels = rng.integers(0, 10, size=256)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(GLOBAL_BATCH).with_options(options)


def build_model():
    return tf.keras.Sequential([
        tf.keras.layers.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(8, 3, activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ])


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

model = build_model()
with strategy.scope():
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.05),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

model.fit(digits(), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=2 if tf_cluster.RANK == 0 else 0)
log.info("training finished")
