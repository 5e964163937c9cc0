"""The outcome table on the protocol's page, made from the table in code: `make protocol` writes it.

Promises: only what stands between the two marks changes; the same table gives the same page.
"""

from pathlib import Path

from orbit_sdk.protocol.outcomes import as_markdown

PAGE_FILE = Path(__file__).parents[1] / "docs" / "protocol.md"
BEGINS = "<!-- outcomes: written by `make protocol` -->\n"
ENDS = "<!-- end of outcomes -->\n"


def with_outcomes(page: str) -> str:
    """The page with the table as it is in code. Raises ValueError for a page without its marks."""
    before, _, rest = page.partition(BEGINS)
    _, mark, after = rest.partition(ENDS)
    if not mark:
        raise ValueError("the page has lost the marks around its outcome table")
    return f"{before}{BEGINS}\n{as_markdown()}\n{ENDS}{after}"


def main() -> None:
    """Write the page anew."""
    PAGE_FILE.write_text(with_outcomes(PAGE_FILE.read_text()))


if __name__ == "__main__":
    main()
