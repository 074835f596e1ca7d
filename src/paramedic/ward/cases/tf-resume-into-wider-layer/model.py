import tensorflow as tf


def build_model(units):
    return tf.keras.Sequential([tf.keras.layers.Dense(units, input_shape=(6,)), tf.keras.layers.Dense(1)])
