#!/bin/sh
. /tests/expected.sh
if [ "$(cat planets.txt)" = "$EXPECTED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
