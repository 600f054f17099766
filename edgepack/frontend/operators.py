"""Which ONNX operators compile to right results, and how: `OPERATORS`.

The list is TVM's own converter table, read at run time, less the forms that it
is known to convert to something else than ONNX defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import onnx
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from edgepack.frontend import (
    arithmetic,
    classic,
    control,
    conversions,
    forms,
    linear_models,
    narrow_floats,
    nonfinite,
    quantized_operators,
    recurrent,
    reductions,
    scattering,
    selection,
    signals,
    trees,
    windows,
)
from edgepack.frontend.errors import Reason, Unsupported, UnsupportedOperatorError
from edgepack.frontend.forms import Context, attribute
from edgepack.frontend.owners import name_of, owner_of
from edgepack.frontend.selection import DOMAIN
from edgepack.model import operator_name
from edgepack.model.structure import subgraphs

# Whether a node has a certain form.
Form: TypeAlias = Callable[[onnx.NodeProto, Context], bool]

_MICROSOFT = "com.microsoft"
_CLASSIC = "ai.onnx.ml"


def _always(_node: onnx.NodeProto, _context: Context) -> bool:
    return True


@dataclass(frozen=True)
class Refusal(Reason):
    """Nodes of an operator that are not compiled: those of a form, or all."""

    form: Form = _always


@dataclass(frozen=True, kw_only=True)
class Operator:
    """How an operator is compiled where it is not simply TVM's conversion.

    `refused` are the forms that are not compiled. `convert` comes before TVM's conversion, which
    takes what it returns None for. A node for which `define` holds is replaced by ONNX's definition
    of it. `domain` is where TVM's operator of that name comes from.
    """

    refused: tuple[Refusal, ...] = ()
    convert: Callable[[conversions.Node], relax.Expr | None] | None = None
    define: Callable[[onnx.NodeProto], bool] = lambda _: False
    domain: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether it is in every form."""
        return any(refusal.form is _always for refusal in self.refused)


def _never(why: str, instead: str, domain: str = "") -> Operator:
    return Operator(refused=(Refusal(why, instead),), domain=domain)


def _has(name: str, value: object) -> Form:
    """Nodes whose attribute has this value."""
    return lambda node, _: bool(attribute(node, name) == value)


_UNKNOWN = Refusal(
    "not known to the compiler", "write it with other operators of ONNX before the export"
)
_NO_OPERATOR = Refusal("ONNX has no operator of this name", "check the exporter and its version")
_OF_OTHERS = Refusal(
    "not known to the compiler",
    "replace it by standard operators, or add its definition to the model as a function",
)
_OTHER_OPSET = Refusal(
    "the model defines it in another opset than its own, and onnx's converter has no way between",
    "export the model and its functions with one opset",
)
_SIZE_DEPENDS_ON_DATA = _never(
    "its output's shape depends on the data",
    "end the model before it, and do its work in the application",
)
# What has a size of its own is written anew by `fix_sizes`, with a count.
_BOUNDED = Operator(convert=lambda _: None)
_OPTIONAL = _never(
    "optional values have no place in a fixed plan",
    "export the model with its optional inputs given or left out for good",
)
# What `control` leaves becomes a block of the plan.
_BLOCK = Operator(
    convert=lambda _: None,
    refused=(
        Refusal(
            "its body is missing, or has other inputs and outputs than it needs",
            "check the exporter and its version",
            lambda node, _: not control.is_whole(node),
        ),
    ),
)
_WORDS = (
    "it works on words, and a kernel on numbers",
    "do its work in the application, before the model",
)
_OF_WORDS = _never(*_WORDS)
_OF_MAPS = _never(
    "it works on maps, and a kernel on tensors",
    "export the model without (in skl2onnx with options={'zipmap': False})",
    _CLASSIC,
)


_LARGER_WINDOW = (
    Refusal(
        "its window is larger than its image",
        "give the inputs larger shapes (--shape), or check the model's kernel_shape and pads",
        forms.window_is_larger,
    ),
)

