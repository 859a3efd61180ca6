"""A small simulated shop with generated products, modelled on the WebShop benchmark."""
