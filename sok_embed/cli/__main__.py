"""The command `sok-embed`, as `python -m sok_embed.cli`."""

from sok_embed.cli.commands import main

if __name__ == "__main__":
    main(prog_name="python -m sok_embed.cli")
