"""The manifest for Kubernetes: the fields of KubeRay's resource, and a configuration that is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from olivine.ray.config import Config

yaml = pytest.importorskip("yaml", reason="the manifest is YAML")
FILE = Path(__file__).parents[2] / "docs" / "ray-service.yaml"


def strict(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others, as the API server checks custom resources."""
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


TEXT, COUNT, SWITCH = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
# Of the many fields of a pod, those in use.
CONTAINER = strict(
    ["name", "image"],
    name=TEXT,
    image=TEXT,
    env={"type": "array", "items": strict(["name"], name=TEXT, value=TEXT, valueFrom={"type": "object"})},
    resources=strict([], limits=TEXTS, requests=TEXTS),
    volumeMounts={
        "type": "array",
        "items": strict(["name", "mountPath"], name=TEXT, mountPath=TEXT, readOnly=SWITCH),
    },
)
VOLUME = strict(["name"], name=TEXT, persistentVolumeClaim=strict(["claimName"], claimName=TEXT))
POD = strict(
    ["spec"],
    spec=strict(
        ["containers"],
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        volumes={"type": "array", "items": VOLUME},
    ),
)
HEAD = strict(["rayStartParams", "template"], serviceType=TEXT, rayStartParams=TEXTS, template=POD)
WORKERS = strict(
    ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
SCHEMA = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=strict(["name"], name=TEXT, namespace=TEXT),
    spec=strict(
        ["serveConfigV2", "rayClusterConfig"],
        serveConfigV2=TEXT,
        rayClusterConfig=strict(
            ["headGroupSpec"],
            rayVersion=TEXT,
            enableInTreeAutoscaling=SWITCH,
            headGroupSpec=HEAD,
            workerGroupSpecs={"type": "array", "items": WORKERS},
        ),
    ),
)


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_the_manifest_has_the_fields_of_the_resource(manifest: Any) -> None:
    jsonschema.validate(manifest, SCHEMA)


def test_a_field_that_is_not_the_resources_is_found(manifest: Any) -> None:
    manifest["spec"]["rayClusterConfig"]["headGroupSpecs"] = {}
    with pytest.raises(jsonschema.ValidationError, match="headGroupSpecs"):
        jsonschema.validate(manifest, SCHEMA)


def test_every_replica_finds_room_on_the_workers(manifest: Any) -> None:
    serving = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    config = Config.of(serving["applications"][0]["args"])
    (group,) = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert config.replicas == (group["minReplicas"], group["maxReplicas"])
    assert config.load.threads == int(
        group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    )


def test_serve_takes_the_configuration(manifest: Any) -> None:
    schema = pytest.importorskip(
        "ray.serve.schema", reason="replicas need Ray: pip install 'olivine[cluster]'"
    )
    found = schema.ServeDeploySchema(**yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    assert found.applications[0].import_path == "olivine.ray:build_app"
