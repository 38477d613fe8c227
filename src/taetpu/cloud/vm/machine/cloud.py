"""What this machine says to Google: who it is (the metadata server), that it wants to be deleted, and which secrets
its jobs need (the REST APIs).

The paths are those of https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys, of
https://cloud.google.com/tpu/docs/reference/rest/v2, of https://cloud.google.com/compute/docs/reference/rest/v1 and of
https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

METADATA = "http://{0}/computeMetadata/v1/"
GROUP = "/instanceGroupManagers/"
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def metadata(path: str, timeout: float = 10.0, query: str = "") -> tuple[str, str]:
    """An entry of the metadata server and its version. Raises OSError where there is none."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(METADATA.format(host) + path + query, headers={"Metadata-Flavor": "Google"})
    with _open(request, timeout=timeout) as reply:
        return reply.read().decode().strip(), reply.headers.get("ETag", "")


def secret(project: str, name: str) -> str:
    """The newest version of a secret, read as the machine's service account. Raises OSError where it is not given."""
    path = f"/v1/projects/{project}/secrets/{name}/versions/latest:access"
    found = call("secretmanager", "GET", path)
    if found is None:
        raise OSError(f"there is no secret {name!r} in {project}")
    return base64.b64decode(found["payload"]["data"]).decode()


def call(api: str, method: str, path: str) -> dict[str, Any] | None:
    """What an API answers; None where there is no such thing. Raises OSError where it refuses, or does not answer."""
    token = json.loads(metadata("instance/service-accounts/default/token")[0])["access_token"]
    address = os.environ.get("TAETPU_FAKE_CLOUD", f"https://{api}.googleapis.com")
    request = urllib.request.Request(address + path, method=method)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with _open(request, timeout=60) as reply:
            return json.loads(reply.read() or b"{}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise OSError(f"{method} {path}: {error.code} {_words(error.read().decode(errors='replace'))}") from error


def _words(answer: str) -> str:
    """What a refusal says in a line."""
    with suppress(ValueError, LookupError, TypeError):
        answer = json.loads(answer)["error"]["message"]
    return " ".join(answer.split())[:300]


class Own:
    """The resource that this machine belongs to.

    Args:
        facts: `stack`, `project`, and `backend`, "gce" or "tpu-api".
    """

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts

    def delete(self) -> None:
        """Ask for its end. Raises OSError where that is refused."""
        any(self._call("DELETE", path) is not None for path in self._doomed())

    def there(self) -> bool:
        """Whether anything of it is there still. Raises OSError where that cannot be told."""
        return any(self._call("GET", path.partition("?")[0]) is not None for path in self._doomed())

    def _doomed(self) -> list[str]:
        """What has to be deleted; the first that is there takes the others with it.

        A node of a queued resource goes with the request, which otherwise stays and keeps its quota; an instance of a
        managed group goes with the group, which otherwise makes it again.
        """
        stack = self.facts["stack"]
        if self._is_tpu_api:
            return [f"{self._place()}/queuedResources/{stack}?force=true", f"{self._place()}/nodes/{stack}"]
        try:
            maker = metadata("instance/attributes/created-by")[0]
        except OSError:
            maker = ""
        group = [f"/compute/v1/{maker[maker.index('projects/') :]}"] if GROUP in maker else []
        return [*group, self._instance()]

    @property
    def _is_tpu_api(self) -> bool:
        return self.facts["backend"] == "tpu-api"

    def _place(self) -> str:
        zone = metadata("instance/zone")[0].rpartition("/")[2]
        if self._is_tpu_api:
            return f"/v2/projects/{self.facts['project']}/locations/{zone}"
        return f"/compute/v1/projects/{self.facts['project']}/zones/{zone}"

    def _instance(self) -> str:
        return f"{self._place()}/instances/{metadata('instance/name')[0]}"

    def _call(self, method: str, path: str) -> dict[str, Any] | None:
        return call("tpu" if self._is_tpu_api else "compute", method, path)
