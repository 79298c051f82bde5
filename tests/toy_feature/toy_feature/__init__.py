"""Short answers first: a section, two stages, a column, an arm, a number, a part of the report, lines, a docs row."""

from curation.arms import Column
from curation.features import Feature

BRIEF = Column("brief answers", "brevity")
BREVITY = Feature(
    section="toy_feature.section:BrevityConfig",
    title="How brief the selected answers are",
    needs=("gold",),
    columns="toy_feature.stages:columns",
    selected="toy_feature.stages:selected",
    numbers="toy_feature.stages:numbers",
    page="toy_feature:page.html.j2",
)
