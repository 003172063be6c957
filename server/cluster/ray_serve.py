"""A Ray Serve application per model: Ray Serve places, restarts and scales replicas; each runs our own server.

No request and no audio goes through Ray Serve: clients reach the servers through the edge, which follows their leases.
serve.yaml deploys it; `python -m server.cluster.ray_serve ADDRESS SECONDS` prints what Ray Serve says of it.
"""

# Ray Serve reads the annotation of app()'s parameter: it must be a class, not a string.
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve.schema import ApplicationStatusOverview

from runtime.base.errors import TickError
from runtime.commands.terminal import log_to_stderr
from server.cluster.replica import ReplicaServer
from server.service.lease import RENEW_S

# The lease says so once it is renewed, the edge reads the leases once a second, and checks a new replica.
EDGE_S = RENEW_S + RENEW_S + 0.5
POLL_S = 0.2
logger = logging.getLogger("tickrt.scale")


class ReplicaArguments(BaseModel):
    """`args` of an application.

    config: path of the deployment on every node, whose engines are built there. redis: the replicas' Redis; default:
    TICKRT_REDIS or [server]. host: the address that replicas listen on; default: their node's, which needs an API key
    (TICKRT_API_KEY). has_edge: false where clients reach the replicas themselves.
    """

    model_config = ConfigDict(extra="forbid")

    config: Path
    redis: str | None = Field(default=None, repr=False)
    host: str | None = None
    has_edge: bool = True


# Nothing but Ray Serve's own calls goes to a replica through Ray; five at a time, its default, would be few.
@serve.deployment(
    max_ongoing_requests=100,
    health_check_period_s=1,
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=60,
)
class Replica:
    """A replica: a server with a lease of its own. user_config: anything; a change reloads the engines."""

    def __init__(self, arguments: ReplicaArguments) -> None:
        """Returns once the engines are open and warm. Raises TickError where that fails."""
        log_to_stderr("info")
        self._user_config: Any = None
        context = serve.get_replica_context()
        self._server = ReplicaServer(
            arguments.config,
            name=f"{context.app_name}-{context.replica_id.unique_id}",
            redis=arguments.redis,
            host=arguments.host or ray.util.get_node_ip_address(),
            has_edge=arguments.has_edge,
        )
        self._server.wait_ready()
        # Ray Serve may stop another replica as soon as this one is there: the edge must know of it by then.
        time.sleep(EDGE_S)

    async def reconfigure(self, user_config: Any) -> None:
        """Replace the engines by the current builds where `user_config` has changed; sessions play on.

        Ray Serve asks one replica after another. An error is logged and the old engines stay: one raised here would
        make Ray Serve end the replica.
        """
        before, self._user_config = self._user_config, user_config
        if before in (None, user_config):
            return
        try:
            await self._server.reload()
        except TickError as error:
            logger.error("engines are not reloaded, the old ones stay in use: %s", error)
        else:
            logger.info("engines reloaded")

    async def check_health(self) -> None:
        """Raises TickError where the server does not work; Ray Serve replaces the replica then."""
        await self._server.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load that server.cluster.autoscaling:policy decides from."""
        return (await self._server.load()).metrics()

    async def __del__(self) -> None:
        """Ray Serve stops the replica: hand its sessions over."""
        if hasattr(self, "_server"):  # it also stops one whose server could not be opened
            await self._server.drain()


def app(arguments: ReplicaArguments) -> Application:
    """The application: `import_path: server.cluster.ray_serve:app`."""
    return Replica.bind(arguments)  # type: ignore[attr-defined]


def main() -> None:
    """Print the state of all applications of the Ray instance at an address as JSON: {name: [state, message]}.

    It waits until none of them is being deployed, for so many seconds at most.
    """
    address, seconds = sys.argv[1:]
    ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    until_s = time.monotonic() + float(seconds)
    while True:
        found = serve.status().applications
        if all(state.status != "DEPLOYING" for state in found.values()) or time.monotonic() > until_s:
            break
        time.sleep(POLL_S)
    print(json.dumps({name: [state.status, explanation(state)] for name, state in found.items()}))


def explanation(state: ApplicationStatusOverview) -> str:
    """What Ray Serve says of an application and its deployments, with the tracebacks of replicas that do not start."""
    return "\n".join(filter(None, [state.message, *(each.message for each in state.deployments.values())]))


if __name__ == "__main__":
    main()
