"""``meshnet demo``: a tracker and three nodes as real processes on this machine, and real chats through them."""
