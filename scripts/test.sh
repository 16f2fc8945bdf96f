#!/bin/sh
# test.sh - installs what the build needs, builds everything and runs all tests.
# The last line is "N passed, N failed, N skipped". MODE=asan runs them under AddressSanitizer and UBSan.
cd "$(dirname "$0")/.." || exit 1
scripts/install.sh cc:gcc c++:g++ make:make ar:binutils cjson/cJSON.h:libcjson-dev || exit 1
jobs=$(nproc 2>/dev/null || echo 2)
mode=${MODE:-release}
build=build
[ "$mode" = release ] || build=build/$mode
make -s -j"$jobs" MODE="$mode" BUILD="$build" tests "$build/train_gpt" || exit 1
make -s MODE="$mode" BUILD="$build" test
