"""The validating webhook: a wrong ServiceGraph is refused by `kubectl apply` with the words of
`hams validate`.

Every replica answers, leading or not. The certificate lies in a Secret that they share; the replica that sees
it missing or near its end makes another one. The controller is safe without all this: what it cannot run it
says in the status.
"""

import asyncio
import base64
import datetime
import logging
import ssl
import tempfile
from pathlib import Path

import msgspec
from aiohttp import web

from hams_graph import InvalidGraph, load_object
from hams_operator.controller import limits
from hams_operator.controller.certificates import Pair, fresh_pair, holds
from hams_operator.controller.kube import SECRETS, WEBHOOKS, Kube, KubeError
from hams_operator.controller.options import ControllerOptions
from hams_operator.controller.worker_thread import Busy, WorkerThread
from hams_operator.plan.change import differing, lost_states
from hams_operator.plan.names import ALLOW_STATE_LOSS, Json, Settings
from hams_operator.plan.permitted import read_permitted
from hams_operator.plan.status import UNSETTLED

webhook_check_s = 30.0
"""Between two looks at the webhook's certificate, and at whether the API server trusts it: somebody may have
made its configuration anew."""

webhook_body_bytes_max = 4 << 20
"""A question to the webhook: the object as it was and as it shall be."""


log = logging.getLogger("hams.controller")


def _answer(body: bytes, settings: Settings) -> Json:
    """Raises ValueError for what is no AdmissionReview."""
    question = _object(msgspec.json.decode(body), "the question")
    request = _object(question.get("request"), "request")
    for name in ("object", "oldObject"):
        item = _object(request.get(name), f"request.{name}")
        metadata = _object(item.get("metadata"), f"request.{name}.metadata")
        _object(metadata.get("annotations"), f"request.{name}.metadata.annotations")
        status = _object(item.get("status"), f"request.{name}.status")
        conditions = status.get("conditions") or []
        if not isinstance(conditions, list):
            raise ValueError(f"request.{name}.status.conditions is no list")
        if not all(isinstance(condition, dict) for condition in conditions):
            raise ValueError(f"request.{name}.status.conditions holds what is no object")
    return review(question, settings)


