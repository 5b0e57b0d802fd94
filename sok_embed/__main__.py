"""The command `sok-embed`, as `python -m sok_embed`."""

from sok_embed.cli import main

if __name__ == "__main__":
    main(prog_name="python -m sok_embed")
