"""Text in columns, for the terminal."""


def aligned(lines: list[list[str]], left: set[int]) -> list[str]:
    """Pad every cell of a table to its column; columns in ``left`` start at the left."""
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return [line.rstrip() for line in padded]
