"""Train a PaddlePaddle network on handwritten digits and export it: paddle_digits.py OUT.onnx."""

# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#   "paddlepaddle==3.3.1",
#   "paddle2onnx==2.1.0",
#   "packaging==26.3", # which paddle2onnx imports and does not name
#   "scikit-learn==1.9.1",
# ]
# ///

import sys

import paddle
from paddle import nn
from sklearn.datasets import load_digits

EXAMPLES = 1500  # of 1797; the rest tells how well it reads


def main(out: str) -> None:
    paddle.seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images = paddle.to_tensor(pixels.reshape(-1, 1, 8, 8).astype("float32"))
    labels = paddle.to_tensor(digits.astype("int64"))
    model = Network()
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    for _epoch in range(15):
        for at in range(0, EXAMPLES, 50):
            loss = nn.functional.cross_entropy(model(images[at : at + 50]), labels[at : at + 50])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    model.eval()
    right = (model(images[EXAMPLES:]).argmax(1) == labels[EXAMPLES:]).astype("float32")
    print(f"{float(right.mean()):.1%} of {len(digits) - EXAMPLES} digits are read")
    shape = paddle.static.InputSpec([1, 1, 8, 8], "float32", "image")
    paddle.onnx.export(model, out.removesuffix(".onnx"), [shape], opset_version=17)


class Network(nn.Layer):
    """Convolutions with a shortcut and hard swish, as in Paddle's mobile networks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2D(1, 16, 3, padding=1, bias_attr=False), nn.BatchNorm2D(16), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2D(16, 16, 3, padding=1, groups=16), nn.BatchNorm2D(16), nn.Hardswish()
        )
        self.head = nn.Sequential(
            nn.Conv2D(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2D(1)
        )
        self.last = nn.Linear(32, 10)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        x = self.stem(image / 16)
        x = self.head(x + self.depthwise(x))
        return self.last(paddle.flatten(x, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
