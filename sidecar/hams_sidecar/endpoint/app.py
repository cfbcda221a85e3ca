"""The HTTP application: FastAPI for everything but the hot path, which never comes here (`rest.py`).

Health, metadata and metrics are small and rare; they are ordinary FastAPI routes with typed replies. `/docs`
documents the infer route as well, with the graph's own tensors (`openapi.py`).
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hams_sidecar.endpoint.errors import RequestRefused
from hams_sidecar.endpoint.openapi import describe
from hams_sidecar.endpoint.request import MODEL_VERSION, check_model
from hams_sidecar.endpoint.serving import Serving
from hams_sidecar.endpoint.signature import DeclaredTensor

Responses = dict[int | str, dict[str, Any]]
"""FastAPI's documentation of other replies than the usual one."""

PLATFORM = "hams"
EXTENSIONS = ("binary_tensor_data",)


class ServerMetadata(BaseModel):
    """Metadata of the server (Open Inference Protocol)."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor; -1 in its shape is a variable dimension, the first is the rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """The graph, seen as a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Live(BaseModel):
    """Whether the process is in order."""

    live: bool


class Ready(BaseModel):
    """Whether the server takes requests."""

    ready: bool


class ModelReady(BaseModel):
    """Whether the graph takes requests."""

    name: str
    ready: bool


class Error(BaseModel):
    """What every error looks like."""

    error: str


NO_SUCH_MODEL: Responses = {404: {"model": Error, "description": "No such model or version."}}
UNREADY: Responses = {503: {"model": Error, "description": "Not ready."}}


class InferenceApp(FastAPI):
    """FastAPI, its documentation told of the infer route."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(
            title=f"HAMS: {serving.graph.name}",
            version=server_version(),
            docs_url=None,
            redoc_url=None,
            swagger_ui_oauth2_redirect_url=None,
            openapi_url="/openapi.json",
            redirect_slashes=False,  # a redirect would lead to whatever Host the client has named
            separate_input_output_schemas=False,
        )
        self._serving = serving
        self.mount("/swagger", StaticFiles(packages=[("fastapi_swagger", "resources")]))
        self.add_exception_handler(HTTPException, _http_error)
        self.add_exception_handler(RequestRefused, _refused)
        _add_health(self, serving)
        _add_model(self, serving)
        _add_pages(self, serving)

    def openapi(self) -> dict[str, object]:
        """The schema behind `/docs`, the infer route included."""
        if self.openapi_schema is None:
            self.openapi_schema = describe(super().openapi(), self._serving.graph, self._serving.signature)
        return self.openapi_schema


def server_version() -> str:
    """Version of the installed package, "0" from a bare source tree."""
    try:
        return version("hams")
    except PackageNotFoundError:
        return "0"


def _add_health(app: FastAPI, serving: Serving) -> None:
    """Routes about the server."""

    @app.get("/v2", tags=["server"], summary="Server metadata")
    async def server_metadata() -> ServerMetadata:
        return ServerMetadata(name="hams", version=server_version(), extensions=list(EXTENSIONS))

    @app.get(
        "/v2/health/live",
        tags=["health"],
        summary="Is the process in order?",
        responses={503: {"model": Error}},
    )
    async def live() -> Live:
        if not serving.port.live():
            raise HTTPException(503, "this frontend is broken and should be restarted")
        return Live(live=True)

    @app.get("/v2/health/ready", tags=["health"], summary="Does the server take requests?", responses=UNREADY)
    async def ready() -> Ready:
        _check_ready(serving)
        return Ready(ready=True)


def _add_model(app: FastAPI, serving: Serving) -> None:
    """Routes about the graph, seen as a model."""
    graph = serving.graph.name

    @app.get(
        "/v2/models/{model}/ready",
        tags=["model"],
        summary="Does the graph take requests?",
        responses={**NO_SUCH_MODEL, **UNREADY},
    )
    @app.get("/v2/models/{model}/versions/{model_version}/ready", tags=["model"], include_in_schema=False)
    async def model_ready(model: str, model_version: str = "") -> ModelReady:
        check_model(graph, model, model_version)
        _check_ready(serving)
        return ModelReady(name=graph, ready=True)

    @app.get("/v2/models/{model}", tags=["model"], summary="Tensors of the graph", responses=NO_SUCH_MODEL)
    @app.get("/v2/models/{model}/versions/{model_version}", tags=["model"], include_in_schema=False)
    async def model_metadata(model: str, model_version: str = "") -> ModelMetadata:
        check_model(graph, model, model_version)
        return ModelMetadata(
            name=graph,
            versions=[MODEL_VERSION],
            platform=PLATFORM,
            inputs=[_tensor(declared) for declared in serving.signature.inputs.values()],
            outputs=[_tensor(declared) for declared in serving.signature.outputs.values()],
        )

    @app.post("/v2/models/{model}/infer", include_in_schema=False)
    @app.post("/v2/models/{model}/versions/{model_version}/infer", include_in_schema=False)
    async def no_such_model(model: str, model_version: str = "") -> Response:
        """Infer requests for this graph never come here."""
        check_model(graph, model, model_version)
        raise HTTPException(404, "not found")


def _add_pages(app: FastAPI, serving: Serving) -> None:
    """The documentation and the metrics."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Swagger UI from our own port; the links are relative, so that it works behind any host name, scheme
        and path prefix."""
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url="swagger/swagger-ui-bundle.js",
            swagger_css_url="swagger/swagger-ui.css",
            swagger_favicon_url="swagger/favicon-32x32.png",
            swagger_ui_parameters={"tryItOutEnabled": True, "displayRequestDuration": True},
        )

    @app.get(
        "/metrics", tags=["server"], summary="Metrics in Prometheus' text format", response_class=Response
    )
    async def metrics(accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        body, content_type = serving.metrics.render(accept)
        return Response(body, headers={"content-type": content_type})


def _check_ready(serving: Serving) -> None:
    if not serving.ready():
        raise HTTPException(503, f"not ready: {serving.why_not_ready()}")


def _tensor(declared: DeclaredTensor) -> TensorMetadata:
    return TensorMetadata(name=declared.name, datatype=declared.datatype, shape=declared.shape)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": f"{error.detail}: {request.method} {request.url.path}"[:300]},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestRefused)
    return JSONResponse({"error": error.message}, status_code=error.status)
