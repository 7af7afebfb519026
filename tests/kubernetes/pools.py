"""The custom resources of pools and routes, in the place of those of the Gateway API and its Inference Extension."""

from __future__ import annotations

from control_plane import COLLECTIONS

TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 1, "maximum": 65535}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PORT = {"type": "object", "required": ["number"], "properties": {"number": NUMBER}}
PICKER = {
    "type": "object", "required": ["name", "port"],
    "properties": {"group": TEXT, "kind": TEXT, "name": TEXT, "port": PORT, "failureMode": {"type": "string", "enum": ["FailOpen", "FailClose"]}},
}
POOL = {
    "type": "object", "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"], "properties": {"matchLabels": {"type": "object", "additionalProperties": TEXT}}},
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": PORT},
        "endpointPickerRef": PICKER,
    },
}
# Group, kind and schema of the spec. What the schema does not know is dropped.
KINDS = [("inference.networking.k8s.io", "InferencePool", POOL), ("gateway.networking.k8s.io", "HTTPRoute", OPEN)]


def name(group: str, kind: str) -> str:
    return f"{kind.lower()}s.{group}"


def definition(group: str, kind: str, spec: dict) -> dict:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": OPEN}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name(group, kind),
                     "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/2997"}},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": f"{kind.lower()}s"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}]},
    }


def install_pools(plane) -> None:
    plane.create(COLLECTIONS["crd"], *(definition(*kind) for kind in KINDS))
    plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name(group, kind)}" for group, kind, _ in KINDS))


def remove_pools(plane) -> None:
    plane.kubectl("delete", "--ignore-not-found", "crd", *(name(group, kind) for group, kind, _ in KINDS))
