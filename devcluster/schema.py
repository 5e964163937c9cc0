"""The migrated schema as one text, for readers and for reviews: `make schema` writes it.

Promises: the same text from the same migrations, whatever the day and the minor release; functions
are left out, since each is a file of its own.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from devcluster.postgres import EmbeddedPostgres, find_tools
from devcluster.processes import ProcessFailed
from store.migrate import migrate

SCHEMA_FILE = Path(__file__).parents[1] / "store" / "schema.sql"
MAJOR = 18
"""The release whose pg_dump writes the file; others word the same schema differently."""

_HEADING = (
    "-- The schema after all migrations, without functions. Written by `make schema`; not run.\n\n"
)
_SECTION = re.compile(r"^--\n-- (?:Data for )?Name: .*?; Type: (.*?);.*\n--\n", re.MULTILINE)
_NOISE = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n", re.M)


def dump_major() -> int:
    """The major release of the pg_dump at hand."""
    shown = subprocess.run([_pg_dump(), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)(\.\d+|devel|beta|rc)", shown.stdout)
    return int(found[1]) if found else 0


def dump_schema(url: str) -> str:
    """The schema of a migrated database. Raises ProcessFailed with what pg_dump said."""
    done = subprocess.run(
        [_pg_dump(), "--schema-only", "--no-owner", "--no-privileges", f"--dbname={url}"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath, "LC_ALL": "C"},
    )
    if done.returncode != 0:
        raise ProcessFailed(f"pg_dump failed\n{done.stderr}")
    pieces = _SECTION.split(done.stdout)
    kept = [pieces[0]]
    kept += [
        text for kind, text in zip(pieces[1::2], pieces[2::2], strict=True) if kind != "FUNCTION"
    ]
    plain = _NOISE.sub("", "".join(kept))
    return _HEADING + re.sub(r"\n{3,}", "\n\n", plain).strip() + "\n"


def _pg_dump() -> str:
    return str(find_tools() / "pg_dump")


def main() -> None:
    """Migrate an embedded Postgres of the moment and write its schema to SCHEMA_FILE."""
    if dump_major() != MAJOR:
        sys.exit(f"the schema is written by pg_dump {MAJOR}, this one is {dump_major()}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # the account that Postgres runs as must get through
        with EmbeddedPostgres(folder) as postgres:
            asyncio.run(migrate(postgres.url()))
            SCHEMA_FILE.write_text(dump_schema(postgres.url()))


if __name__ == "__main__":
    main()