_RANDOM = _never("it is random", "make the random tensor an input of the model")
_TRAINING = (
    "it is in its training form",
    "export the model for inference (in PyTorch after model.eval())",
)

# By ONNX's name without domain. What is not here is converted by TVM, if it can.
OPERATORS: Mapping[str, Operator] = {
    "AllClassNMS": _SIZE_DEPENDS_ON_DATA,
    "ArgMax": Operator(convert=reductions.extreme_place),
    "ArgMin": Operator(convert=reductions.extreme_place),
    "ArrayFeatureExtractor": Operator(domain=_CLASSIC, convert=classic.array_feature_extractor),
    # TVM's conversion is of onnxruntime's operator. ONNX's of opset 23 is another one.
    "Attention": Operator(domain=_MICROSOFT),
    "AveragePool": Operator(convert=windows.pool, refused=_LARGER_WINDOW),
    "BatchNormalization": Operator(convert=conversions.batch_normalization),
    "BiasGelu": Operator(domain=_MICROSOFT),
    "Binarizer": Operator(domain=_CLASSIC, convert=classic.binarizer),
    "BitCast": Operator(convert=conversions.bit_cast),
    "BitShift": Operator(convert=conversions.bit_shift),
    # What `fix_sizes` puts in the place of NonMaxSuppression, NonZero and Unique, and before TopK.
    "BoundedNonMaxSuppression": Operator(domain=DOMAIN, convert=selection.non_max_suppression),
    "BoundedNonZero": Operator(domain=DOMAIN, convert=selection.nonzero),
    "BoundedPlaces": Operator(domain=DOMAIN, convert=selection.places),
    "BoundedSize": Operator(domain=DOMAIN, convert=selection.size),
    "BoundedUnique": Operator(domain=DOMAIN, convert=selection.unique),
    "Cast": Operator(convert=narrow_floats.cast),
    "CastLike": Operator(convert=conversions.cast_like),
    "CastMap": _OF_MAPS,
    "CategoryMapper": _never(*_WORDS, _CLASSIC),
    # ONNX's definition makes a row of one of a scalar.
    "Celu": Operator(convert=arithmetic.celu),
    # What `blocks` puts in the place of If.
    "Choose": Operator(domain=DOMAIN, convert=lambda _: None),
    "Clip": Operator(convert=nonfinite.clip),
    "Col2Im": Operator(convert=windows.col2im),
    "Compress": _BOUNDED,
    "Conv": Operator(refused=_LARGER_WINDOW),
    "ConvInteger": Operator(convert=quantized_operators.conv_integer, refused=_LARGER_WINDOW),
    "ConvTranspose": Operator(convert=conversions.conv_transpose),
    "CumProd": Operator(convert=conversions.cum_prod),
    "CumSum": Operator(convert=conversions.cum_sum),
    "DFT": Operator(convert=signals.dft),
    "DeformConv": Operator(convert=windows.deform_conv),
    "DequantizeLinear": Operator(convert=conversions.dequantize_linear),
    "Det": Operator(convert=arithmetic.det),
    "DictVectorizer": _OF_MAPS,
    "Div": Operator(convert=arithmetic.divide),
    "Dropout": Operator(
        convert=conversions.dropout,
        refused=(Refusal(*_TRAINING, forms.dropout_trains),),
    ),
    "DynamicQuantizeLSTM": Operator(domain=_MICROSOFT, convert=recurrent.dynamic_lstm),
    "DynamicQuantizeLinear": Operator(convert=quantized_operators.dynamic_quantize_linear),
    "Einsum": Operator(
        refused=(
            Refusal(
                "its equation does not fit its inputs",
                "check the equation: each input has a term, and each axis of the result is in one",
                forms.einsum_is_none,
            ),
        ),
    ),
    "Elu": Operator(convert=arithmetic.elu),
    "EmbedLayerNormalization": Operator(
        domain=_MICROSOFT, convert=arithmetic.embed_layer_normalization
    ),
    "Erf": Operator(convert=arithmetic.erf),
    "EyeLike": Operator(convert=arithmetic.eye_like),
    "FastGelu": Operator(domain=_MICROSOFT),
    "FeatureVectorizer": Operator(domain=_CLASSIC, convert=classic.feature_vectorizer),
    "GRU": Operator(convert=recurrent.gru),
    "Gather": Operator(convert=arithmetic.gather),
    "GatherElements": Operator(convert=arithmetic.gather_elements),
    "GatherND": Operator(convert=arithmetic.gather_nd),
    "Gemm": Operator(convert=arithmetic.gemm),
    "GridSample": Operator(convert=windows.grid_sample),
    # onnxruntime would put the definition in when it is too late to compute its shapes.
    "GroupNormalization": Operator(define=lambda _: True),
    "If": _BLOCK,
    "Imputer": Operator(domain=_CLASSIC, convert=classic.imputer),
    "IntegerOperator": Operator(domain=DOMAIN, convert=quantized_operators.integer_operator),
    "IsInf": Operator(convert=conversions.is_inf),
    "LRN": Operator(convert=windows.local_response_normalization),
    "LSTM": Operator(convert=recurrent.lstm),
    "LabelEncoder": Operator(domain=_CLASSIC, convert=classic.label_encoder),
    "LayerNormalization": Operator(convert=arithmetic.layer_normalization),
    "LinearClassifier": Operator(domain=_CLASSIC, convert=linear_models.linear_classifier),
    "LinearRegressor": Operator(domain=_CLASSIC, convert=linear_models.linear_regressor),
    "Loop": _BLOCK,
    "LpNormalization": Operator(convert=conversions.lp_normalization),
    "LpPool": Operator(convert=windows.lp_pool, refused=_LARGER_WINDOW),
    "MatMulInteger": Operator(convert=quantized_operators.mat_mul_integer),
    "MatMulInteger16": Operator(domain=_MICROSOFT),
    "Max": Operator(convert=arithmetic.extreme_of(relax.op.maximum)),
    "MaxPool": Operator(convert=windows.max_pool, refused=_LARGER_WINDOW),
    "MaxRoiPool": Operator(convert=windows.max_roi_pool),
    "MaxUnpool": Operator(convert=windows.max_unpool),
    "MeanVarianceNormalization": Operator(convert=arithmetic.mean_variance_normalization),
    "Min": Operator(convert=arithmetic.extreme_of(relax.op.minimum)),
    "Mod": Operator(convert=arithmetic.modulo),
    "Multinomial": _RANDOM,
    "NonMaxSuppression": _BOUNDED,
    "NonZero": _BOUNDED,
    "Normalizer": Operator(domain=_CLASSIC, convert=classic.normalizer),
    "OneHot": Operator(convert=arithmetic.one_hot),
    "OneHotEncoder": Operator(domain=_CLASSIC, convert=classic.one_hot_encoder),
    "Optional": _OPTIONAL,
    "OptionalGetElement": Operator(convert=lambda node: node.inputs[0]),
    "OptionalHasElement": _OPTIONAL,
    "PRelu": Operator(convert=arithmetic.prelu),
    "Pad": Operator(convert=conversions.pad),
    "Pow": Operator(convert=arithmetic.power),
    # What `microsoft` leaves of them.
    "QAttention": _never(
        "it keeps keys of inferences before, or has a mask of a rare form",
        "export the model without past and present, and with a mask of [batch, length]",
        _MICROSOFT,
    ),
    "QGemm": Operator(domain=_MICROSOFT, convert=quantized_operators.q_gemm),
    "QLinearAdd": Operator(
        domain=_MICROSOFT, convert=quantized_operators.q_linear_of_two(relax.op.add)
    ),
    "QLinearAveragePool": Operator(
        domain=_MICROSOFT,
        convert=quantized_operators.q_linear_of_one(quantized_operators.average_pool),
    ),
    "QLinearConcat": Operator(domain=_MICROSOFT, convert=quantized_operators.q_linear_concat),
    "QLinearConv": Operator(convert=quantized_operators.q_linear_conv, refused=_LARGER_WINDOW),
    "QLinearGlobalAveragePool": Operator(
        domain=_MICROSOFT,
        convert=quantized_operators.q_linear_of_one(quantized_operators.global_average),
    ),
    "QLinearLeakyRelu": Operator(
        domain=_MICROSOFT,
        convert=quantized_operators.q_linear_of_one(quantized_operators.leaky_relu),
    ),
    "QLinearMatMul": Operator(convert=quantized_operators.q_linear_mat_mul),
    "QLinearMul": Operator(
        domain=_MICROSOFT, convert=quantized_operators.q_linear_of_two(relax.op.multiply)
    ),
    "QLinearSigmoid": Operator(
        domain=_MICROSOFT,
        convert=quantized_operators.q_linear_of_one(quantized_operators.sigmoid),
    ),
    "QLinearSoftmax": Operator(
        domain=_MICROSOFT,
        convert=quantized_operators.q_linear_of_one(quantized_operators.softmax),
    ),
    "QLinearWhere": Operator(domain=_MICROSOFT, convert=quantized_operators.q_linear_where),
    "QuantizeLinear": Operator(convert=conversions.quantize_linear),
    "RMSNormalization": Operator(convert=arithmetic.rms_normalization),
    "RNN": Operator(convert=recurrent.rnn),
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    **{
        f"Reduce{kind}": Operator(convert=reductions.reduction(kind))
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")
    },
    "ReduceSumSquare": Operator(convert=reductions.reduction("SumSquare")),
    "RegexFullMatch": _OF_WORDS,
    # What `blocks` puts in the place of Loop and Scan.
    "Repeat": Operator(domain=DOMAIN, convert=lambda _: None),
    "Resize": Operator(convert=conversions.resize),
    "ReverseSequence": Operator(convert=conversions.reverse_sequence),
    # With a number of samples that depends on the boxes TVM samples others than onnxruntime where
    # they reach over the border.
    "RoiAlign": Operator(
        convert=windows.roi_align,
        refused=(
            Refusal(
                "it has half_pixel coordinates and no sampling_ratio",
                "export it with a sampling_ratio, or with output_half_pixel "
                "(in torchvision: aligned=False)",
                forms.roi_align_is_half_pixel,
            ),
            Refusal(
                "it has mode max and no sampling_ratio",
                "use mode avg, or a sampling_ratio",
                lambda node, _: (
                    attribute(node, "mode") == b"max" and not attribute(node, "sampling_ratio", 0)
                ),
            ),
        ),
    ),
    "STFT": Operator(convert=signals.stft),
    "SVMClassifier": Operator(domain=_CLASSIC, convert=linear_models.svm_classifier),
    "SVMRegressor": Operator(domain=_CLASSIC, convert=linear_models.svm_regressor),
    "Scaler": Operator(domain=_CLASSIC, convert=classic.scaler),
    "Scan": _BLOCK,
    "Scatter": Operator(convert=scattering.scatter_elements),
    "ScatterElements": Operator(convert=scattering.scatter_elements),
    "ScatterND": Operator(convert=scattering.scatter_nd),
    "ScatterParts": Operator(domain=DOMAIN, convert=scattering.scatter_parts),
    "Selu": Operator(convert=arithmetic.selu),
    "SequenceInsert": Operator(convert=conversions.sequence_insert),
    "ShiftedWindow": Operator(domain=DOMAIN, convert=scattering.shifted_window),
    "Shrink": Operator(convert=arithmetic.shrink),
    "Sign": Operator(convert=nonfinite.sign),
    "SkipLayerNormalization": Operator(domain=_MICROSOFT),
    "Slice": Operator(convert=arithmetic.old_slice),
    "Softplus": Operator(convert=arithmetic.softplus),
    "SpaceToDepth": Operator(convert=windows.space_to_depth),
    "StringConcat": _OF_WORDS,
    "StringNormalizer": _OF_WORDS,
    "StringSplit": _OF_WORDS,
    "TensorScatter": Operator(convert=scattering.tensor_scatter),
    "TfIdfVectorizer": Operator(convert=classic.tfidf_vectorizer),
    "ThresholdedRelu": Operator(convert=nonfinite.thresholded_relu),
    "TopK": Operator(convert=conversions.top_k),
    "TreeEnsemble": Operator(domain=_CLASSIC, convert=trees.tree_ensemble),
    "TreeEnsembleClassifier": Operator(domain=_CLASSIC, convert=trees.tree_ensemble_classifier),
    "TreeEnsembleRegressor": Operator(domain=_CLASSIC, convert=trees.tree_ensemble_regressor),
    "Unique": _BOUNDED,
    "Unsqueeze": Operator(convert=conversions.unsqueeze),
    "Upsample": Operator(convert=conversions.upsample),
    "ZipMap": _OF_MAPS,
}


