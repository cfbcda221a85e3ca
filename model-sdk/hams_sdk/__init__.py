"""What the author of a model imports: `Model`, `Outputs`, `Opaque`, `Keyed`, `constant`.

Model code sees batches of arrays and one boundary, `with update:`; never the protocol, etcd, Kubernetes or
the network.
"""

from hams_sdk.batch import Batch, Unit
from hams_sdk.keyed import Keyed, KeyedFull
from hams_sdk.model import Model, Opaque, Outputs, Update, constant

__all__ = [
    "Batch",
    "Keyed",
    "KeyedFull",
    "Model",
    "Opaque",
    "Outputs",
    "Unit",
    "Update",
    "__version__",
    "constant",
]
__version__ = "0.1.0"
