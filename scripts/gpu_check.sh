#!/bin/sh
# gpu_check.sh [--out DIR] [STAGE...] - everything that needs a GPU, in one go.
# Stages, in this order: build tests attention bench train decode sanitizer (default: all). A stage that
# passed is marked in DIR (default gpu_check) and skipped when the script runs again; a stage that is
# named on the command line runs anyway. After each stage DIR/results.json (every figure) and
# DIR/table.md (the same for people) are written anew, so an interrupted run keeps what it measured.
# All stages but the last are meant to end within 8 minutes on 16 cores.
#
# Needs a C and a C++ compiler, make, nvcc and libcjson-dev, or a build/ folder made elsewhere. Without
# libcjson-dev: CJSON_DIR=FOLDER, which holds cJSON.c and cJSON.h (github.com/DaveGamble/cJSON).
#
# A dry run without a GPU: GPU_CHECK_PROGRAM=build/train_gpt_emu takes the emulator in place of the device,
# and small sizes.
cd "$(dirname "$0")/.." || exit 1
out=gpu_check
if [ "$1" = --out ]; then
    out=$2
    shift 2
fi
all="build tests attention bench train decode sanitizer"
named=$*
for s in $named; do
    case " $all " in *" $s "*) ;; *) echo "gpu_check.sh: no stage '$s'; there are: $all" >&2 && exit 2 ;; esac
done
mkdir -p "$out"
jobs=$(nproc 2>/dev/null || echo 2)
gpt=${GPU_CHECK_PROGRAM:-build/train_gptcu}
case $gpt in
*emu) kind=emu small="model.n_layer=1 model.n_embd=96 model.n_head=6 model.head_dim=64 model.ffn_dim=128 model.vocab_size=300 model.seq_len=64" ;;
*) kind=cuda small= ;;
esac
cuda_tests=$(ls test/kernels/cuda/test_*.c | sed "s|^|build/$kind/|; s|\.c\$||")
attention_tests=$(echo "$cuda_tests" | grep -E 'sdpa|lowrank')

# big WORDS | small WORDS: what this run has, a device or the emulator.
sizes() {
    if [ -z "$small" ]; then echo "$1"; else echo "$2"; fi
}

# measure NAME ARGS...: bench; its tables go to DIR/NAME.txt, its figures to DIR/NAME.json.
measure() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$gpt" bench --device cuda --compute bf16 --json-file "$out/$name.json" "$@" $small >"$out/$name.txt.tmp" &&
        mv "$out/$name.txt.tmp" "$out/$name.txt"
    status=$?
    rm -f "$out/$name.txt.tmp"
    return $status
}

# The compute capability of the device as "90", else what the Makefile has.
archs() {
    cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    [ -z "$cap" ] || echo "CUDA_ARCHS=$cap"
}

device() {
    if [ $kind = emu ]; then echo emulator; else
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>/dev/null | head -n 1
    fi
}

# Whether the compiler finds cJSON, from the system or in CJSON_DIR.
has_cjson() {
    [ -e "$CJSON_DIR/cJSON.c" ] && [ -e "$CJSON_DIR/cJSON.h" ] && return
    echo '#include <cjson/cJSON.h>' | ${CC:-cc} -E - >/dev/null 2>&1
}

build() {
    if [ $kind = emu ] || { command -v nvcc >/dev/null 2>&1 && has_cjson; }; then
        # shellcheck disable=SC2046,SC2086
        make -s -j"$jobs" ${CJSON_DIR:+CJSON_DIR="$CJSON_DIR"} $(archs) "$gpt" $cuda_tests || return 1
    elif [ -x "$gpt" ]; then
        echo "using the binaries in build/"
    elif has_cjson; then
        echo "gpu_check.sh: nvcc is not in PATH and there is no $gpt built elsewhere" && return 1
    else
        echo "gpu_check.sh: libcjson-dev is missing; install it, or give the folder of cJSON.c and cJSON.h as CJSON_DIR" &&
            return 1
    fi
    [ $kind = emu ] || nvidia-smi
}

# The suites of the program on the device, without the attention, which has a stage of its own.
tests() {
    # shellcheck disable=SC2046,SC2086
    scripts/run_tests.sh $(echo "$cuda_tests" | grep -vE 'sdpa|lowrank')
}

attention() {
    # shellcheck disable=SC2086
    scripts/run_tests.sh $attention_tests
}

