"""How fast are bags from a hashed weight, against a full table and against composed ops?

    python benchmarks/hashed_bag.py
    python benchmarks/hashed_bag.py --sparse-gradient

One training step: bags of 16 ids to sums, squared error, gradient, Keras' SGD. `full_*` read a
table of all rows: by tf.nn.embedding_lookup_sparse from a SparseTensor, the same from a
RaggedTensor with `allow_fast_lookup`, and by tf.gather with a sum, which only bags of one length
allow. `composed_*` do what ours does in TensorFlow's own ops, see _composed_bag.py: with the
gradient of tf.gather, with DenseBincount, and compiled by XLA. `block_*` are ours, by block size.

Targets for a step with 64 floats and uniform ids: block_16 at least 1.5 x the faster of
embedding_lookup_sparse, block_1 at least 4 x `composed_1`. How it compares with a gradient that is
composed by hand is told beside. The second command measures where a sparse gradient is faster
than a dense one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from _bag_memory import peak_of_steps, peaks_in_processes
from _common import interleaved, options, positions, rates, report, tensors, use_threads
from _composed_bag import composed_bag
from _gradient_sweep import OPTIMIZERS, sweep

import sok_embed

LEARNING_RATE = 0.1
# Names ours, its rivals, and how many times as fast as the fastest of them it is to be, if that was
# set.
TARGETS = {
    "full_table": ("block_16", ("full_lookup_sparse", "full_lookup_ragged"), 1.5),
    "composed": ("block_1", ("composed_1",), 4.0),
    "composed_by_hand": ("block_1", ("composed_1_bincount",), None),
}
OURS: dict[str, dict[str, Any]] = {
    **{f"block_{size}": {"block_size": size} for size in (1, 8, 16, 32)},
    "block_16_sign": {"block_size": 16, "sign": True},
    "block_16_mean": {"block_size": 16, "mode": "mean"},
    "block_16_max": {"block_size": 16, "mode": "max"},
}
IN_PROCESSES = ("full_lookup_sparse", "composed_1_bincount", "block_1", "block_16")


class Contender(NamedTuple):
    """A variable, and the function of it and of ids `[bags, n]` that is timed."""

    variable: keras.Variable
    bags: Callable[[Any, tf.Tensor], tf.Tensor]
    jit: bool = False


class Case(NamedTuple):
    """The parameters that all contenders have in common."""

    num_embeddings: int
    dim: int
    size: int  # slots of the hashed weight
    bags: int
    ids_a_bag: int


def contender(name: str, case: Case, start: Any) -> Contender:
    """Makes one contender, whose variable begins as the initializer says."""
    kind, _, rest = name.partition("_")
    shape = (case.num_embeddings, case.dim) if kind == "full" else (case.size,)
    if kind == "full":
        return Contender(keras.Variable(start, shape), partial(_full, rest, case))
    if kind == "composed":
        block_size, _, how = rest.partition("_")
        gradient = "gather" if not how else "bincount"
        bags = composed_bag(case.size, case.dim, int(block_size), gradient)
        return Contender(keras.Variable(start, shape), bags, jit=how == "xla")
    layer = sok_embed.HashedEmbeddingBag(
        case.num_embeddings, case.dim, size=case.size, weight=start, **OURS[name]
    )
    layer.build((case.bags, case.ids_a_bag))
    return Contender(layer.weight, lambda _, ids: layer(ids))


def _full(how: str, case: Case, table: Any, ids: tf.Tensor) -> tf.Tensor:
    if how == "gather":
        return tf.reduce_sum(tf.gather(table, ids), 1)
    flat = tf.reshape(ids, [-1])
    if how == "lookup_ragged":
        splits = np.arange(case.bags + 1) * case.ids_a_bag
        rows = tf.RaggedTensor.from_row_splits(flat, splits, validate=False)
    else:
        places = np.indices((case.bags, case.ids_a_bag)).reshape(2, -1).T
        rows = tf.SparseTensor(places, flat, (case.bags, case.ids_a_bag))
    fast = how == "lookup_ragged"
    return tf.nn.embedding_lookup_sparse(table, rows, None, combiner="sum", allow_fast_lookup=fast)


def forward(one: Contender) -> Any:
    """Returns the bags of ids, compiled."""
    return tf.function(lambda ids: one.bags(one.variable.value, ids), jit_compile=one.jit)


def training_step(one: Contender, targets: tf.Tensor) -> Any:
    """Returns a compiled step that trains the variable, and returns the loss before it."""
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build([one.variable])

    @tf.function(jit_compile=one.jit)
    def step(ids: tf.Tensor) -> tf.Tensor:
        weight = one.variable.value
        with tf.GradientTape() as tape:
            distances = tf.square(one.bags(weight, ids) - targets)
            loss = tf.reduce_mean(tf.reduce_sum(distances, 1))
        optimizer.apply([tape.gradient(loss, weight)], [one.variable])
        return loss

    return step


def check_agreement(
    case: Case, steps: dict[str, Any], contenders: dict[str, Contender], inputs: Any, start: Any
) -> None:
    """Checks vectors, and weights after a step, against tf.gather or the composed ops."""
    ids, targets = inputs

    def results(one: Contender, step: Any) -> tuple[Any, Any]:
        vectors = one.bags(one.variable.value, ids).numpy()
        step(ids)
        return vectors, one.variable.numpy()

    expected: dict[str, Any] = {}
    for name, one in contenders.items():
        kind, _, how = name.partition("_")
        rival = "full_gather" if kind == "full" else f"composed_{how.partition('_')[0]}"
        before = one.variable.numpy()
        vectors, trained = results(one, steps[name])
        assert np.abs(trained - before).max() > 1e-4, name
        if kind == "block" and OURS[name].keys() != {"block_size"}:
            continue  # sign, mean and max have no rival here
        if rival not in expected:
            reference = contender(rival, case, start)
            expected[rival] = results(reference, training_step(reference, targets))
        np.testing.assert_allclose(vectors, expected[rival][0], 1e-4, 1e-6, err_msg=name)
        np.testing.assert_allclose(trained, expected[rival][1], 1e-4, 1e-6, err_msg=name)


def run(dim: int, dist: str, arguments: Any) -> bool:
    """Times one case; returns whether it meets the targets, if it has some."""
    rng = np.random.default_rng(arguments.seed)
    case = shapes(dim, arguments)
    shape = (arguments.batches, case.bags, case.ids_a_bag)
    batches = tensors(list(positions(dist, case.num_embeddings, shape, rng)))
    # Targets are out of reach, so that gradients of one slot have one sign: sums that cancel round
    # badly.
    targets = tf.constant(rng.uniform(9.0, 10.0, (case.bags, dim)).astype(np.float32))
    names = ["full_lookup_sparse", "full_lookup_ragged", "full_gather"]
    names += [f"composed_{z}{how}" for z in (1, 16) for how in ("", "_bincount", "_xla")]
    names += [name for name, options in OURS.items() if dim % options["block_size"] == 0]
    # All contenders start alike each time.
    start = keras.initializers.RandomUniform(-0.05, 0.05, arguments.seed)
    contenders = {name: contender(name, case, start) for name in names}
    steps = {name: training_step(one, targets) for name, one in contenders.items()}
    check_agreement(case, steps, contenders, (batches[0], targets), start)

    forwards = {name: forward(one) for name, one in contenders.items()}
    calls = {
        f"{kind} {name}": partial(_call, function, batches)
        for kind, functions in {"forward": forwards, "step": steps}.items()
        for name, function in functions.items()
    }
    times = interleaved(calls, arguments.batches, arguments.repeats)
    seconds = {
        kind: {name: times[f"{kind} {name}"] for name in contenders} for kind in ("forward", "step")
    }
    ratios = {
        name: round(min(seconds["step"][rival] for rival in rivals) / seconds["step"][ours], 3)
        for name, (ours, rivals, _) in TARGETS.items()
    }
    aimed_at = dim == 64 and dist == "uniform"
    bounds = {name: bound for name, (*_, bound) in TARGETS.items() if bound and aimed_at}
    report(
        {
            "benchmark": "hashed_bag",
            **case._asdict(),
            "dist": dist,
            "threads": arguments.threads,
            "milliseconds": {
                kind: {name: round(1e3 * value, 3) for name, value in times.items()}
                for kind, times in seconds.items()
            },
            "million_keys_per_s": rates(seconds["step"], case.bags * case.ids_a_bag),
            "ratio": ratios,
            "targets": bounds,
        },
        f"hashed bag dim {dim:3} {dist:7}: block 16 is {ratios['full_table']:.2f} x "
        f"embedding_lookup_sparse, block 1 {ratios['composed']:.2f} x composed ops, "
        f"{ratios['composed_by_hand']:.2f} x those with a gradient composed by hand"
        + (f"; targets {', '.join(map(str, bounds.values()))}" if bounds else "")
        + "".join(
            f"\n  {name:20} forward {1e3 * seconds['forward'][name]:7.2f} ms, "
            f"step {1e3 * seconds['step'][name]:7.2f} ms"
            for name in contenders
        ),
    )
    return all(ratios[name] >= bound for name, bound in bounds.items())


def _call(function: Any, batches: list[tf.Tensor], i: int) -> tf.Tensor:
    return function(batches[i])


def shapes(dim: int, arguments: Any) -> Case:
    """Returns the case that the arguments ask for."""
    size = int(arguments.keys * dim * arguments.compression)
    return Case(arguments.keys, dim, size, arguments.batch // arguments.bag, arguments.bag)


def one_peak(name: str, arguments: Any) -> None:
    """Prints the memory of a contender's steps: this process does nothing else."""
    case = shapes(arguments.dim[0], arguments)
    rng = np.random.default_rng(arguments.seed)
    ids = rng.integers(0, case.num_embeddings, (arguments.batches, case.bags, case.ids_a_bag))

    def make(case: Case) -> tuple[keras.Variable, Any]:
        # Random values would take memory while they are made, which TensorFlow keeps.
        one = contender(name, case, keras.initializers.Zeros())
        return one.variable, training_step(one, tf.zeros([case.bags, case.dim]))

    small = case._replace(num_embeddings=16, size=64, bags=2)
    peak_of_steps(
        partial(make, small), tf.constant(ids[0, :2] % 16), partial(make, case), tensors(list(ids))
    )


