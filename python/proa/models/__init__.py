"""Model families, one file each, written once against ops."""
