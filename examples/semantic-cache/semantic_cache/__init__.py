"""Questions about airports; one that was asked before in other words is answered from memory."""
