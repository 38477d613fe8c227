#!/bin/bash
# Compresses text of random words, and prints the ratio of sizes. The settings are environment variables.
set -euo pipefail

awk -v seed="$SEED" -v words="$WORDS" 'BEGIN {
  srand(seed)
  for (i = 0; i < words; i++)
    printf "%s ", substr("abcdefghijklmnopqrstuvwxyz", 1 + int(24 * rand() * rand()), 3)
}' > "$FOLDER/text"

for percent in 25 50 100; do
  size=$((WORDS * 4 * percent / 100))
  compressed=$(head -c "$size" "$FOLDER/text" | "$TOOL" "-$LEVEL" | wc -c)
  echo "$percent %: ratio $(awk -v small="$compressed" -v large="$size" 'BEGIN { print small / large }')"
done
