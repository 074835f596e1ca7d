"""Satellite tile classification: tf.keras with Horovod."""
import argparse
import os

import horovod.tensorflow.keras as hvd
import tensorflow as tf


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--train", default="/data/tiles/train/*.tfrecord")
    p.add_argument("--val", default="/data/tiles/val/*.tfrecord")
    p.add_argument("--train-size", type=int, default=480000)
    p.add_argument("--val-size", type=int, default=24000)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--epochs", type=int, default=80)
    p.add_argument("--lr", type=float, default=0.0125)
    p.add_argument("--out", default="./runs/tiles")
    return p.parse_args()


def decode(record):
    f = tf.io.parse_single_example(record, {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64)})
    image = tf.io.decode_jpeg(f["image"], channels=3)
    image = tf.image.resize(image, (128, 128)) / 255.0
    return image, f["label"]


def dataset(pattern, batch_size, training):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    ds = tf.data.TFRecordDataset(files, num_parallel_reads=4 if training else None)
    ds = ds.shard(hvd.size(), hvd.rank())
    if training:
        ds = ds.shuffle(10000)
    ds = ds.repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def build_model(classes=21):
    inputs = tf.keras.Input((128, 128, 3))
    x = inputs
    for filters in (32, 64, 128, 256):
        x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = tf.keras.layers.BatchNormalization()(x)
        x = tf.keras.layers.ReLU()(x)
        x = tf.keras.layers.MaxPooling2D()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(classes, activation="softmax")(x))


def main():
    args = parse_args()
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    scaled_lr = args.lr * hvd.size()
    optimizer = tf.keras.optimizers.legacy.SGD(learning_rate=scaled_lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)

    model = build_model()
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"],
                  experimental_run_tf_function=False)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=0),
        tf.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.3, patience=4, min_lr=1e-5),
    ]
    if hvd.rank() == 0:
        os.makedirs(args.out, exist_ok=True)
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(
            os.path.join(args.out, "weights-{epoch:03d}.h5"), save_weights_only=True))
        callbacks.append(tf.keras.callbacks.CSVLogger(os.path.join(args.out, "log.csv")))

    model.fit(
        dataset(args.train, args.batch_size, True),
        steps_per_epoch=args.train_size // (args.batch_size * hvd.size()),
        validation_data=dataset(args.val, args.batch_size, False),
        validation_steps=args.val_size // (args.batch_size * hvd.size()),
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0)


if __name__ == "__main__":
    main()
