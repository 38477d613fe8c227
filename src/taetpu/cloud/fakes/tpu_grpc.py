"""The gRPC face of the fake Cloud TPU API, of the messages of Google's own library."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from taetpu.cloud.fakes.tpu import CALLS, Tpu
from taetpu.cloud.fakes.world import Cut, Refused

CUT = Refused(14, "Socket closed")
"""What the client's own library says of a connection that was lost: a server cannot drop one call's."""

SHARED = {
    "GetOperation": (operations_pb2.GetOperationRequest, operations_pb2.Operation),
    "ListLocations": (locations_pb2.ListLocationsRequest, locations_pb2.ListLocationsResponse),
}
ALONE = {"GetNode": "Node", "GetQueuedResource": "QueuedResource"}


class GrpcServer:
    """A context manager: serves the API on 127.0.0.1, in threads."""

    def __init__(self, tpu: Tpu, port: int = 0):
        self.server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="fake-tpu"))
        self.server.add_generic_rpc_handlers((_Handler(tpu),))
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "GrpcServer":
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(0).wait()


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, tpu: Tpu):
        self.tpu = tpu

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name not in CALLS:
            return None
        asked, answered = _messages(name)

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                answer = self.tpu.call(name, MessageToDict(request))
                return ParseDict(answer, answered(), ignore_unknown_fields=True)
            except Refused as refused:
                context.abort_with_status(_status(refused))
            except Cut:
                context.abort_with_status(_status(CUT))

        return grpc.unary_unary_rpc_method_handler(call, asked.FromString, answered.SerializeToString)


def _messages(name: str) -> tuple[Any, Any]:
    """The messages that a call is asked and answered with."""
    if name in SHARED:
        return SHARED[name]
    asked = getattr(tpu_v2, f"{name}Request").pb()
    if name in ALONE:
        return asked, getattr(tpu_v2, ALONE[name]).pb()
    if name.startswith(("List", "Get")):
        return asked, getattr(tpu_v2, f"{name}Response").pb()
    return asked, operations_pb2.Operation


def _status(refused: Refused) -> Any:
    """A refusal as gRPC tells it, with its details packed."""
    status = status_pb2.Status(code=refused.code, message=refused.message)
    if refused.facts or refused.reason:
        info = error_details_pb2.ErrorInfo(reason=refused.reason, domain="googleapis.com", metadata=refused.facts)
        packed = any_pb2.Any()
        packed.Pack(info)
        status.details.append(packed)
    return rpc_status.to_status(status)
