#!/bin/sh
# check_format.sh ROOT [-i]: checks that sources are laid out as .clang-format says, by the version that ./bootstrap fetches; -i: lays
# them out. Exits with 77 where that is not there.
cd "$1" || exit 1
formatter=$(ls .deps/clang-format-*/clang-format 2>/dev/null | tail -n 1)
[ -n "$formatter" ] || exit 77
folders='abi bench cli common engine examples gen include nccl packaging parallel runtime templates tests xla'
find $folders -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort |
  if [ "${2-}" = -i ]; then
    xargs "$formatter" -i
  else
    xargs "$formatter" --dry-run -Werror
  fi
