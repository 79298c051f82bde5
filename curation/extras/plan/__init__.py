"""``curate plan``: the stages of a run or a filter, and a forecast of its labelling, in money too."""
