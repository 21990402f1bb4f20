"""`python -m benchmarks [NAME …]`."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import click

from benchmarks.figures import ALL


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(ALL)))
@click.option("--quick", is_flag=True, help="Fewer runs: to see that it works, not for figures.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write the JSON to this file.")
def main(names: tuple[str, ...], *, quick: bool, out: Path | None) -> None:
    """Measure, and print one JSON document. Without NAME: everything."""
    document = {"python": platform.python_version(), "machine": platform.machine(), "quick": quick, "figures": {}}
    for name in names or tuple(ALL):
        click.echo(f"measuring {name} …", err=True)
        document["figures"][name] = ALL[name](quick=quick)  # type: ignore[index]
    text = json.dumps(document, indent=2)
    click.echo(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
