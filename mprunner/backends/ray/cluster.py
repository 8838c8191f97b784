"""The Ray cluster as a whole: join it, what it has room for, whether it is still there."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from mprunner.errors import ClusterError, ConfigurationError, MissingExtraError

try:
    import ray
except ImportError:
    raise MissingExtraError("backend='ray'", "ray", "ray") from None

#: Seconds between two questions to the cluster's head, and that it has for an answer. Ray ends
#: a program without a word once the head has been gone for 60 s (its setting
#: gcs_rpc_server_reconnect_timeout_s): our error has to come well before that.
_ASK_EVERY_S = 5.0
_ANSWER_S = 10.0
#: Seconds for Ray to let go of a cluster; of one that is lost it waits for an answer.
_LEAVE_S = 20.0

_users_lock = threading.Lock()
_users = 0  # backends that use the connection which this module has made


def join(address: str | None) -> bool:
    """Use this process's connection to Ray, or make one.

    Args:
        address: of a cluster, as ``ray.init`` takes it; None: by Ray's own rules the one named
            by RAY_ADDRESS or running on this machine, else a new one.

    Returns:
        True if it is for `leave` to end it: a Ray that `ray.init` has started ends with its
        connection, and one that it has joined goes on.

    Raises:
        ConfigurationError: there is no such cluster, or this process uses another one.
    """
    global _users
    if address is not None and "://" in address:
        raise ConfigurationError(
            f"address is {address!r}; a driver that is not in the cluster (Ray Client) cannot "
            "take in rows: run it on a node and give host:port, or 'auto'"
        )
    with _users_lock:
        if ray.is_initialized():
            _check_same(address)
            _users += _users > 0
            return _users > 0
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigurationError(
                f"no Ray cluster could be reached at {address!r}: {error}"
            ) from error
        _users = 1
        return True


def leave() -> None:
    """The last one that has joined ends the connection."""
    global _users
    with _users_lock:
        _users -= 1
        if _users or not ray.is_initialized():
            return
        # A head that does not answer must not keep the caller, who has the error.
        leaving = threading.Thread(target=ray.shutdown, name="mprunner-ray-leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)


def check_connected() -> None:
    """To be called before a call to an actor, which without a connection starts a new Ray.

    Raises:
        ClusterError: somebody has called ``ray.shutdown()``.
    """
    if not ray.is_initialized():
        raise ClusterError("the connection to the Ray cluster is lost: it has been shut down")


def _check_same(address: str | None) -> None:
    if address in (None, "auto") or (address == "local" and _users):
        return
    used = ray.get_runtime_context().gcs_address
    if address != used:
        raise ConfigurationError(
            f"address is {address!r}, but this process uses the Ray cluster at {used!r} already"
        )


def checked_resources(resources: Mapping[str, float]) -> dict[str, float]:
    """What a runner reserves.

    Raises:
        ConfigurationError: it is no mapping of names to amounts that Ray can reserve.
    """
    if not isinstance(resources, Mapping):
        raise ConfigurationError(
            f"resources_per_runner is {resources!r:.80}; expected a mapping such as {{'CPU': 1}}"
        )
    for name, amount in resources.items():
        number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if not isinstance(name, str) or not number or not 0 <= amount < math.inf:
            raise ConfigurationError(
                f"resources_per_runner has {name!r:.80}: {amount!r:.80}; expected the name of a "
                "resource and a number of at least 0"
            )
        if amount > 1 and amount != int(amount):
            raise ConfigurationError(
                f"resources_per_runner has {name!r}: {amount}; above 1 Ray reserves whole numbers"
            )
    return dict(resources)


def actor_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The same as arguments of ``ray.remote``."""
    others = dict(resources)
    return {
        "num_cpus": others.pop("CPU", 0),
        "num_gpus": others.pop("GPU", 0),
        "memory": others.pop("memory", None),
        "resources": others,
    }


def check_room(num_runners: int, resources: Mapping[str, float]) -> None:
    """Refuse at once what the cluster could not place if it were empty.

    Raises:
        ConfigurationError: names what is needed and what there is.
    """
    needs = {name: amount for name, amount in resources.items() if amount}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, amount in needs.items():
        have = sum(node.get(name, 0.0) for node in nodes)
        if amount * num_runners > have:
            raise ConfigurationError(
                f"{num_runners} runners need {amount * num_runners:g} {name}, the cluster has "
                f"{have:g} in all; use fewer runners, another resources_per_runner, or add nodes"
            )
    if not needs:
        return
    places = sum(
        min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items())
        for node in nodes
    )
    if places < num_runners:
        sizes = ", ".join(str(_shown(node, needs)) for node in nodes)
        raise ConfigurationError(
            f"{num_runners} runners need {needs} each, and a runner cannot be spread over nodes: "
            f"the cluster's ({sizes}) have room for {places}"
        )


def free_resources() -> dict[str, float]:
    """What no one has reserved now, as far as it is known."""
    with contextlib.suppress(Exception):
        return _shown(ray.available_resources())
    return {}


def _shown(resources: Mapping[str, float], names: Any = None) -> dict[str, float]:
    hidden = ("node:", "object_store_memory", "memory")
    return {
        name: amount
        for name, amount in resources.items()
        if (name in names if names else not name.startswith(hidden))
    }


class Watch:
    """Asks the cluster's head now and then whether it is there, in a thread of its own."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._asked = math.inf
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="mprunner-ray-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def lost(self) -> ClusterError | None:
        """Why the cluster counts as lost, if it does."""
        if self._error is not None:
            error = ClusterError(f"the connection to the Ray cluster is lost: {self._error}")
            error.__cause__ = self._error
            return error
        silent_s = time.monotonic() - self._asked
        if silent_s > _ANSWER_S:
            return ClusterError(
                "the connection to the Ray cluster is lost: its head has not answered for "
                f"{silent_s:.1f} s"
            )
        return None

    def stop(self) -> None:
        """End it; a thread that still waits for an answer ends when Ray gives up."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(0.0 if self.lost() else 1.0)

    def _main(self) -> None:
        while not self._stopped.wait(_ASK_EVERY_S):
            self._asked = time.monotonic()
            try:
                # Without a connection, the question itself would start a new Ray.
                if not ray.is_initialized():
                    raise ConnectionError("ray.shutdown() was called")
                here = ray.get_runtime_context().get_node_id()
                if any(node["NodeID"] == here and not node["Alive"] for node in ray.nodes()):
                    raise ConnectionError("Ray counts the driver's node as dead")
            except BaseException as error:
                self._error = error
                return
            self._asked = math.inf
