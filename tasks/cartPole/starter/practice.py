"""Lets policy.py drive 40 carts of differing physics and prints its scores. The hidden ones are others."""

from cart import Cart

with open("policy.py") as file:
    CODE = compile(file.read(), "policy.py", "exec")

scores = []
for seed in range(40):
    cart, policy = Cart(seed, spread=0.2), {"__name__": "policy"}
    exec(CODE, policy)  # anew for every cart, as the grader does
    while not cart.over:
        cart.step(policy["act"](cart.observe()))
    scores.append(cart.score)
print(f"mean return {sum(scores) / len(scores):.3f}, worst {min(scores):.3f}")
