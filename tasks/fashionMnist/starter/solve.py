"""The baseline: writes submission.csv, which says class 0 of every image of validation and test."""

import numpy as np

with open("submission.csv", "w") as file:
    file.write("id,label\n")
    for split in ("val", "test"):
        count = len(np.load(f"data/{split}_images.npy", mmap_mode="r"))
        file.writelines(f"{split}{number},0\n" for number in range(count))
