"""The task in which an agent buys products in a small simulated shop, modelled on the WebShop benchmark."""
