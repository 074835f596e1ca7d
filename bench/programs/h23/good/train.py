"""Text-CNN sentiment model: TensorFlow 2 custom loop with Horovod."""
import argparse

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


class TextCNN(tf.keras.Model):
    def __init__(self, vocab, width, num_classes):
        super().__init__()
        self.embed = tf.keras.layers.Embedding(vocab, width)
        self.convs = [tf.keras.layers.Conv1D(128, k, activation="relu") for k in (3, 4, 5)]
        self.pool = tf.keras.layers.GlobalMaxPooling1D()
        self.drop = tf.keras.layers.Dropout(0.4)
        self.out = tf.keras.layers.Dense(num_classes)

    def call(self, tokens, training=False):
        x = self.embed(tokens)
        x = tf.concat([self.pool(conv(x)) for conv in self.convs], axis=-1)
        return self.out(self.drop(x, training=training))


def load(path):
    with np.load(path) as data:
        return data["tokens"].astype(np.int32), data["labels"].astype(np.int64)


def make_train_dataset(path, batch_size, seed):
    tokens, labels = load(path)
    dataset = tf.data.Dataset.from_tensor_slices((tokens, labels))
    dataset = dataset.shard(hvd.size(), hvd.rank()).shuffle(50_000, seed=seed).repeat()
    return dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE), len(labels)


def make_valid_dataset(path, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices(load(path))
    return dataset.shard(hvd.size(), hvd.rank()).batch(batch_size)


loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(model, optimizer, tokens, labels):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(tokens, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def evaluate(model, dataset):
    correct = tf.constant(0.0)
    count = tf.constant(0.0)
    for tokens, labels in dataset:
        predicted = tf.argmax(model(tokens, training=False), axis=-1)
        correct += tf.reduce_sum(tf.cast(predicted == labels, tf.float32))
        count += tf.cast(tf.shape(labels)[0], tf.float32)
    totals = hvd.allreduce(tf.stack([correct, count]), name="valid_totals", op=hvd.Sum)
    return float(totals[0] / totals[1])


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="/data/reviews/train.npz")
    parser.add_argument("--valid", default="/data/reviews/valid.npz")
    parser.add_argument("--output", default="/shared/reviews")
    parser.add_argument("--vocab", type=int, default=30_000)
    parser.add_argument("--batch-size", type=int, default=128, help="per process")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-4)
    return parser.parse_args()


def main():
    args = parse_args()
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    train_ds, num_train = make_train_dataset(args.train, args.batch_size, seed=hvd.rank())
    valid_ds = make_valid_dataset(args.valid, args.batch_size)
    steps_per_epoch = num_train // (args.batch_size * hvd.size())

    model = TextCNN(args.vocab, 256, num_classes=5)
    optimizer = tf.keras.optimizers.Adam(args.lr)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, args.output, max_to_keep=3)

    for step, (tokens, labels) in enumerate(train_ds.take(steps_per_epoch * args.epochs)):
        loss = train_step(model, optimizer, tokens, labels)
        if step == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
        if (step + 1) % steps_per_epoch == 0:
            epoch = (step + 1) // steps_per_epoch
            accuracy = evaluate(model, valid_ds)
            if hvd.rank() == 0:
                print(f"epoch {epoch}: last loss {float(loss):.4f} accuracy {accuracy:.4f}",
                      flush=True)
                manager.save(checkpoint_number=epoch)


if __name__ == "__main__":
    main()
