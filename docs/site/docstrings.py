"""Readies what griffe reads in the sources for the pages of the reference."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import griffe

# A sample in a docstring: from `>>>` to the next empty line.
_SAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)
# A path of a name, which becomes a link where the reference has the name.
_PATH = re.compile(r"`(sok_embed(?:\.\w+)+)`")
_LINK = r'<autoref optional identifier="\1"><code>\1</code></autoref>'
_TITLES = {
    "Call arguments:": "Other Parameters: Call arguments",
    "Example:": "**Example**\n",
}
_TITLE = re.compile("^(?:" + "|".join(_TITLES) + ")$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Shows samples as code, paths as links, and the options that a decorator adds."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites a docstring, which is plain text, as Markdown."""
        if obj.docstring:
            text = _PATH.sub(_LINK, obj.docstring.value)
            text = _SAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
            obj.docstring.value = _TITLE.sub(lambda title: _TITLES[title[0]], text)

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Puts the fields that `@takes_options(fields, *without)` adds into signatures."""
        for function in _functions(pkg):
            for decorator in function.decorators:
                if decorator.callable_path.endswith("takes_options"):
                    call = ast.parse(str(decorator.value), mode="eval").body
                    options, *without = call.args
                    fields = loader.modules_collection[function.resolve(ast.unparse(options))]
                    left_out = {each.value for each in without}
                    _add_fields(function, fields, left_out)


def _functions(scope: griffe.Object) -> Iterator[griffe.Function]:
    """Yields the functions and methods in a module or class."""
    for member in scope.members.values():
        if not member.is_alias and (member.is_module or member.is_class):
            yield from _functions(member)
        elif not member.is_alias and member.is_function:
            yield member


def _add_fields(function: griffe.Function, options: griffe.Class, left_out: set[str]) -> None:
    """Puts the fields of a dataclass and of its bases before the `**` of a function."""
    *before, rest = function.parameters
    fields = {
        field.name: field
        for each in reversed([options, *options.mro()])
        for field in each.attributes.values()
        if "property" not in field.labels
    }
    shown = [
        griffe.Parameter(
            name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.keyword_only,
            default=_value(field),
        )
        for name, field in fields.items()
        if name not in {*left_out, *(each.name for each in before)}
    ]
    takes_more = [rest] if rest.name == "kwargs" else []
    function.parameters = griffe.Parameters(*before, *shown, *takes_more)


def _value(field: griffe.Attribute) -> Any:
    """Returns the default of a field, for a constant its value."""
    if isinstance(field.value, griffe.ExprName):
        return field.modules_collection[field.value.canonical_path].value
    return field.value
