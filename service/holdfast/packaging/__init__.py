"""The wheel of Holdfast and the offline bundle that nodes install."""
