#!/bin/sh
printf "Jupiter\nSaturn\nUranus\nNeptune\n" > planets.txt
