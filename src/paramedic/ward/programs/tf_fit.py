"""Classifier on several workers with MultiWorkerMirroredStrategy and Keras' fit()."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf

EPOCHS = 2
STEPS = 4
GLOBAL_BATCH = 16


def measurements():
    rng = np.random.default_rng(7)
    features = rng.normal(size=(128, 6)).astype("float32")
    labels = (features.sum(axis=1) > 0).astype("int64")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(GLOBAL_BATCH).with_options(options)


def build_model():
    return tf.keras.Sequential([
        tf.keras.layers.Dense(16, activation="relu", input_shape=(6,)),
        tf.keras.layers.Dense(2),
    ])


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync, TensorFlow %s", strategy.num_replicas_in_sync, tf.version.VERSION)

with strategy.scope():
    model = build_model()
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.05),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

model.fit(measurements(), epochs=EPOCHS, steps_per_epoch=STEPS, verbose=2)
log.info("training finished")
tf_cluster.leave()
