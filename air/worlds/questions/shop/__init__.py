"""A small shop with generated goods, after WebShop."""
