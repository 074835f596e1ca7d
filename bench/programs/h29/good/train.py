"""Mixed-precision image classifier: MirroredStrategy, custom loop, loss scaling."""
import argparse
import os

import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

AUTOTUNE = tf.data.AUTOTUNE


def decode(path, label):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    image = tf.image.resize(image, (160, 160)) / 255.0
    return tf.image.random_flip_left_right(image), label


def list_images(root):
    names = sorted(tf.io.gfile.listdir(root))
    paths, labels = [], []
    for index, name in enumerate(names):
        for path in tf.io.gfile.glob(os.path.join(root, name, "*.jpg")):
            paths.append(path)
            labels.append(index)
    return paths, labels, len(names)


def residual(x, filters, stride):
    shortcut = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(x)
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def build_model(num_classes):
    inputs = layers.Input((160, 160, 3))
    x = layers.Conv2D(64, 7, strides=2, padding="same", use_bias=False)(inputs)
    for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = residual(x, filters, stride)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(num_classes, dtype="float32")(x)
    return tf.keras.Model(inputs, outputs)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/data/flowers/train")
    parser.add_argument("--batch-per-replica", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoints", default="./checkpoints")
    return parser.parse_args()


def main():
    args = parse_args()
    mixed_precision.set_global_policy("mixed_float16")
    strategy = tf.distribute.MirroredStrategy()
    global_batch = args.batch_per_replica * strategy.num_replicas_in_sync

    paths, labels, num_classes = list_images(args.root)
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths))
    dataset = dataset.map(decode, num_parallel_calls=AUTOTUNE)
    dataset = dataset.batch(global_batch, drop_remainder=True).prefetch(AUTOTUNE)
    dist_dataset = strategy.experimental_distribute_dataset(dataset)
    steps_per_epoch = len(paths) // global_batch

    with strategy.scope():
        model = build_model(num_classes)
        schedule = tf.keras.optimizers.schedules.CosineDecay(args.lr, steps_per_epoch * args.epochs)
        optimizer = mixed_precision.LossScaleOptimizer(
            tf.keras.optimizers.SGD(schedule, momentum=0.9))
        loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        manager = tf.train.CheckpointManager(checkpoint, args.checkpoints, max_to_keep=2)

    def step_fn(inputs):
        images, targets = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.nn.compute_average_loss(loss_object(targets, logits),
                                              global_batch_size=global_batch)
            scaled_loss = optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(targets, logits)
        return loss

    @tf.function
    def train_step(inputs):
        losses = strategy.run(step_fn, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for epoch in range(args.epochs):
        total = 0.0
        for batch in dist_dataset:
            total += train_step(batch)
        print(f"epoch {epoch + 1}: loss {float(total) / steps_per_epoch:.4f} "
              f"accuracy {accuracy.result():.4f}")
        accuracy.reset_state()
        manager.save()


if __name__ == "__main__":
    main()
