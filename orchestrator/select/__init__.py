"""Which rows may be compared, which candidate wins, and which comes next. Pure."""
