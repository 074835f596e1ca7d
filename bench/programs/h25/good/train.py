"""Fashion-MNIST with tf.distribute.MirroredStrategy and a custom training loop."""
import argparse
import os

import numpy as np
import tensorflow as tf


def load_data(path):
    with np.load(path) as data:
        x_train, y_train = data["x_train"], data["y_train"]
        x_test, y_test = data["x_test"], data["y_test"]
    x_train = x_train[..., None].astype(np.float32) / 255.0
    x_test = x_test[..., None].astype(np.float32) / 255.0
    return (x_train, y_train.astype(np.int64)), (x_test, y_test.astype(np.int64))


def build_model():
    return tf.keras.Sequential([
        tf.keras.layers.Input((28, 28, 1)),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(64, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dropout(0.3),
        tf.keras.layers.Dense(10),
    ])


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/fashion_mnist.npz")
    parser.add_argument("--batch-size", type=int, default=256, help="per replica")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint-dir", default="./training_checkpoints")
    return parser.parse_args()


def main():
    args = parse_args()
    strategy = tf.distribute.MirroredStrategy()
    print("replicas:", strategy.num_replicas_in_sync)
    global_batch = args.batch_size * strategy.num_replicas_in_sync

    (x_train, y_train), (x_test, y_test) = load_data(args.data)
    train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    train_ds = train_ds.shuffle(len(x_train)).batch(global_batch, drop_remainder=True)
    test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(global_batch)
    train_dist = strategy.experimental_distribute_dataset(train_ds.prefetch(tf.data.AUTOTUNE))
    test_dist = strategy.experimental_distribute_dataset(test_ds.prefetch(tf.data.AUTOTUNE))

    with strategy.scope():
        model = build_model()
        optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
        train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def compute_loss(labels, logits):
        per_example = loss_object(labels, logits)
        return tf.nn.compute_average_loss(per_example, global_batch_size=global_batch)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = compute_loss(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(labels, logits)
        return loss

    def test_step(inputs):
        images, labels = inputs
        test_accuracy.update_state(labels, model(images, training=False))

    @tf.function
    def distributed_train_step(inputs):
        per_replica = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    @tf.function
    def distributed_test_step(inputs):
        strategy.run(test_step, args=(inputs,))

    os.makedirs(args.checkpoint_dir, exist_ok=True)
    for epoch in range(args.epochs):
        total, batches = 0.0, 0
        for batch in train_dist:
            total += distributed_train_step(batch)
            batches += 1
        for batch in test_dist:
            distributed_test_step(batch)
        print(f"epoch {epoch + 1}: loss {float(total) / batches:.4f} "
              f"train acc {train_accuracy.result():.4f} test acc {test_accuracy.result():.4f}")
        train_accuracy.reset_state()
        test_accuracy.reset_state()
        if (epoch + 1) % 5 == 0:
            checkpoint.save(os.path.join(args.checkpoint_dir, "ckpt"))


if __name__ == "__main__":
    main()
