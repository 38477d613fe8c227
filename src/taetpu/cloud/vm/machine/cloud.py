"""What this machine says to Google: who it is (the metadata server), and that it wants to be deleted (the REST APIs).

The paths are those of https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys, of
https://cloud.google.com/tpu/docs/reference/rest/v2 and of https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

METADATA = "http://{0}/computeMetadata/v1/"
GROUP = "/instanceGroupManagers/"
EXPIRES = "taetpu-expires"
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def metadata(path: str, timeout: float = 10.0, query: str = "") -> tuple[str, str]:
    """An entry of the metadata server and its version. Raises OSError where there is none."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(METADATA.format(host) + path + query, headers={"Metadata-Flavor": "Google"})
    with _open(request, timeout=timeout) as reply:
        return reply.read().decode().strip(), reply.headers.get("ETag", "")


class Own:
    """The resource that this machine belongs to.

    Args:
        facts: `stack`, `project`, and `backend`, "gce" or "tpu-api".
    """

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts

    def expires(self) -> float | None:
        """Seconds since 1970 after which it should be gone, by the label in the cloud; None where it has none.

        Raises OSError where nothing can be read.
        """
        for path in self._labelled():
            found = self._call("GET", path)
            if found is not None:
                text = found.get("labels", {}).get(EXPIRES, "")
                return float(text) if text.isdigit() else None
        return None

    def delete(self) -> None:
        """Ask for its end. Raises OSError where that is refused."""
        any(self._call("DELETE", path) is not None for path in self._doomed())

    def there(self) -> bool:
        """Whether anything of it is there still. Raises OSError where that cannot be told."""
        return any(self._call("GET", path.partition("?")[0]) is not None for path in self._doomed())

    def _labelled(self) -> list[str]:
        """What carries the label: on tpu-api the node, on gce the instance."""
        return [f"{self._place()}/nodes/{self.facts['stack']}"] if self._is_tpu_api else [self._instance()]

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
        """What the API answers; None where there is no such thing."""
        real = "https://tpu.googleapis.com" if self._is_tpu_api else "https://compute.googleapis.com"
        token = json.loads(metadata("instance/service-accounts/default/token")[0])["access_token"]
        request = urllib.request.Request(os.environ.get("TAETPU_FAKE_CLOUD", real) + path, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with _open(request, timeout=60) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            said = error.read().decode(errors="replace")
            raise OSError(f"{method} {path}: {error.code} {' '.join(said.split())[:300]}") from error