# Every op by itself and the products of all shapes: GB/s, TFLOP/s, shares of the measured peaks.
bench() {
    # shellcheck disable=SC2046
    measure bench configs/128m-mha.json configs/128m-lrkv.json configs/128m-mla.json \
        configs/128m-mla-decoupled.json $(sizes '--batch 16 --tokens 2048' '--repeat 1') \
        --only peaks,kernels,gemm --seconds 60
}

# Tokens/s and MFU of whole training steps, the share of the configs' own optimizers, and as much
# of 2.5B as fits: half the layers when all of them do not.
train() {
    for c in 128m-mha 128m-lrkv; do
        # shellcheck disable=SC2046
        measure "train-$c" "configs/$c.json" $(sizes '--batch 32 --tokens 2048' '--repeat 1') \
            --only peaks,step,muon --seconds 25 || return 1
    done
    for layers in 36 24 12 6; do
        # shellcheck disable=SC2046
        measure "train-2.5b-lrkv-$layers" configs/2.5b-lrkv.json model.n_layer=$layers \
            $(sizes '--batch 4 --tokens 2048' '--repeat 1') --only peaks,step --seconds 45 && return
    done
}

# Tokens/s of the five variants at several depths of the cache.
decode() {
    # shellcheck disable=SC2046
    measure decode --only peaks,prefill,decode $(sizes '--depths 0,512,1024,1900 --decode 32' '--depths 0,40 --decode 2') \
        --seconds 45
}

# What passed is not done again when the stage is interrupted.
sanitizer() {
    command -v compute-sanitizer >/dev/null 2>&1 || { echo "compute-sanitizer is not installed" && return 0; }
    for t in $cuda_tests; do
        for tool in memcheck racecheck; do
            mark="$out/sanitizer-$(basename "$t")-$tool"
            [ -e "$mark" ] && continue
            timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 1 "$t" || return 1
            touch "$mark"
        done
    done
}

# One JSON object and one table out of what the stages left.
summary() {
    {
        printf '{"device": "%s", "stages": {' "$(device)"
        sep=
        for one in $all; do
            [ -e "$out/$one.status" ] || continue
            printf '%s"%s": {"result": "%s", "seconds": %s}' "$sep" "$one" "$(cat "$out/$one.status")" "$(cat "$out/$one.seconds")"
            sep=', '
        done
        printf '}'
        for f in "$out"/bench.json "$out"/train-*.json "$out"/decode.json; do
            [ -s "$f" ] || continue
            printf ',\n"%s": ' "$(basename "$f" .json)"
            cat "$f"
        done
        printf '}\n'
    } >"$out/results.json.tmp"
    mv "$out/results.json.tmp" "$out/results.json"
    {
        printf '%s\n\n' "$(device)"
        printf '| stage | result | seconds | tests |\n|---|---|---|---|\n'
        for one in $all; do
            [ -e "$out/$one.status" ] || continue
            printf '| %s | %s | %s | %s |\n' "$one" "$(cat "$out/$one.status")" "$(cat "$out/$one.seconds")" \
                "$(grep ' passed, ' "$out/$one.log" | tail -n 1)"
        done
        for f in "$out"/bench.txt "$out"/train-*.txt "$out"/decode.txt; do
            # shellcheck disable=SC2016
            [ -s "$f" ] && printf '\n%s\n\n```\n%s\n```\n' "$(basename "$f" .txt)" "$(cat "$f")"
        done
    } >"$out/table.md.tmp"
    mv "$out/table.md.tmp" "$out/table.md"
}

failed=0
for s in $all; do
    if [ -n "$named" ]; then
        case " $named " in *" $s "*) ;; *) continue ;; esac
    elif [ "$(cat "$out/$s.status" 2>/dev/null)" = passed ]; then
        echo "== $s: passed before"
        continue
    fi
    echo "== $s"
    start=$(date +%s)
    if "$s" >"$out/$s.log" 2>&1; then result=passed; else result=failed; fi
    echo $(($(date +%s) - start)) >"$out/$s.seconds"
    echo "$result" >"$out/$s.status"
    [ "$result" = passed ] || { failed=1 && tail -n 20 "$out/$s.log"; }
    summary
    echo "== $s: $result in $(cat "$out/$s.seconds") s"
    [ "$s" = build ] && [ "$result" = failed ] && break
done
cat "$out/table.md"
exit $failed
