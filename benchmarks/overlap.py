"""What runs while rows and gradients travel between workers?

    sok-embed run -np 2 python benchmarks/overlap.py
    sok-embed run -np 2 python benchmarks/overlap.py --batch 4096 --profile profiles

A model of 26 tables and dense features trains by `fit`: dense features go through layers that need
no rows, beside the lookup. TensorFlow's profiler records some steps. For the median step the bars
show when each message was on its way and when ops computed, on worker 0; the figures are medians
over the steps: how long a message took, and for how much of that time ops computed. With
`--profile` the recordings of all workers stay there, for TensorBoard.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from _common import options, report

import sok_embed

TABLES, DIM, DENSE = 26, 16, 13
# Messages of a step in the order in which they begin, and a part of the name of each.
MESSAGES = {
    "keys": ".keys|",
    "rows": ".rows|",
    "gradients of rows": ".gradients|",
    "dense gradients": "sok_embed.gradients",
}
WIDTH = 72  # characters of a bar


class Span(NamedTuple):
    """A time on the profiler's clock, in milliseconds."""

    begin: float
    end: float


class Step(NamedTuple):
    """The times of a step's parts."""

    whole: Span
    messages: dict[str, list[Span]]
    computing: list[Span]


def trained_model() -> keras.Model:
    """Returns a model whose first dense layers need no rows."""
    features = {
        f"feature{number}": sok_embed.FeatureConfig(
            f"feature{number}",
            sok_embed.TableConfig(f"table{number}", None, DIM, combiner="sum"),
        )
        for number in range(TABLES)
    }
    dense = keras.Input((DENSE,))
    ids = {name: keras.Input((1,), dtype="int64", name=name) for name in features}
    bottom = dense
    for units in (512, 256, DIM):
        bottom = keras.layers.Dense(units, activation="relu")(bottom)
    rows = sok_embed.DistributedEmbedding(features, output="concat", name="embeddings")(ids)
    top = keras.layers.Concatenate()([bottom, rows])
    for units in (256, 64):
        top = keras.layers.Dense(units, activation="relu")(top)
    model = keras.Model([dense, ids], keras.layers.Dense(1)(top))
    optimizer = sok_embed.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def endless_batches(batch: int) -> tf.data.Dataset:
    """Returns batches of one worker, whose ids follow Zipf's law."""
    rng = np.random.default_rng([7, sok_embed.rank()])
    ids = rng.zipf(1.2, [TABLES, batch, 1]) % 1_000_000
    inputs = (
        rng.normal(size=[batch, DENSE]).astype(np.float32),
        {f"feature{number}": ids[number] for number in range(TABLES)},
    )
    labels = rng.integers(0, 2, [batch, 1]).astype(np.float32)
    return tf.data.Dataset.from_tensors((inputs, labels)).cache().repeat()


