#!/bin/sh
# check_kernels.sh [FILE.cu...] - registers, shared memory, stack and spills of every kernel, as ptxas sees them
# (default: all of kernels/cuda and attention, for the architectures in CUDA_ARCHS; default: those of 80, 90, 100
# and 120 that nvcc knows).
# Status 1 when a file does not compile without warnings, or when an attention kernel (sdpa*, lowrank*) spills
# registers to memory. Shared memory is asked for at launch: the largest request of the tests on the emulator, from
# the files that they leave in $GPU_EMU_COVERAGE (build/check/launches), or "-". Needs nvcc (NVCC=...), no GPU.
cd "$(dirname "$0")/.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -1)}
[ -n "$nvcc" ] || { echo "check_kernels.sh: no nvcc found; set NVCC" >&2 && exit 2; }
[ $# -gt 0 ] || set -- $(ls kernels/cuda/*.cu attention/*.cu 2>/dev/null)
known=$("$nvcc" --list-gpu-code) || exit 1
archs=${CUDA_ARCHS:-$(for arch in 80 90 100 120; do echo "$known" | grep -o "^sm_$arch\$"; done | cut -c 4-)}
[ -n "$archs" ] || { echo "check_kernels.sh: $nvcc knows none of sm_80, 90, 100, 120; set CUDA_ARCHS" >&2 && exit 1; }
build=${BUILD:-build} launches=${GPU_EMU_COVERAGE:-${BUILD:-build}/check/launches}
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
jobs=$(nproc 2>/dev/null || echo 2)

# One compilation for each file and architecture; the log becomes "arch registers stack spills name" lines.
cat >"$tmp/compile" <<'COMPILE'
nvcc=$1 tmp=$2 arch=$3 file=$4
log=$tmp/$(basename "$file" .cu).$arch
if ! "$nvcc" -std=c++17 -O3 -I. -arch=sm_"$arch" -cubin -Xptxas -v -Werror all-warnings -o "$log.cubin" "$file" >"$log.log" 2>&1
then
    cat "$log.log" >&2
    exit 1
fi
# "Compiling entry function 'NAME'", then stack and spills, then registers.
awk -v arch="sm_$arch" '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /bytes stack frame/ {
        for (i = 2; i <= NF; i++) {
            if ($i == "stack") stack = $(i - 2)
            if ($i == "spill" && $(i + 1) ~ /^stores/) stores = $(i - 2)
            if ($i == "spill" && $(i + 1) ~ /^loads/) loads = $(i - 2)
        }
    }
    /Used [0-9]+ registers/ {
        for (i = 2; i <= NF; i++)
            if ($i ~ /^registers/) regs = $(i - 1)
        if (name != "") print arch, regs, stack, stores + loads, name
        name = ""
    }' "$log.log" | c++filt >"$log.table"
COMPILE
bad=0
for file; do
    for arch in $archs; do echo "$arch $file"; done
done | xargs -P "$jobs" -L 1 sh "$tmp/compile" "$nvcc" "$tmp" || bad=1

# "bytes name" of the largest request for each kernel that the tests launched.
for program in "$build"/check/test/kernels/cuda/test_*; do
    record=$launches/$(basename "$program").launches
    [ -f "$record" ] || continue
    nm "$program" | grep '_kernel' | c++filt | sed -E 's/ [TtWwVv] / /' >"$tmp/symbols"
    awk 'NR == FNR { at = $1; sub(/^[^ ]+ /, ""); name[at] = $0; next }
        $2 in name && $3 != "" { print $3, name[$2] }' "$tmp/symbols" "$record"
done | awk '{ n = $1; sub(/^[^ ]+ /, ""); if (!($0 in most) || n > most[$0]) most[$0] = n }
    END { for (k in most) print most[k], k }' >"$tmp/shared"

printf '%-6s %4s %7s %6s %6s  %s\n' arch regs shared stack spills kernel
for file; do
    for arch in $archs; do
        table=$tmp/$(basename "$file" .cu).$arch.table
        [ -f "$table" ] || continue
        case $(basename "$file") in sdpa*|lowrank*) strict=1 ;; *) strict=0 ;; esac
        awk -v strict=$strict '
            FILENAME ~ /shared$/ { n = $1; sub(/^[^ ]+ /, ""); shared[$0] = n; next }
            {
                arch = $1; regs = $2; stack = $3; spills = $4
                sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "")
                bytes = $0 in shared ? shared[$0] : "-"
                sub(/^void /, ""); sub(/\([A-Za-z_].*$/, "")
                line = sprintf("%-6s %4d %7s %6d %6d  %s", arch, regs, bytes, stack, spills, $0)
                print line
                if (strict && spills > 0) { print "spills: " line; bad = 1 }
            }
            END { exit bad }' "$tmp/shared" "$table" || bad=1
    done
done
exit $bad
