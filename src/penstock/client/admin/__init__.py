"""Topics, groups, access and clusters, as administrators see and change them."""
