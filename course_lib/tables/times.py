"""How long trainings take, by their stored records."""

import statistics
from collections.abc import Sequence

from course_lib.errors import CourseError
from course_lib.zoo import stored_models

GPU_PASS = 1.5e-3  # seconds of a small network's forward and backward pass on a GPU; a guess
LONGEST = 6 * 3600  # seconds of training that fit into a session without a GPU


def how_long(recipes: Sequence[str], full: bool) -> str:
    """A line for each recipe; with `full` an error if together they are too much for a CPU."""
    times = {name: _seconds(name) for name in recipes}
    total = sum(cpu for cpu, _ in times.values())
    if full and total > LONGEST:
        raise CourseError(f"FULL would take about {_time(total)} here, since this runtime has no "
                          "GPU. In Colab: Runtime, Change runtime type, T4 GPU, then run "
                          "everything again. Or leave FULL off: no result needs it.")
    return "\n".join(f"{name}: {_time(cpu)} on one CPU core (measured), {_time(gpu)} on a GPU "
                     "(an estimate)" for name, (cpu, gpu) in times.items())


def _seconds(name: str) -> tuple[float, float]:
    """A stored recipe's training: the measured median over its seeds, and a guess for a GPU."""
    records = [model.record for model in stored_models(None, name)]
    made = records[0]["made_from"]
    steps = (made["recipe"]["method"].get("attack") or {}).get("steps", 0)
    batches = made["epochs"] * made["training_examples"] / made["recipe"]["optim"]["batch"]
    cpu = statistics.median(record["seconds"] for record in records)
    return cpu, batches * (steps + 1) * GPU_PASS


def _time(seconds: float) -> str:
    return (f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes" if seconds < 5400
            else f"{seconds / 3600:.0f} hours")
