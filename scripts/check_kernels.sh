#!/bin/sh
# check_kernels.sh [FILE.cu...] - registers, static shared memory and spills of every kernel, as ptxas sees them
# (default: all of kernels/cuda and attention, for the architectures in CUDA_ARCHS, default "80 90").
# Status 1 when a file does not compile or when an attention kernel (sdpa*, lowrank*) spills registers to memory.
# Shared memory that a launch asks for is not known here. Needs nvcc (NVCC=...), no GPU.
cd "$(dirname "$0")/.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc /opt/cuda/bin/nvcc 2>/dev/null | head -1)}
[ -n "$nvcc" ] || { echo "check_kernels.sh: no nvcc found; set NVCC" >&2 && exit 2; }
[ $# -gt 0 ] || set -- $(ls kernels/cuda/*.cu attention/*.cu 2>/dev/null)
demangle=$(command -v c++filt || echo cat)
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
bad=0
printf '%-6s %4s %6s %6s %6s  %s\n' arch regs shared stack spills kernel
for file; do
    case $(basename "$file") in sdpa*|lowrank*) strict=1 ;; *) strict=0 ;; esac
    for arch in ${CUDA_ARCHS:-80 90}; do
        if ! "$nvcc" -std=c++17 -O3 -I. -arch=sm_"$arch" -cubin -Xptxas -v -o "$tmp/out.cubin" "$file" >"$tmp/log" 2>&1; then
            cat "$tmp/log" && bad=1
            continue
        fi
        # "Compiling entry function 'NAME'", then stack and spills, then registers: one line for each kernel.
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
                smem = 0
                for (i = 2; i <= NF; i++) {
                    if ($i ~ /^registers/) regs = $(i - 1)
                    if ($i ~ /^smem/) smem = $(i - 2)
                }
                if (name != "") printf "%-6s %4d %6d %6d %6d  %s\n", arch, regs, smem, stack, stores + loads, name
                name = ""
            }' "$tmp/log" | "$demangle" | sed -E 's/void //; s/\([A-Za-z_].*$//' >"$tmp/table"
        cat "$tmp/table"
        [ $strict = 0 ] || awk '$5 > 0 { print "spills: " $0; bad = 1 } END { exit bad }' "$tmp/table" || bad=1
    done
done
exit $bad
