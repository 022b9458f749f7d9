"""Charts as Vega-Lite specifications, each with the table behind it. Pure; drawn by a page, a notebook or `picture`."""
