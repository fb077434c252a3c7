"""Names that broke a picture or a page once, or might."""

NAMES = (
    "$", "cost $5 or $x^$ more", "$\\frac{$", "\\$ $a$ \\", "new\nline\tand tab", "a\0b\x1b[31m", "日本語 犬", "🦊",
    "\udcff lone", "עברית", "<script>alert(1)</script>", "a|b", "x" * 500, "", " ", "%s {0}", "é\u0301\u202e",
)  # fmt: skip