@cache
def supported_operators() -> frozenset[str]:
    """Names, as `edgepack.model.operator_name` forms them, of what is converted in some form."""
    own = {name for name, entry in OPERATORS.items() if entry.convert}
    names = {"Constant", *onnx_frontend._get_convert_map(), *own}
    entries = {name: OPERATORS.get(name, Operator()) for name in names}
    return frozenset(
        f"{entry.domain}::{name}" if entry.domain else name
        for name, entry in entries.items()
        if not entry.is_refused
    )


def check_operators(path: Path, proto: onnx.ModelProto) -> None:
    """Raise `UnsupportedOperatorError` if something in an expanded model does not compile."""
    nodes = find_unsupported(proto)
    if nodes:
        raise UnsupportedOperatorError(path, nodes)


def find_unsupported(proto: onnx.ModelProto) -> list[Unsupported]:
    """The nodes of an expanded model that do not compile, those of subgraphs included.

    Nodes whose inputs are all constant do not count: they are folded away.
    """
    return list(_unsupported(proto.graph, Context(proto), ""))


def _unsupported(graph: onnx.GraphProto, context: Context, inside: str) -> Iterator[Unsupported]:
    for node in graph.node:
        constant = not inside and context.is_constant(node)
        refusal = None if constant else _refusal(node, context) or _of_type(node, context)
        name = name_of(node)
        if refusal:
            yield Unsupported(
                operator=operator_name(node),
                node=name,
                attributes=", ".join(map(_attribute_text, node.attribute)),
                inside=inside or owner_of(node),
                why=refusal.why,
                instead=refusal.instead,
            )
        for body in subgraphs(node):
            yield from _unsupported(body, context, f"{node.op_type} '{name}'")