def steps_of(folder: str) -> Iterator[Step]:
    """Reads the steps of `fit` that a profile has."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    (path,) = Path(folder).rglob("*.xplane.pb")
    space.ParseFromString(path.read_bytes())
    events = list(_events(space))
    exchanges = [(text, span) for name, text, span in events if name == "SokEmbed>AllToAll"]
    ops = [span for name, _, span in events if _is_computing(name)]
    for name, _, whole in events:
        if name == "multi_step_on_iterator":
            yield Step(
                whole,
                {
                    message: _within(whole, (span for text, span in exchanges if part in text))
                    for message, part in MESSAGES.items()
                },
                _united(_within(whole, ops)),
            )


def _is_computing(event: str) -> bool:
    """Returns whether an event is an op that computes: its name, a colon and its type."""
    name, _, kind = event.rpartition(":")
    # The one kind calls others; of the other the profiler sees how it begins.
    calls = kind.startswith("StatefulPartitionedCall") or "AllToAll" in kind
    return bool(name) and " " not in event and "::" not in event and not calls


def _events(space: Any) -> Iterator[tuple[str, str, Span]]:
    """Yields the name of each event, the exchange that it is of, and when it was."""
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                texts = [
                    stat.str_value or plane.stat_metadata[stat.ref_value].name
                    for stat in event.stats
                    if plane.stat_metadata[stat.metadata_id].name == "exchange"
                ]
                begin = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                name = plane.event_metadata[event.metadata_id].name
                yield name, "".join(texts), Span(begin, begin + event.duration_ps / 1e9)


def _within(whole: Span, spans: Iterable[Span]) -> list[Span]:
    return sorted(span for span in spans if whole.begin <= span.begin < whole.end)


def _united(spans: list[Span]) -> list[Span]:
    """Returns spans, sorted by their beginnings, without the times that several share."""
    united: list[Span] = []
    for span in spans:
        if united and span.begin <= united[-1].end:
            united[-1] = Span(united[-1].begin, max(united[-1].end, span.end))
        else:
            united.append(span)
    return united


def shared(spans: list[Span], others: list[Span]) -> float:
    """Returns the time during which there was one of the spans and one of the others."""
    return sum(
        max(0.0, min(a.end, b.end) - max(a.begin, b.begin))
        for a in _united(spans)
        for b in _united(others)
    )


def length(spans: list[Span]) -> float:
    """Returns the time during which there was one of the spans."""
    return sum(span.end - span.begin for span in _united(spans))


def bar(whole: Span, spans: list[Span]) -> str:
    """Draws when there was one of the spans."""
    scale = WIDTH / (whole.end - whole.begin)
    cells = [" "] * WIDTH
    for span in spans:
        first = int((span.begin - whole.begin) * scale)
        last = int((span.end - whole.begin) * scale)
        for cell in range(first, min(last, WIDTH - 1) + 1):
            cells[cell] = "#"
    return "".join(cells)


def show(steps: list[Step], batch: int) -> None:
    """Prints the bars of the median step, and the medians of all."""
    longest_last = sorted(steps, key=lambda step: length([step.whole]))
    median = longest_last[len(steps) // 2]
    lines = [*median.messages.items(), ("ops", median.computing)]
    for name, spans in lines:
        print(f"{name:>18} |{bar(median.whole, spans)}|")
    figures = {
        name: {
            "ms": round(statistics.median(length(step.messages[name]) for step in steps), 3),
            "beside_ops": round(
                statistics.median(shared(step.messages[name], step.computing) for step in steps), 3
            ),
        }
        for name in MESSAGES
    }
    between = "gradients of rows", "dense gradients"
    both = statistics.median(shared(*(step.messages[name] for name in between)) for step in steps)
    step_ms = statistics.median(length([step.whole]) for step in steps)
    for name, figure in figures.items():
        print(f"{name:>18}: {figure['ms']} ms, for {figure['beside_ops']} of which ops computed")
    report(
        {
            "benchmark": "overlap",
            "workers": sok_embed.size(),
            "batch": batch,
            "step_ms": round(step_ms, 3),
            "messages": figures,
            "gradients_beside_gradients": round(both, 3),
        },
        f"{sok_embed.size()} workers, batch {batch:,} on each: a step of {step_ms:.2f} ms; "
        f"gradients of rows and dense gradients were on their way together for {both:.2f} ms",
    )


def main() -> None:
    """Profiles steps of `fit`."""
    parser = options((__doc__ or "").splitlines()[0])
    parser.set_defaults(batch=1024)
    parser.add_argument("--steps", type=int, default=20, help="that are recorded")
    parser.add_argument("--profile", help="a folder to keep the recordings in")
    arguments = parser.parse_args()
    sok_embed.init()
    keras.utils.set_random_seed(0)
    model, data = trained_model(), endless_batches(arguments.batch)
    model.fit(data, steps_per_epoch=20, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.profile:
            folder = f"{arguments.profile}/worker{sok_embed.rank()}"
        tf.profiler.experimental.start(folder)
        model.fit(data, steps_per_epoch=arguments.steps, verbose=0)
        tf.profiler.experimental.stop()
        if sok_embed.rank() == 0:
            show(list(steps_of(folder)), arguments.batch)


if __name__ == "__main__":
    main()
