import argparse
import os

import tensorflow as tf


def get_dataset(pattern, batch_size, image_size, training):
    files = tf.io.gfile.glob(pattern)
    ds = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)

    def decode(record):
        f = tf.io.parse_single_example(record, {
            "jpeg": tf.io.FixedLenFeature([], tf.string),
            "grade": tf.io.FixedLenFeature([], tf.int64)})
        image = tf.io.decode_jpeg(f["jpeg"], channels=3)
        image = tf.image.resize(image, (image_size, image_size))
        return image, f["grade"]

    if training:
        ds = ds.shuffle(8192)
    ds = ds.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.batch(batch_size, drop_remainder=training).prefetch(tf.data.AUTOTUNE)


def build_model(image_size, classes, dropout):
    base = tf.keras.applications.EfficientNetV2B0(
        include_top=False, weights=None, input_shape=(image_size, image_size, 3), pooling="avg")
    x = tf.keras.layers.Dropout(dropout)(base.output)
    outputs = tf.keras.layers.Dense(classes, activation="softmax")(x)
    return tf.keras.Model(base.input, outputs, name="retina_grader")


def parse_args():
    parser = argparse.ArgumentParser(description="Retina grading")
    parser.add_argument("--data", default="/data/retina")
    parser.add_argument("--workdir", default="./runs/retina")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--batch-per-replica", type=int, default=32)
    parser.add_argument("--base-lr", type=float, default=2.5e-4)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.3)
    return parser.parse_args()


def main():
    args = parse_args()
    os.makedirs(args.workdir, exist_ok=True)

    strategy = tf.distribute.MirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    batch = args.batch_per_replica * replicas
    print(f"training on {replicas} replicas, global batch {batch}")

    train = get_dataset(os.path.join(args.data, "train-*.tfrecord"), batch, args.image_size, True)
    val = get_dataset(os.path.join(args.data, "val-*.tfrecord"), batch, args.image_size, False)

    with strategy.scope():
        model = build_model(args.image_size, args.classes, args.dropout)
        model.compile(
            optimizer=tf.keras.optimizers.AdamW(learning_rate=args.base_lr * replicas,
                                                weight_decay=1e-4),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"])
    model.summary()

    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(os.path.join(args.workdir, "best.keras"),
                                           monitor="val_accuracy", save_best_only=True),
        tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=8, restore_best_weights=True),
        tf.keras.callbacks.TensorBoard(os.path.join(args.workdir, "tb")),
    ]
    history = model.fit(train, validation_data=val, epochs=args.epochs, callbacks=callbacks, verbose=2)
    print("best val accuracy", max(history.history["val_accuracy"]))


if __name__ == "__main__":
    main()