def main() -> None:
    """Runs the cases that the command line asks for."""
    parser = options(__doc__.splitlines()[0])
    parser.set_defaults(dim=[64], batches=8)
    parser.add_argument("--bag", type=int, default=16, help="ids a bag")
    parser.add_argument(
        "--compression", type=float, default=1 / 64, help="slots per element of the table"
    )
    parser.add_argument("--sparse-gradient", action="store_true", help="measure that instead")
    parser.add_argument(
        "--slots",
        type=int,
        nargs="+",
        choices=range(10, 33),
        metavar="LOG2",
        help="for --sparse-gradient, sizes of the weight: 24 for 2**24",
    )
    parser.add_argument("--touched", type=int, nargs="+", help="parts touched: 2 is one half")
    parser.add_argument("--block-size", type=int, default=1, help="for --sparse-gradient")
    parser.add_argument(
        "--optimizer", nargs="+", choices=list(OPTIMIZERS), help="for --sparse-gradient"
    )
    parser.add_argument("--peak-of", choices=IN_PROCESSES, help="print the memory of its steps")
    arguments = parser.parse_args()
    if any(dim % 16 for dim in arguments.dim):
        parser.error(f"--dim: expected multiples of 16. Received: {arguments.dim}.")
    use_threads(arguments.threads)
    # TensorFlow takes the many contenders for one that is retraced.
    tf.get_logger().setLevel("ERROR")
    if arguments.sparse_gradient:
        sweep(arguments)
    elif arguments.peak_of:
        one_peak(arguments.peak_of, arguments)
    else:
        met = [run(dim, dist, arguments) for dim in arguments.dim for dist in arguments.dist]
        peaks_in_processes(IN_PROCESSES, __file__, sys.argv[1:])
        sys.exit(arguments.check and not all(met))


if __name__ == "__main__":
    main()
