"""Filter a dataset of your own by a trust package, as one operator of a pipeline of Ray Data.

    curate export-trust runs/my-run -o trust
    python filter_dataset.py trust rows.parquet -o kept --trust 0.9

The rows need the columns that the package's domain reads; they keep all others. What comes after the operator is yours:
here, rows above a threshold are written, and error rows are counted.
"""

import argparse

import ray
from ray.data.expressions import col

from curation import Filter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", help="a folder or URL that `curate export-trust` wrote")
    parser.add_argument("rows", help="Parquet files that ray.data.read_parquet reads")
    parser.add_argument("-o", "--output", default="kept", help="folder to write to (default: kept)")
    parser.add_argument("--trust", type=float, default=0.9, help="keep rows of at least this trust (default: 0.9)")
    parser.add_argument("--teacher", help="where the teacher is now, if not where the package says")
    parser.add_argument("--actors", type=int, default=1, help="most actors at once (default: 1)")
    parser.add_argument("--gpus", type=float, default=0, help="GPUs of an actor (default: 0)")
    args = parser.parse_args()

    rows = ray.data.read_parquet(args.rows)
    chosen = Filter.load(args.package, teacher=args.teacher)
    pool = ray.data.ActorPoolStrategy(min_size=1, max_size=args.actors)
    scored = chosen.map(rows, compute=pool, num_gpus=args.gpus).materialize()  # labelled once, read twice
    kept = scored.filter(expr=col("trust") >= args.trust)  # a row without a label has no trust, and is left out
    errors = scored.filter(expr=col("error").is_not_null())
    kept.write_parquet(args.output)
    print(f"{scored.count()} rows, {kept.count()} kept, {errors.count()} errors; written to {args.output}")


if __name__ == "__main__":
    main()
