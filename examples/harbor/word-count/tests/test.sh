#!/bin/sh
# Each line that is right earns half.
right=0
for file in /etc/os-release /etc/passwd; do
    if grep -qx "$file $(wc -w < $file)" counts.txt; then right=$((right + 1)); fi
done
case $right in 2) echo 1 ;; 1) echo 0.5 ;; *) echo 0 ;; esac > /logs/verifier/reward.txt
