"""Google's own clients, made when first asked for, with application-default credentials or towards the fakes.

`TAETPU_FAKE_CLOUD` (an address of HTTP) sends every client to it, with no credentials; the client of the Cloud TPU API
speaks gRPC, to `TAETPU_FAKE_CLOUD_GRPC`. Google's libraries themselves read `STORAGE_EMULATOR_HOST`.
"""

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from google.cloud import storage, tpu_v2

FAKE, FAKE_GRPC = "TAETPU_FAKE_CLOUD", "TAETPU_FAKE_CLOUD_GRPC"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
EXTRA = "pip install 'taetpu[gcp]'"
SIGN_IN = "gcloud auth application-default login"

SKEW = 60.0
"""Seconds by which a clock may be off before it matters: dates of HTTP have whole seconds, and travel for a while."""

T = TypeVar("T")


def fake_address() -> str | None:
    """Where the fakes listen, `http://127.0.0.1:PORT`; None with the real cloud."""
    return os.environ.get(FAKE) or None


class Clients:
    """The clients of one project.

    Raises:
        UserError: no project is named, Google's libraries are not installed, or nobody is signed in.
    """

    def __init__(self, project: str):
        if not project:
            remedy = (
                "name it in taetpu.toml (`taetpu doctor --init` writes one), TAETPU_PROJECT or GOOGLE_CLOUD_PROJECT"
            )
            raise UserError("no Google Cloud project is named", remedy=remedy)
        self.project = project

    @cached_property
    def credentials(self) -> Any:
        """Application-default credentials; anonymous ones towards the fakes."""
        auth = imported("google.auth")
        if fake_address():
            return imported("google.auth.credentials").AnonymousCredentials()
        try:
            found, _ = auth.default(scopes=[SCOPE])
        except imported("google.auth.exceptions").DefaultCredentialsError:
            raise UserError("nobody is signed in to Google Cloud here", remedy=SIGN_IN) from None
        return found

    @cached_property
    def session(self) -> Any:
        """`requests` with credentials, for what the libraries have no call for; a plain one towards the fakes."""
        if fake_address():
            return imported("requests").Session()
        return imported("google.auth.transport.requests").AuthorizedSession(self.credentials)

    def now(self) -> float:
        """Seconds since 1970 by Google's clock, which labels of expiry go by; by this one's where it is not told.

        Never tried on the real cloud; every answer of Google's front ends has a date.
        """
        return time.time() + self._ahead

    @cached_property
    def _ahead(self) -> float:
        """Seconds that Google's clock is ahead of this one; 0 where they agree, or nothing answers."""
        from email.utils import parsedate_to_datetime

        requests = imported("requests")
        try:
            told = requests.get(self.url("compute", "/"), timeout=10).headers["Date"]
            ahead = parsedate_to_datetime(told).timestamp() - time.time()
        except (requests.RequestException, KeyError, ValueError):
            return 0.0
        return ahead if abs(ahead) > SKEW else 0.0

    def rest(self, client: type[T], transport: type[Any]) -> T:
        """A client that speaks REST, e.g. `rest(InstancesClient, InstancesRestTransport)`."""
        if not (address := fake_address()):
            return client(credentials=self.credentials, transport="rest")  # pyright: ignore[reportCallIssue]
        scheme, _, host = address.partition("://")
        made = transport(host=host, url_scheme=scheme, credentials=self.credentials)
        return client(transport=made)  # pyright: ignore[reportCallIssue]

    @cached_property
    def tpu(self) -> "tpu_v2.TpuClient":
        """The Cloud TPU API, by gRPC; by REST towards fakes that have no address of gRPC."""
        tpu_v2 = imported("google.cloud.tpu_v2")
        transports = imported("google.cloud.tpu_v2.services.tpu.transports")
        if address := os.environ.get(FAKE_GRPC):
            channel = imported("grpc").insecure_channel(address)
            return tpu_v2.TpuClient(transport=transports.TpuGrpcTransport(channel=channel))
        if fake_address():
            return self.rest(tpu_v2.TpuClient, transports.TpuRestTransport)
        return tpu_v2.TpuClient(credentials=self.credentials)

    @cached_property
    def storage(self) -> "storage.Client":
        """Cloud Storage. The library itself reads STORAGE_EMULATOR_HOST."""
        return imported("google.cloud.storage").Client(project=self.project, credentials=self.credentials)

    def url(self, service: str, path: str) -> str:
        """Where a question goes that no library has a call for: `url("serviceusage", "/v1/projects/p/services")`."""
        return f"{fake_address() or f'https://{service}.googleapis.com'}{path}"

    def compute(self, service: str) -> Any:
        """A client of Compute Engine by its name in the library: `Instances`, `ZoneOperations`, `MachineTypes`."""
        library = imported("google.cloud.compute_v1")
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in service).lstrip("_")
        transports = imported(f"google.cloud.compute_v1.services.{words}.transports")
        return self.rest(getattr(library, f"{service}Client"), getattr(transports, f"{service}RestTransport"))


def imported(module: str) -> Any:
    """A module of Google's libraries.

    Raises:
        UserError: the extra is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        problem = f"this needs Google's libraries, and {error.name} is not installed"
        raise UserError(problem, remedy=EXTRA) from None
