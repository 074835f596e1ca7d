"""The empirical studies behind the base rates."""