def _attribute_text(item: onnx.AttributeProto) -> str:
    """An attribute on a line: a graph or a long value only by its name."""
    if item.HasField("g") or item.graphs:
        return f"{item.name}=..."
    text = onnx.helper.printable_attribute(item).replace(" = ", "=")
    return text if len(text) <= _LONGEST_TEXT else f"{item.name}=..."


_LONGEST_TEXT = 60


def _of_type(node: onnx.NodeProto, context: Context) -> Refusal | None:
    """Why a node is not compiled whose operator is, but no kernel has the type of its result."""
    for name in node.output:
        kind = context.types.get(name, 0)
        if kind in _NO_TYPES:
            word = onnx.TensorProto.DataType.Name(kind).lower()
            return Refusal(f"its result is {word}, which no kernel has", _NO_TYPES[kind])
    return None


_IN_FLOATS = "export the model in float32 or float16, or quantised to 8-bit integers"
_NO_TYPES = {
    kind: _IN_FLOATS
    for name, kind in onnx.TensorProto.DataType.items()
    if name.startswith("FLOAT4")
} | dict.fromkeys(
    (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128),
    "compute with real and imaginary parts as numbers of their own",
)


def _refusal(node: onnx.NodeProto, context: Context) -> Refusal | None:
    if (node.domain, node.op_type) in context.functions:
        return _OTHER_OPSET
    entry = OPERATORS.get(node.op_type, Operator())
    if entry.is_refused:
        return entry.refused[0]
    if operator_name(node) not in supported_operators():
        if node.domain not in ("", "ai.onnx"):
            return _OF_OTHERS
        return _UNKNOWN if onnx.defs.has(node.op_type) else _NO_OPERATOR
    return next((refusal for refusal in entry.refused if refusal.form(node, context)), None)
