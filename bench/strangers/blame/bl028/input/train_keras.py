import tensorflow as tf, horovod.tensorflow.keras as hvd, argparse
hvd.init()
p = argparse.ArgumentParser(); p.add_argument("--base-lr", type=float, default=0.1); p.add_argument("--warmup", type=int, default=0)
a = p.parse_args()
opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(a.base_lr * hvd.size(), momentum=0.9))
model = tf.keras.applications.ResNet50(weights=None)
model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
cbs = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if a.warmup:
    cbs.append(hvd.callbacks.LearningRateWarmupCallback(initial_lr=a.base_lr * hvd.size(), warmup_epochs=a.warmup))
from data import train, val
model.fit(train(hvd.rank(), hvd.size()), epochs=90, callbacks=cbs, validation_data=val(), verbose=2 if hvd.rank() == 0 else 0)
