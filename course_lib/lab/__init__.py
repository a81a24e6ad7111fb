"""What fills serialized_models/: sweeps, examinations, scores, left-out trainings."""
