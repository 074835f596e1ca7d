"""Satellite-scene classifier on several hosts, exported as a SavedModel every few epochs."""
import argparse
import os

import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", default="/shared/scenes/train-*.tfrecord")
    parser.add_argument("--num-train", type=int, default=270_000)
    parser.add_argument("--classes", type=int, default=45)
    parser.add_argument("--batch-per-replica", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--export-every", type=int, default=5)
    parser.add_argument("--export", default="/shared/models/scenes")
    parser.add_argument("--backup", default="/shared/models/scenes-backup")
    return parser.parse_args()


def parse(record):
    item = tf.io.parse_single_example(record, {
        "png": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_png(item["png"], channels=3)
    image = tf.ensure_shape(image, (128, 128, 3))
    return tf.image.convert_image_dtype(image, tf.float32), item["label"]


def make_dataset(pattern, global_batch):
    files = tf.data.Dataset.from_tensor_slices(sorted(tf.io.gfile.glob(pattern)))
    dataset = files.interleave(tf.data.TFRecordDataset, cycle_length=8,
                               num_parallel_calls=AUTOTUNE)
    dataset = dataset.shuffle(10_000).repeat().map(parse, num_parallel_calls=AUTOTUNE)
    dataset = dataset.batch(global_batch, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return dataset.with_options(options).prefetch(AUTOTUNE)


def conv_block(x, filters):
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.ReLU()(x)
    return tf.keras.layers.MaxPooling2D()(x)


def build_model(classes, lr):
    inputs = tf.keras.Input((128, 128, 3))
    x = inputs
    for filters in (32, 64, 128, 256):
        x = conv_block(x, filters)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(classes)(x))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(lr),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"])
    return model


def is_chief(resolver):
    if resolver.task_type is None or resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


class PeriodicExport(tf.keras.callbacks.Callback):
    def __init__(self, root, every, resolver):
        super().__init__()
        self.root, self.every, self.resolver = root, every, resolver

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every == 0:
            if is_chief(self.resolver):
                self.model.save(os.path.join(self.root, str(epoch + 1)), save_format="tf")
                print(f"exported version {epoch + 1} to {self.root}")


def main():
    args = parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    global_batch = args.batch_per_replica * strategy.num_replicas_in_sync

    dataset = make_dataset(args.files, global_batch)
    with strategy.scope():
        model = build_model(args.classes, args.lr)
    model.fit(
        dataset,
        epochs=args.epochs,
        steps_per_epoch=args.num_train // global_batch,
        callbacks=[
            tf.keras.callbacks.BackupAndRestore(args.backup),
            PeriodicExport(args.export, args.export_every, resolver),
        ],
        verbose=2 if is_chief(resolver) else 0,
    )


if __name__ == "__main__":
    main()
