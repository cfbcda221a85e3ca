"""A process of the data plane on a host of its own: `NAMESPACE MODULE ARGUMENT...`, forked by the warmed
process like any other."""

import importlib

from tests.faults.hosts import enter


def main(arguments: list[str]) -> int:
    namespace, module, *rest = arguments
    enter(namespace)
    result = importlib.import_module(module).main(rest)
    return result if isinstance(result, int) else 0
