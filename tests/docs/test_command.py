"""The reference of the command has every option of every command."""

import re

import click
import pytest
from pages import ROOT

from sok_embed.cli import main

TEXT = "".join(
    (ROOT / f"docs/reference/{page}").read_text()
    for page in ("cli.md", "cli-checkpoint.md", "serving-server.md")
)


def commands(group: click.Group, path: str = "sok-embed") -> dict[str, click.Command]:
    """Returns the commands of a group, and of the groups in it, by what one types."""
    context = click.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
        else:
            found[f"{path} {name}"] = command
    return found


COMMANDS = commands(main)


def test_there_are_commands():
    assert len(COMMANDS) >= 15


@pytest.mark.parametrize("typed", COMMANDS)
def test_each_option_of_a_command_is_in_the_reference(typed):
    uses = " ".join(re.findall(rf"^\| `({re.escape(typed)} [^`]*)`", TEXT, re.M))
    options = [each for each in COMMANDS[typed].params if isinstance(each, click.Option)]
    missing = [
        option.opts
        for option in options
        if "--json" not in option.opts and not any(name in uses for name in option.opts)
    ]
    assert uses and missing == []
