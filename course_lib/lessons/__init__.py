"""Exercises that check themselves: `lesson.check`, `lesson.hint`, and one file per notebook."""
