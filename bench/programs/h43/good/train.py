"""Semantic-embedding classifier with a custom loop on all GPUs of one host."""
import argparse
import logging
import os

import numpy as np
import tensorflow as tf

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")


def load_split(root, split):
    x = np.load(os.path.join(root, f"{split}_x.npy")).astype("float32")
    y = np.load(os.path.join(root, f"{split}_y.npy")).astype("int64")
    return x, y


def build_model(features, classes):
    return tf.keras.Sequential([
        tf.keras.Input((features,)),
        tf.keras.layers.Dense(1024, activation="relu"),
        tf.keras.layers.Dropout(0.2),
        tf.keras.layers.Dense(1024, activation="relu"),
        tf.keras.layers.Dense(classes),
    ])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/embeddings")
    p.add_argument("--ckpt", default="/checkpoints/embed-clf")
    p.add_argument("--batch-per-gpu", type=int, default=256)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--classes", type=int, default=1000)
    args = p.parse_args()

    strategy = tf.distribute.MirroredStrategy()
    global_batch_size = args.batch_per_gpu * strategy.num_replicas_in_sync
    log.info("replicas %d, global batch %d", strategy.num_replicas_in_sync, global_batch_size)

    train_x, train_y = load_split(args.data, "train")
    test_x, test_y = load_split(args.data, "test")
    train_ds = (tf.data.Dataset.from_tensor_slices((train_x, train_y))
                .shuffle(len(train_x)).batch(global_batch_size, drop_remainder=True)
                .prefetch(tf.data.AUTOTUNE))
    test_ds = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(global_batch_size)
    train_dist = strategy.experimental_distribute_dataset(train_ds)
    test_dist = strategy.experimental_distribute_dataset(test_ds)

    with strategy.scope():
        model = build_model(train_x.shape[1], args.classes)
        optimizer = tf.keras.optimizers.SGD(learning_rate=args.lr, momentum=0.9)
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    def compute_loss(labels, logits):
        per_example = loss_object(labels, logits)
        return tf.nn.compute_average_loss(per_example, global_batch_size=global_batch_size)

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = compute_loss(y, model(x, training=True))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss

    def test_step(inputs):
        x, y = inputs
        test_accuracy.update_state(y, model(x, training=False))

    @tf.function
    def distributed_train_step(inputs):
        losses = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def distributed_test_step(inputs):
        strategy.run(test_step, args=(inputs,))

    manager = tf.train.CheckpointManager(checkpoint, args.ckpt, max_to_keep=3)

    for epoch in range(args.epochs):
        total, batches = 0.0, 0
        for batch in train_dist:
            total += distributed_train_step(batch)
            batches += 1
        test_accuracy.reset_state()
        for batch in test_dist:
            distributed_test_step(batch)
        log.info("epoch %d loss %.4f test accuracy %.4f", epoch, float(total) / batches,
                 float(test_accuracy.result()))
        manager.save()


if __name__ == "__main__":
    main()
