"""Every operator that is told at run time where to read or write, each with what it may be told.

`KINDS` says of each input of whole numbers, of all operators that compile, what it is; a test
compares it with ONNX's schemas, so that a new operator cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
_random = np.random.default_rng(39)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return _random.normal(size=shape).astype("float32")


def whole(values: object, dtype: str = "int64") -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


@dataclass(frozen=True, kw_only=True)
class Positions:
    """An operator with inputs that are right.

    Element `at` of input number `input` may be from `low` to `high`; it has the name `known`. Of
    floats (`low` is None) any number is an input.
    """

    operator: str
    inputs: Sequence[np.ndarray[Any, Any]]
    input: int
    low: int | None = None
    high: int = 0
    at: tuple[int, ...] = (0,)
    known: str = "indices"
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 17
    outputs: Sequence[int] = (FLOAT,)
    more: str = ""

    @property
    def name(self) -> str:
        return f"{self.operator}{self.more}"

    def model(self, prefix: str = "") -> onnx.ModelProto:
        """The operator alone; names of its tensors begin with `prefix`."""
        names = [f"{prefix}{i}" for i in range(len(self.inputs))]
        made = [f"{prefix}y{i}" for i in range(len(self.outputs))]
        given = [
            "" if not value.size else name for name, value in zip(names, self.inputs, strict=True)
        ]
        node = helper.make_node(
            self.operator, given, made, f"{prefix}node", domain=self.domain, **self.attributes
        )
        values = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in zip(names, self.inputs, strict=True)
            if value.size
        ]
        ends = [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in zip(made, self.outputs, strict=True)
        ]
        graph = helper.make_graph([node], "positions", values, ends)
        domains = [helper.make_opsetid("", self.opset)]
        if self.domain:
            domains.append(helper.make_opsetid(self.domain, 1))
        model = helper.make_model(graph, opset_imports=domains, ir_version=8)
        return onnx.shape_inference.infer_shapes(model) if not self.domain else model

    def given(self) -> list[np.ndarray[Any, Any]]:
        """Inputs that are there."""
        return [value for value in self.inputs if value.size]

    def wrong(self) -> list[Any]:
        """What its position must not be, or for floats may be: negative, one past, far."""
        dtype = self.inputs[self.input].dtype
        if self.low is None:
            return [np.nan, np.inf, -np.inf, -1.5, 2.0**31, -(2.0**31), 2.0**63, 3e38]
        if dtype.kind == "f":
            return [self.low - 1, self.high + 1, np.nan, np.inf, -np.inf, 2.0**31, -(2.0**63)]
        info = np.iinfo(dtype)
        far = [2**31, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63)]
        wanted = [self.low - 1, self.high + 1, *far]
        return [value for value in wanted if info.min <= value <= info.max]

    def with_position(self, value: Any) -> np.ndarray[Any, Any]:
        """Its input of positions with another one."""
        changed = self.inputs[self.input].copy()
        changed[self.at] = value
        return changed


_IMAGE = floats(2, 2, 8, 8)
_GRID = (0.9 * np.sin(np.arange(2 * 4 * 4 * 2))).reshape(2, 4, 4, 2).astype("float32")
_VOLUME_GRID = (0.9 * np.sin(np.arange(2 * 2 * 2 * 4 * 3))).reshape(2, 2, 2, 4, 3).astype("float32")
_BOX = np.array([[0, 0, 5, 5], [1, 1, 7, 6]], "float32")
_NOTHING = np.zeros(0, "float32")

CASES = [
    Positions(
        operator="Gather", inputs=[floats(4, 16), whole([1, 2])], input=1, low=-4, high=3, at=(1,)
    ),
    Positions(
        operator="Gather",
        more="-inner",
        inputs=[floats(4, 16), whole([[1], [2]], "int32")],
        input=1,
        low=-16,
        high=15,
        at=(1, 0),
        attributes={"axis": 1},
    ),
    Positions(
        operator="GatherElements",
        inputs=[floats(16, 4), whole([[1, 2, 0, 3]])],
        input=1,
        low=-16,
        high=15,
        at=(0, 2),
    ),
    Positions(
        operator="GatherND",
        inputs=[floats(4, 16), whole([[1, 2], [3, 4]])],
        input=1,
        low=-16,
        high=15,
        at=(1, 1),
    ),
    Positions(
        operator="GatherND",
        more="-batches",
        inputs=[floats(2, 4, 16), whole([[1], [3]])],
        input=1,
        low=-4,
        high=3,
        at=(1, 0),
        attributes={"batch_dims": 1},
    ),
    *(
        Positions(
            operator="ScatterND",
            more=f"-{reduction}",
            inputs=[floats(4, 16), whole([[1], [3]]), floats(2, 16)],
            input=1,
            low=-4,
            high=3,
            at=(1, 0),
            attributes={"reduction": reduction},
            opset=18,
        )
        for reduction in ("none", "add")
    ),
    *(
        Positions(
            operator="ScatterElements",
            more=f"-{reduction}",
            inputs=[floats(4, 16), whole([[1, 5]], "int32"), floats(1, 2)],
            input=1,
            low=-16,
            high=15,
            at=(0, 1),
            attributes={"reduction": reduction, "axis": 1},
            opset=18,
        )
        for reduction in ("none", "max")
    ),
    Positions(
        operator="Scatter",
        inputs=[floats(4, 16), whole([[1, 2]]), floats(1, 2)],
        input=1,
        low=-4,
        high=3,
        at=(0, 1),
        opset=10,
    ),
    Positions(
        operator="TensorScatter",
        inputs=[floats(2, 1, 8, 16), floats(2, 1, 2, 16), whole([0, 3])],
        input=2,
        low=0,
        high=6,
        at=(1,),
        known="write_indices",
        opset=24,
    ),
    Positions(
        operator="RotaryEmbedding",
        inputs=[floats(1, 2, 4, 8), floats(8, 4), floats(8, 4), whole([[0, 3, 1, 7]])],
        input=3,
        low=0,
        high=7,
        at=(0, 2),
        known="position_ids",
        opset=23,
    ),
    *(
        Positions(
            operator="Attention",
            more=more,
            inputs=[
                floats(*queries),
                floats(*keys),
                floats(*keys),
                _NOTHING,
                _NOTHING,
                _NOTHING,
                whole([3, 5]),
            ],
            input=6,
            low=0,
            high=5,
            at=(1,),
            known="nonpad_kv_seqlen",
            attributes=attributes,
            opset=24,
        )
        for more, queries, keys, attributes in (
            ("", (2, 2, 3, 8), (2, 2, 5, 8), {}),
            ("-causal", (2, 2, 3, 8), (2, 1, 5, 8), {"is_causal": 1}),
            ("-rows", (2, 3, 16), (2, 5, 16), {"q_num_heads": 2, "kv_num_heads": 2}),
        )
    ),
    Positions(
        operator="ReverseSequence",
        inputs=[floats(4, 16), whole([2, *[4] * 15])],
        input=1,
        low=0,
        high=4,
        known="sequence_lens",
        attributes={"batch_axis": 1, "time_axis": 0},
    ),
    *(
        Positions(
            operator=kind,
            inputs=[
                floats(3, 2, 16),
                floats(1, gates * 8, 16),
                floats(1, gates * 8, 8),
                _NOTHING,
                whole([3, 2], "int32"),
            ],
            input=4,
            low=0,
            high=3,
            at=(1,),
            known="sequence_lens",
            attributes={"hidden_size": 8, "direction": "reverse"},
        )
        for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    ),
    Positions(
        operator="TopK",
        inputs=[floats(4, 6), whole([6])],
        input=1,
        low=0,
        high=6,
        known="K",
        outputs=(FLOAT, INT64),
    ),
    Positions(
        operator="MaxUnpool",
        inputs=[floats(1, 1, 2, 2), whole([[[[0, 3], [9, 14]]]])],
        input=1,
        low=0,
        high=15,
        at=(0, 0, 1, 1),
        known="I",
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    *(
        Positions(
            operator="RoiAlign",
            more=f"-images-{samples}",
            inputs=[_IMAGE, _BOX, whole([0, 1])],
            input=2,
            low=0,
            high=1,
            at=(1,),
            known="batch_indices",
            attributes={
                "output_height": 2,
                "output_width": 2,
                "sampling_ratio": samples,
                "coordinate_transformation_mode": "output_half_pixel",
            },
        )
        for samples in (2, 0)
    ),
    Positions(
        operator="MaxRoiPool",
        more="-images",
        inputs=[_IMAGE, np.array([[0, 0, 0, 5, 5], [1, 1, 1, 7, 6]], "float32")],
        input=1,
        low=0,
        high=1,
        at=(1, 0),
        known="rois",
        attributes={"pooled_shape": [2, 2]},
    ),
    Positions(
        operator="ArrayFeatureExtractor",
        domain="ai.onnx.ml",
        inputs=[floats(4, 16), whole([1, 5])],
        input=1,
        low=0,
        high=15,
        at=(1,),
        known="Y",
    ),
    *(
        Positions(
            operator="EmbedLayerNormalization",
            more=f"-{known}",
            domain="com.microsoft",
            inputs=[
                whole([[1, 2, 3, 4]], "int32"),
                whole([[0, 1, 0, 1]], "int32"),
                floats(10, 16),
                floats(8, 16),
                floats(2, 16),
                floats(16),
                floats(16),
            ],
            input=index,
            low=0,
            high=high,
            at=(0, 2),
            known=known,
            outputs=(FLOAT, INT32),
        )
        for index, known, high in ((0, "input_ids", 9), (1, "segment_ids", 1))
    ),
    # ------------------------------------------------ floats
    *(
        Positions(
            operator="GridSample",
            more=f"-{mode}-{padding}-{align}",
            inputs=[_IMAGE, _GRID],
            input=1,
            at=(0, 1, 1, 0),
            attributes={"mode": mode, "padding_mode": padding, "align_corners": align},
            opset=20,
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    *(
        Positions(
            operator="GridSample",
            more=f"-volume-{mode}-{padding}",
            inputs=[floats(2, 1, 4, 4, 4), _VOLUME_GRID],
            input=1,
            at=(0, 1, 1, 0, 0),
            attributes={"mode": mode, "padding_mode": padding},
            opset=20,
        )
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ),
    *(
        Positions(
            operator="RoiAlign",
            more=f"-boxes-{mode}-{samples}-{corner}",
            inputs=[_IMAGE, _BOX, whole([0, 1])],
            input=1,
            at=(1, corner),
            attributes={
                "output_height": 2,
                "output_width": 2,
                "sampling_ratio": samples,
                "mode": mode,
                "coordinate_transformation_mode": "output_half_pixel",
            },
        )
        for mode, samples in (("avg", 2), ("max", 2), ("avg", 0))
        for corner in (0, 3)
    ),
    *(
        Positions(
            operator="MaxRoiPool",
            more=f"-boxes-{corner}",
            inputs=[_IMAGE, np.array([[0, 0, 0, 5, 5], [1, 1, 1, 7, 6]], "float32")],
            input=1,
            at=(1, corner),
            attributes={"pooled_shape": [2, 2]},
        )
        for corner in (1, 4)
    ),
    *(
        Positions(
            operator="DeformConv",
            more=more,
            inputs=[floats(2, channels, 8, 8), floats(2, channels, 2, 2), floats(2, 8, 7, 7)],
            input=2,
            at=(0, 3, 2, 2),
            opset=19,
        )
        # Of five channels a kernel has all of a pixel side by side.
        for more, channels in (("", 2), ("-turned", 5))
    ),
]

# What each input of whole numbers is, of operators that compile: a `position` (in CASES); a
# `number`, by which nothing is read or written; an `inner` position, of another operator by which
# ONNX defines this one; or what has to be a `constant`, unless it gives a result a size of its own,
# which has a bound then (`frontend.bounded`).
_POSITIONS = """
Gather indices; GatherElements indices; GatherND indices; Scatter indices; ScatterElements indices;
ScatterND indices; TensorScatter write_indices; ReverseSequence sequence_lens; LSTM sequence_lens;
GRU sequence_lens; RNN sequence_lens; MaxUnpool I; RoiAlign batch_indices; TopK K;
RotaryEmbedding position_ids; Attention nonpad_kv_seqlen; ai.onnx.ml::ArrayFeatureExtractor Y
"""
_INNER = "NegativeLogLikelihoodLoss target; SoftmaxCrossEntropyLoss labels"
_NUMBERS = """
BitShift X Y; BitwiseAnd A B; BitwiseNot X; BitwiseOr A B; BitwiseXor A B; Loop M;
ConvInteger x w x_zero_point w_zero_point; MatMulInteger A B a_zero_point b_zero_point;
NonMaxSuppression max_output_boxes_per_class;
QLinearConv x x_zero_point w w_zero_point y_zero_point B
"""
_CONSTANTS = """
AffineGrid size; BlackmanWindow size; CenterCropPad shape; Col2Im image_shape block_shape;
ConstantOfShape input; CumProd axis; CumSum axis; DFT dft_length axis; Expand shape; HammingWindow
size; HannWindow size; MaxUnpool output_shape; Pad pads axes; ReduceL1 axes; ReduceL2 axes;
ReduceLogSum axes; ReduceLogSumExp axes; ReduceMax axes; ReduceMean axes; ReduceMin axes; ReduceProd
axes; ReduceSum axes; ReduceSumSquare axes; Reshape shape; Resize sizes; STFT frame_step
frame_length; SequenceAt position; SequenceErase position; SequenceInsert position; Slice starts
ends axes steps; Split split; SplitToSequence split; Squeeze axes; Tile repeats; Trilu k; Unsqueeze
axes
"""
KINDS: dict[str, dict[str, str]] = {}
for _kind, _text in (
    ("position", _POSITIONS),
    ("number", _NUMBERS),
    ("inner", _INNER),
    ("constant", _CONSTANTS),
):
    for _entry in _text.replace("\n", " ").split(";"):
        _name, *_inputs = _entry.split()
        KINDS.setdefault(_name, {}).update(dict.fromkeys(_inputs, _kind))
