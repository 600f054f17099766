"""edgepack's library for Python on a board: a bundle's model, run in this process.

    import edgepack_runtime

    with edgepack_runtime.Model("/opt/flowers") as model, model.session() as session:
        session.set_image("tulip.jpg")
        session.run()
        print(session.results())

Nothing else is needed, numpy included; where it is there, `numpy.asarray(session.output(0))` is
the output itself, without a copy. Sessions of one model share its weights, and each may have a
thread of its own: a run lets others have the interpreter.
"""

from edgepack_runtime._library import EdgepackError, version
from edgepack_runtime._model import Model, Session, Tensor, TensorInfo

__all__ = ["EdgepackError", "Model", "Session", "Tensor", "TensorInfo", "version"]
