#!/bin/sh
sort planets.txt -o planets.txt
