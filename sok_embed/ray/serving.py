"""A deployment of Ray Serve that answers as `sok-embed serve` does."""

from __future__ import annotations

import os
from typing import Any

from ray import serve

from sok_embed.server import make_app


def deployment(
    path: str | os.PathLike[str], name: str | None = None, **options: Any
) -> serve.Deployment:
    """Returns a deployment of Ray Serve that serves the newest version in a folder.

    Each replica loads the version and follows. Ray places, starts and restarts replicas.

    Args:
        path: The folder of all versions, which all nodes of the cluster see under this path.
        name: The name of the model in the protocols; `None`: the name of the folder.
        **options: The options of `sok_embed.server.make_app`, but `grpc_address`: the proxies of
            Ray Serve listen, and not its replicas.

    Returns:
        The deployment: `serve.run(deployment("/shared/served").options(num_replicas=2).bind())`.

    Raises:
        ImportError: Without Ray Serve and KServe: `pip install "sok-embed[ray,serve]"`.
        ValueError: For `grpc_address`.
    """
    if "grpc_address" in options:
        raise ValueError(
            "Expected no grpc_address. Received: one. The proxies of Ray Serve listen, and not its "
            "replicas."
        )

    @serve.deployment(name=name or "sok-embed")
    @serve.ingress(lambda: make_app(path, name, **options))
    class Served:
        """Holds the application of a replica."""

    return Served
