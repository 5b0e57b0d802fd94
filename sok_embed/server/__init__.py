"""A model server: what KServe has of protocols, over the newest version in a folder.

It needs the extra "serve": `pip install "sok-embed[serve]"`.
"""

from sok_embed.server.app import make_app

__all__ = ["make_app"]
