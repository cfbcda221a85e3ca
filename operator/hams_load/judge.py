"""What a reply must look like, by what its graph declares."""

from collections.abc import Callable

from hams_load.inference import InferAnswer, InferTensor
from hams_protocol.graph import Graph

Judge = Callable[[tuple[InferTensor, ...], InferAnswer], str | None]
"""What is wrong with an answer; None: nothing."""


def shape_judge(graph: Graph) -> Judge:
    """Declared names, datatypes and shapes, and as many rows as were sent; with lanes, any number of rows."""
    specs = {}
    for reply in graph.data.outputs:
        outputs = [
            next(item for item in graph.operators[op].outputs if item.name == name)
            for op, name in reply.sources
        ]
        specs[reply.name] = (outputs[0].datatype, outputs[0].shape, reply.concat_lanes)

    def judge(request: tuple[InferTensor, ...], answer: InferAnswer) -> str | None:
        names = [item.name for item in answer.tensors]
        if len(set(names)) != len(names):
            return f"an output came twice: {', '.join(names)}"
        for item in answer.tensors:
            if item.name not in specs:
                return f"output {item.name} is not declared"
            datatype, shape, lanes = specs[item.name]
            rows_right = lanes or item.shape[:1] == request[0].shape[:1]
            fits = len(item.shape) == len(shape) + 1 and all(
                dim in (-1, got) for dim, got in zip(shape, item.shape[1:], strict=True)
            )
            if item.datatype != datatype or not fits or not rows_right:
                wanted = ["rows" if lanes else request[0].shape[0], *shape]
                return (
                    f"output {item.name}: expected {datatype} {wanted}, got {item.datatype} "
                    f"{list(item.shape)}"
                )
        return None

    return judge
