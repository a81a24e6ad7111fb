"""Every stored model under your own sliders: `explore()`."""
