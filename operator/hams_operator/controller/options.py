"""What the controller is told by its environment (images/README.md lists it)."""

from collections.abc import Mapping
from dataclasses import dataclass

from hams_operator.plan.names import DEFAULT_ETCD, DEFAULT_IMAGE, POD_FIELDS, SERVICE_FIELDS, Settings
from hams_wire import logs
from hams_wire.process import LOG_LEVELS


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """`namespaces`: those looked at, none means all. The webhook is off without a Service.

    `etcd_secret`: the Secret with etcd's authorities, for endpoints that are https. `etcd_members_secret`:
    the one that members of etcd mount, if it is the chart's. `metrics_secret`: the one with the token that
    Prometheus bears.
    """

    settings: Settings
    pod: str
    namespace: str
    namespaces: tuple[str, ...] = ()
    webhook_service: str = ""
    webhook_configuration: str = ""
    webhook_secret: str = ""
    etcd_secret: str = "hams-etcd-ca"
    etcd_members_secret: str = ""
    metrics_secret: str = "hams-metrics"
    webhook_port: int = 9443
    health_port: int = 8080
    log_level: str = "info"


def options_from(environment: Mapping[str, str]) -> ControllerOptions:
    """Read them. Raises ValueError for a port that is none and for a level that is none."""
    log_level = (environment.get("HAMS_LOG_LEVEL") or "info").lower()
    if log_level not in LOG_LEVELS:
        raise ValueError(f"HAMS_LOG_LEVEL: expected one of {', '.join(LOG_LEVELS)}, got {log_level!r}")
    log_format = environment.get(logs.VARIABLE) or "text"
    if log_format not in logs.FORMATS:
        raise ValueError(f"{logs.VARIABLE}: expected one of {', '.join(logs.FORMATS)}, got {log_format!r}")
    return ControllerOptions(
        settings=Settings(
            etcd=environment.get("HAMS_ETCD") or DEFAULT_ETCD,
            image=environment.get("HAMS_SIDECAR_IMAGE") or DEFAULT_IMAGE,
            pull_policy=environment.get("HAMS_IMAGE_PULL_POLICY") or "IfNotPresent",
            history=environment.get("HAMS_HISTORY_HOST_PATH", ""),
            tls=environment.get("HAMS_TLS", "true") != "false",
            log_format=log_format,
            pod_fields=_list_of(environment, "HAMS_POD_FIELDS", POD_FIELDS),
            service_fields=_list_of(environment, "HAMS_SERVICE_FIELDS", SERVICE_FIELDS),
        ),
        pod=environment.get("POD_NAME") or "hams-controller",
        namespace=environment.get("POD_NAMESPACE") or "hams-system",
        namespaces=_list_of(environment, "HAMS_WATCH_NAMESPACES", ()),
        webhook_service=environment.get("HAMS_WEBHOOK_SERVICE", ""),
        webhook_configuration=environment.get("HAMS_WEBHOOK_CONFIGURATION", ""),
        webhook_secret=environment.get("HAMS_WEBHOOK_SECRET", ""),
        etcd_secret=environment.get("HAMS_ETCD_SECRET") or "hams-etcd-ca",
        etcd_members_secret=environment.get("HAMS_ETCD_MEMBERS_SECRET", ""),
        metrics_secret=environment.get("HAMS_METRICS_SECRET") or "hams-metrics",
        webhook_port=int(environment.get("HAMS_WEBHOOK_PORT") or 9443),
        health_port=int(environment.get("HAMS_HEALTH_PORT") or 8080),
        log_level=log_level,
    )


def _list_of(environment: Mapping[str, str], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Words separated by commas; `default` where the variable is not there, none where it is empty."""
    text = environment.get(name)
    return default if text is None else tuple(item.strip() for item in text.split(",") if item.strip())
