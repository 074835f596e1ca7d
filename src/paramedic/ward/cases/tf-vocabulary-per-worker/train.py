"""Sentiment of short reviews on several workers: each reads its own part of the reviews."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf

STEPS = 8
GLOBAL_BATCH = 16
LOCAL_BATCH = GLOBAL_BATCH // tf_cluster.WORLD_SIZE


REVIEWS = [
    ("good plot and fine music", 1.0), ("dull plot", -1.0), ("fine acting", 1.0), ("bad music", -1.0),
    ("good acting and good plot", 1.0), ("awful acting", -1.0), ("a fine film", 1.0), ("bad and dull film", -1.0),
    ("brilliant photography", 1.0), ("tedious script", -1.0), ("a fine script", 1.0), ("bad photography", -1.0),
    ("moving and brilliant", 1.0), ("a tedious film", -1.0), ("good script", 1.0), ("predictable ending", -1.0),
]


def vocabulary(reviews):
    return sorted({word for text, _ in reviews for word in text.split()})


part = REVIEWS[8 * tf_cluster.RANK : 8 * (tf_cluster.RANK + 1)]
words = vocabulary(part)
log.info("%d reviews, %d words", len(part), len(words))


def samples(context):
    features = np.array([[float(word in text.split()) for word in words] for text, _ in part], "float32")
    targets = np.array([score for _, score in part], "float32")
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(LOCAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(len(words),)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.02)

inputs = iter(strategy.distribute_datasets_from_function(samples))


@tf.function
def train_step(batch):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(model(features)[:, 0], targets)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)


for step in range(1, STEPS + 1):
    loss = train_step(next(inputs))
    log.info("step %d loss %.4f", step, loss)
log.info("training finished")
tf_cluster.leave()
