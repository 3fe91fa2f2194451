#!/bin/sh
# streams.sh COMMAND ..: runs a command on the input `stream` of 400 tokens: eight streams that take turns with runs of 16. So the last
# tile of queries and of keys has a stream alone, where positions decide, and all others have several.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{
  printf '\223NUMPY\001\000v\000%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (400,), }"
  i=0
  while [ $i -lt 400 ]; do
    printf "\\00$((i / 16 % 8))\\000\\000\\000"
    i=$((i + 1))
  done
} > "$folder/stream.npy"
"$@" --input stream="$folder/stream.npy"
