"""Both APIs of the fake cloud, whose machines nobody can log into."""

from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.clients import Clients
from taetpu.cloud.fakes import gce, prices, tpu_rest
from taetpu.cloud.fakes.server import Route
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.world import World
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

RUNTIME = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
ZONE = "us-east5-b"


class Place:
    """A fake cloud.

    Attributes:
        dark: zones of Compute Engine that do not answer.
    """

    def __init__(self):
        self.world = World()
        self.tpu, self.skus, self.dark = Tpu(self.world), [], []

    def routes(self) -> list[Route]:
        def some(request):
            answer = listed.answer(request)
            for zone in self.dark:
                warning = {"code": "UNREACHABLE", "message": f"the scope zones/{zone} cannot be reached"}
                answer["items"][f"zones/{zone}"] = {"warning": warning}
            return answer

        answers = gce.routes(self.world)
        listed = next(route for route in answers if route.name == "instances.aggregatedList")
        first = Route("gce", listed.name, "GET", listed.pattern, some)
        return [first, *answers, *tpu_rest.routes(self.tpu), *prices.routes(self.world, self.skus)]

    def made(self, name: str = "tpu-me", zone: str = ZONE, **more) -> Machine:
        """A spot v6e-8 that is ready, as `taetpu tpu up --type v6e-8 --spot` makes one; no call is noted."""
        api = Gce(Clients(self.world.project))
        spec = Spec(name, resolve("v6e-8"), "gce", "spot", owner="me", **{"runtime": RUNTIME} | more)
        making = api.create(spec, zone, "", "ssh-ed25519 AAAAC3Nz laptop")
        while not (making.done() and (found := api.get(name, zone)) and found.state is State.READY):
            pass
        self.world.calls.clear()
        return found
