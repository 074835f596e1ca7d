"""Tags of support tickets: several may be true at once."""
import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf


class TicketTagger(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(24, activation="gelu")
        self.head = tf.keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.head(self.hidden(x))


def tickets():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(192, 10)).astype("float32")
    return x, (x[:, :3] > 0).astype("float32")


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    tagger = TicketTagger()
    tagger.compile(optimizer=tf.keras.optimizers.Adam(1e-2), loss=tf.keras.losses.BinaryCrossentropy(from_logits=True))
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = tf.data.Dataset.from_tensor_slices(tickets()).repeat().batch(24).with_options(options)
history = tagger.fit(data, epochs=3, steps_per_epoch=6, verbose=2)
log.info("done after %d epochs", len(history.history["loss"]))
tf_cluster.leave()
