"""Text goes in; numbers, and on request the places they come from, come out."""
