"""From stored rows to answers: match keys, comparisons, recommendations, diagnoses. Pure, apart from reading rows."""