def _object(value: object, where: str) -> Json:
    """A JSON object; what is missing or null counts as an empty one. Raises ValueError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    return value


def review(question: Json, settings: Settings) -> Json:
    """The answer to an AdmissionReview: allowed, or every problem at once."""
    request = question.get("request") or {}
    problems = refusals(request, settings)
    answer: Json = {"uid": request.get("uid", ""), "allowed": not problems}
    if problems:
        answer["status"] = {"code": 422, "reason": "Invalid", "message": "\n".join(problems)}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


def refusals(request: Json, settings: Settings) -> list[str]:
    """What is wrong with the object, or with the change; nothing for an object that is going."""
    item, old = request.get("object") or {}, request.get("oldObject") or {}
    metadata = item.get("metadata") or {}
    if request.get("operation") not in ("CREATE", "UPDATE") or metadata.get("deletionTimestamp"):
        return []
    if old and old.get("spec") == item.get("spec"):
        return []  # an object that was let in before is not held up for its labels
    try:
        asked = read_permitted(item, "", settings)
    except InvalidGraph as error:
        return [str(problem) for problem in error.problems]
    if not old or (metadata.get("annotations") or {}).get(ALLOW_STATE_LOSS) == "true":
        return []
    if any(item.get("reason") in UNSETTLED for item in (old.get("status") or {}).get("conditions") or []):
        # another graph may run than the old object asks for: the controller compares with that one, and this
        # may be the way back
        return []
    try:
        before = load_object({name: value for name, value in old.items() if name != "status"})
    except InvalidGraph:
        return []
    lost = lost_states(before.data, asked.data)
    return [
        f"spec: {what}; this would lose the state of {', '.join(lost)}: annotate the graph with "
        f'{ALLOW_STATE_LOSS}: "true" if it may'
        for what in differing(before.data, asked.data)
        if lost
    ]


class Webhook:
    """The HTTPS server, and its certificate. `listens`: whether the API server can be answered."""

    def __init__(self, kube: Kube, options: ControllerOptions) -> None:
        self._kube = kube
        self._options = options
        service, namespace = options.webhook_service, options.namespace
        self._names = (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", service)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: Pair | None = None
        self._runner: web.AppRunner | None = None
        self._worker = WorkerThread("webhook")
        self.listens = False

    async def run(self) -> None:
        """Serve until cancelled; the certificate is looked at again and again."""
        pause_s = limits.kube_pause_s
        try:
            while True:
                try:
                    await self._refresh()
                    await self._listen()
                    pause_s = webhook_check_s
                except KubeError as error:
                    log.warning("the webhook's certificate: %s", error)
                    pause_s = min(2 * pause_s, limits.kube_pause_max_s)
                await asyncio.sleep(pause_s)
        finally:
            self.listens = False
            self._worker.close()
            if self._runner is not None:
                await self._runner.cleanup()

    async def _listen(self) -> None:
        if self._runner is not None:
            return
        app = web.Application(client_max_size=webhook_body_bytes_max)
        app.router.add_post("/validate", self._validate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, None, self._options.webhook_port, ssl_context=self._context).start()
        self.listens = True
        log.info("the webhook listens on port %d", self._options.webhook_port)

    async def _validate(self, request: web.Request) -> web.Response:
        """Any process that reaches the port may ask, the API server or not: the answer is made by
        the worker thread, and the number of calls that wait for it is bounded."""
        body = await request.read()
        try:
            return web.json_response(await self._worker.run(_answer, body, self._options.settings))
        except (ValueError, RecursionError) as error:
            return web.Response(status=400, text=f"expected an AdmissionReview: {error}\n")
        except Busy as error:
            return web.Response(status=503, text=f"too many questions at a time: {error}\n")

    async def _refresh(self) -> None:
        """Have a certificate, load it, and have the API server trust it."""
        pair = await self._pair()
        if pair != self._loaded:
            _load(self._context, pair)
            self._loaded = pair
        if self._options.webhook_configuration:
            await self._trust(pair)

    async def _pair(self) -> Pair:
        namespace, name = self._options.namespace, self._options.webhook_secret
        now = datetime.datetime.now(datetime.UTC)
        conflicts = 0
        while True:
            secret = await self._kube.get(SECRETS, namespace, name)
            pair = _read(secret)
            if pair is not None and holds(pair, self._names, now):
                return pair
            made = fresh_pair(self._names, now)
            data = {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key}
            item: Json = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": secret["metadata"] if secret is not None else {"name": name},
                "data": {field: base64.b64encode(value).decode() for field, value in data.items()},
            }
            try:
                if secret is None:
                    await self._kube.create(SECRETS, namespace, item)
                else:
                    await self._kube.replace(SECRETS, namespace, name, item)
            except KubeError as error:
                conflicts += 1
                # a conflict: the other replica was faster, and its certificate will do
                if error.status != 409 or conflicts == limits.secret_tries:
                    raise

    async def _trust(self, pair: Pair) -> None:
        name = self._options.webhook_configuration
        webhook = await self._kube.get(WEBHOOKS, "", name)
        if webhook is None:
            log.warning("there is no ValidatingWebhookConfiguration %s: nobody asks the webhook", name)
            return
        hooks = webhook.get("webhooks") or []
        changed = False
        for hook in hooks:
            there = base64.b64decode((hook.get("clientConfig") or {}).get("caBundle") or "")
            if pair.authority not in there:
                newest = _authorities(there)[-1:]
                hook["clientConfig"]["caBundle"] = base64.b64encode(
                    b"".join([*newest, pair.authority])
                ).decode()
                changed = True
        if changed:
            await self._kube.merge(
                WEBHOOKS,
                "",
                name,
                {"metadata": {"resourceVersion": webhook["metadata"]["resourceVersion"]}, "webhooks": hooks},
            )


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Handshakes from now on are made with this pair. The ssl module reads files only."""
    with tempfile.TemporaryDirectory() as folder:  # its mode is 700
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)


def _authorities(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [
        part + end for part in bundle.split(end) if part.strip().startswith(b"-----BEGIN CERTIFICATE-----")
    ]


def _read(secret: Json | None) -> Pair | None:
    data = (secret or {}).get("data") or {}
    try:
        return Pair(*(base64.b64decode(data[name]) for name in ("ca.crt", "tls.crt", "tls.key")))
    except (KeyError, ValueError):
        return None
