#!/bin/sh
# gpu_check.sh [--out DIR] [STAGE...] - everything that needs a GPU, in one go.
# Stages, in this order: build tests attention bench train decode sanitizer (default: all).
# A stage that passed is marked in DIR (default gpu_check) and skipped when the script runs again; a stage
# that is named on the command line runs anyway. After each stage DIR/results.json and
# DIR/table.md are written anew from what is there, so an interrupted run keeps what it measured.
# Needs nvcc and libcjson, or a build/ folder made on another machine of the same kind.
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
gpt=build/train_gptcu
cuda_tests=$(ls test/kernels/cuda/test_*.c | sed 's|^|build/cuda/|; s|\.c$||')
attention_tests=$(echo "$cuda_tests" | grep -E 'sdpa|lowrank')
jobs=$(nproc 2>/dev/null || echo 2)

build() {
    if command -v nvcc >/dev/null 2>&1 && [ -e /usr/include/cjson/cJSON.h ]; then
        # shellcheck disable=SC2086
        make -s -j"$jobs" "$gpt" $cuda_tests
    else
        [ -x "$gpt" ] || { echo "gpu_check.sh: neither nvcc with libcjson nor a built $gpt" >&2 && return 1; }
        echo "using the binaries in build/"
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
}

# The suites of the kernels on the device, without the attention, which has a stage of its own.
tests() {
    # shellcheck disable=SC2046,SC2086
    scripts/run_tests.sh $(echo "$cuda_tests" | grep -vE 'sdpa|lowrank')
}

attention() {
    # shellcheck disable=SC2086
    scripts/run_tests.sh $attention_tests
}

# Peaks, products and whole steps of the variants: GB/s, TFLOP/s, share of the measured peak.
bench() {
    "$gpt" bench --device cuda --compute bf16 --batch 16 --tokens 2048 --only peaks,gemm,step,muon --seconds 90 \
        --json >"$out/bench.json"
}

# Tokens/s and MFU of whole training steps with the configs' own optimizers.
train() {
    for c in 128m-mha 128m-lrkv; do
        "$gpt" bench "configs/$c.json" --device cuda --compute bf16 --batch 32 --tokens 2048 --only peaks,step,muon \
            --seconds 40 --json >"$out/train-$c.json" || return 1
    done
    for layers in 36 24 12; do  # as much of 2.5B as fits
        "$gpt" bench configs/2.5b-lrkv.json model.n_layer=$layers --device cuda --compute bf16 --batch 4 \
            --tokens 2048 --only peaks,step --seconds 60 --json >"$out/train-2.5b-lrkv-$layers.json" && break
        rm -f "$out/train-2.5b-lrkv-$layers.json"
    done
}

decode() {
    "$gpt" bench --device cuda --compute bf16 --only peaks,prefill,decode --depths 0,512,1024,1900 --decode 32 \
        --seconds 60 --json >"$out/decode.json"
}

sanitizer() {
    command -v compute-sanitizer >/dev/null 2>&1 || { echo "compute-sanitizer is not installed" && return 0; }
    for t in $cuda_tests; do
        for tool in memcheck racecheck; do
            timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 1 "$t" || return 1
        done
    done
}

# One JSON object and one table out of what the stages left.
summary() {
    {
        printf '{"stages": {'
        sep=
        for s in $all; do
            [ -e "$out/$s.status" ] || continue
            printf '%s"%s": "%s"' "$sep" "$s" "$(cat "$out/$s.status")"
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
        printf '| stage | result | seconds |\n|---|---|---|\n'
        for s in $all; do
            [ -e "$out/$s.status" ] || continue
            printf '| %s | %s | %s |\n' "$s" "$(cat "$out/$s.status")" "$(cat "$out/$s.seconds")"
        done
    } >"$out/table.md"
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
