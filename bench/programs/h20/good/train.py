"""Chest X-ray classifier: tf.keras with Horovod, learning rate lowered when validation stalls."""
import argparse
import os

import horovod.tensorflow.keras as hvd
import tensorflow as tf

IMAGE = 224
AUTOTUNE = tf.data.AUTOTUNE


def parse_example(record):
    parsed = tf.io.parse_single_example(record, {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_jpeg(parsed["image"], channels=3)
    image = tf.image.resize(image, (IMAGE, IMAGE)) / 255.0
    return image, parsed["label"]


def make_dataset(pattern, batch_size, training):
    records = tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(pattern)),
                                      num_parallel_reads=AUTOTUNE)
    dataset = records.shard(hvd.size(), hvd.rank())
    if training:
        dataset = dataset.shuffle(4096).repeat()
    dataset = dataset.map(parse_example, num_parallel_calls=AUTOTUNE)
    return dataset.batch(batch_size, drop_remainder=training).prefetch(AUTOTUNE)


def build_model(num_classes):
    base = tf.keras.applications.DenseNet121(
        include_top=False, weights=None, input_shape=(IMAGE, IMAGE, 3), pooling="avg")
    outputs = tf.keras.layers.Dense(num_classes)(base.output)
    return tf.keras.Model(base.input, outputs)


def build_callbacks(args, scaled_lr):
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=hvd.rank() == 0),
        tf.keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", factor=0.2, patience=3, verbose=hvd.rank() == 0),
    ]
    if hvd.rank() == 0:
        os.makedirs(args.output, exist_ok=True)
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(
            os.path.join(args.output, "weights-{epoch:02d}.h5"), save_weights_only=True))
        callbacks.append(tf.keras.callbacks.CSVLogger(os.path.join(args.output, "history.csv")))
    return callbacks


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="/data/xray/train-*.tfrecord")
    parser.add_argument("--valid", default="/data/xray/valid-*.tfrecord")
    parser.add_argument("--num-train", type=int, default=86_400)
    parser.add_argument("--num-classes", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--warmup-epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01, help="for one process")
    parser.add_argument("--output", default="/shared/xray")
    return parser.parse_args()


def main():
    args = parse_args()
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    train_ds = make_dataset(args.train, args.batch_size, training=True)
    valid_ds = make_dataset(args.valid, args.batch_size, training=False)
    steps_per_epoch = args.num_train // (args.batch_size * hvd.size())

    scaled_lr = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(learning_rate=scaled_lr, momentum=0.9))
    model = build_model(args.num_classes)
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        experimental_run_tf_function=False,
    )
    model.fit(
        train_ds,
        steps_per_epoch=steps_per_epoch,
        epochs=args.epochs,
        validation_data=valid_ds,
        callbacks=build_callbacks(args, scaled_lr),
        verbose=2 if hvd.rank() == 0 else 0,
    )


if __name__ == "__main__":
    main()
