"""Writes tests/tflite_io/data/: an int8 TFLite network by TensorFlow's converter, and its outputs.

Run as ``python scripts/generators/make_tflite.py`` where TensorFlow is installed (tried: 2.21,
CPU); nothing else needs that. The outputs are those of TFLite's interpreter with its reference
kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "tflite_io" / "data"
layers = tf.keras.layers


def network() -> tf.keras.Model:
    """Convolutions (one depthwise), a sum, pools, a join, a sigmoid, a resize, a mean, a dense."""
    image = tf.keras.Input((8, 8, 1), batch_size=1)
    first = layers.Conv2D(8, 3, padding="same", activation=tf.nn.relu6)(image)
    x = layers.DepthwiseConv2D(3, padding="same", activation=tf.nn.relu6)(first)
    x = layers.ReLU()(layers.Add()([first, layers.Conv2D(8, 1)(x)]))
    x = layers.Concatenate()([layers.AveragePooling2D(2)(x), layers.MaxPooling2D(2)(x)])
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="sigmoid")(x)
    x = layers.Lambda(lambda t: tf.image.resize(t, (4, 4), method="nearest"))(x)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Softmax()(layers.Dense(10)(x)))


def converted(images: np.ndarray) -> bytes:
    def samples() -> Iterator[list[np.ndarray]]:
        for index in range(len(images)):
            yield [images[index : index + 1]]

    converter = tf.lite.TFLiteConverter.from_keras_model(network())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def main() -> None:
    tf.keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    model = converted(rng.normal(0, 4, (64, 8, 8, 1)).astype(np.float32))
    kernels = tf.lite.experimental.OpResolverType.BUILTIN_REF
    interpreter = tf.lite.Interpreter(model_content=model, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    (given,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    codes = rng.integers(-128, 128, (16, 1, 8, 8, 1)).astype(np.int8)
    outputs: list[np.ndarray] = []
    for code in codes:
        interpreter.set_tensor(given["index"], code)
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(result["index"]).copy())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "int8_network.tflite").write_bytes(model)
    np.savez_compressed(FOLDER / "int8_network.npz", x=codes, y=np.stack(outputs))
    print(len(model), "bytes;", len({tuple(o.ravel()) for o in outputs}), "different outputs")


if __name__ == "__main__":
    main()
