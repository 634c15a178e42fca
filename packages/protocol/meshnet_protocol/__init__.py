"""Words that tracker and node share: ids, layer ranges, hops, routes, messages, frames.

Nothing here does I/O or reads a clock, and nothing here knows the tracker or the node.
"""
