#!/bin/sh
# coverage.sh - every kernel that was compiled, in every type, width and shape, was launched by the
# tests of the check build in all three thread orders. Runs behind them: they leave what they
# launched in $GPU_EMU_COVERAGE. With -v it prints which test launches which kernel.
# The last line is "N passed, N failed, N skipped": a kernel counts once.
build="${BUILD:-build}"
where="${GPU_EMU_COVERAGE:-$build/check/launches}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# "address  kind  name" of each kernel; pieces that a compiler cut off do not count.
kernels() {
    nm -C "$@" | grep -E '^[0-9a-f]+ [TtWw] (void )?[A-Za-z0-9_]+_kernel[<(]' | grep -v '\[clone'
}
kernels "$build"/check/kernels/cuda/*.o | sed -E 's/^[^ ]+ [^ ]+ (void )?//' | sort -u >"$work/compiled"
for program in "$build"/check/test/kernels/cuda/test_*; do
    case "$program" in *.*) continue ;; esac
    name=$(basename "$program")
    if [ ! -f "$where/$name.launches" ] || [ "$program" -nt "$where/$name.launches" ]; then
        echo "$program has not run since it was built: run \`make emu\`"
        continue
    fi
    kernels "$program" | sed -E 's/ [TtWw] (void )?/ /' >"$work/symbols"
    awk -v program="$name" 'NR == FNR { at = $1; sub(/^[^ ]+ /, ""); name[at] = $0; next }
        $2 in name { print $1 "\t" program "\t" name[$2] }' "$work/symbols" \
        "$where/$name.launches" >>"$work/launched"
done
touch "$work/launched"

[ "$1" != -v ] || awk -F '\t' '{ if (!seen[$3 $2]++) by[$3] = by[$3] " " $2 }
    END { for (k in by) print k ":" by[k] }' "$work/launched" | sort
awk -F '\t' 'NR == FNR { done[$1, $3] = 1; next }
    {
        missing = ""
        split("forward reverse shuffle", orders, " ")
        for (i = 1; i <= 3; i++)
            if (!((orders[i], $0) in done)) missing = missing " " orders[i]
        if (missing == "") passed++
        else {
            failed++
            print "no test launches " $0 " in order" missing
        }
    }
    END {
        print passed + 0 " passed, " failed + 0 " failed, 0 skipped"
        exit failed > 0 || passed == 0
    }' "$work/launched" "$work/compiled"
