#!/bin/sh
# A header with its comments as doxygen wants them: /** before what it describes, /**< behind it on a line.
case $1 in
*.h) sed -e '1s|^/\* \([a-z]*\.h\): |/** @file \1\n * |' -e '2,$s|^\( *\)/\* |\1/** |' -e 's|\([;,{}] *\)/\* |\1/**< |' "$1" ;;
*) cat "$1" ;;
esac
