"""How long trainings take, by their stored records."""

import statistics
from collections.abc import Sequence

from course_lib.errors import CourseError
from course_lib.zoo import stored_models

LONGEST = 6 * 3600  # seconds of training that fit into a session without a GPU


def how_long(recipes: Sequence[str], full: bool) -> str:
    """The median over the seeds of each recipe; with `full` an error if together they are too much
    for a CPU."""
    times = {name: statistics.median(model.record["seconds"] for model in stored_models(None, name))
             for name in recipes}
    if full and (total := sum(times.values())) > LONGEST:
        raise CourseError(f"FULL would take about {total / 3600:.0f} hours here, since this "
                          "runtime has no GPU. In Colab: Runtime, Change runtime type, T4 GPU, "
                          "then run everything again. Or leave FULL off: no result needs it.")
    return "\n".join(f"{name}: {seconds / 60:.1f} minutes on one CPU core (measured)"
                     for name, seconds in times.items())
