"""Items of evaluation files: texts with scored continuations, in the formats of published benchmarks."""

from taetpu.data.items.formats import Item, ItemFile, format_of_row, read_items
from taetpu.data.items.item_set import ItemSet, encode_items

__all__ = ["Item", "ItemFile", "ItemSet", "encode_items", "format_of_row", "read_items"]
