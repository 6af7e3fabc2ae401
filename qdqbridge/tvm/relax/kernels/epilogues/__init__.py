"""What happens to the sums of a tile before they are stored."""
