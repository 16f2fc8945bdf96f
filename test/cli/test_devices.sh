#!/bin/sh
# test_devices.sh - the CUDA program as users run it: on the emulator it trains, goes on from a CPU
# run and the other way round, and writes the same text; without a driver it says so and takes the
# CPU.
. "$(dirname "$0")/common"
cpu=$gpt emu=${TRAIN_GPT_EMU:-$here/../../train_gpt_emu} cuda=${TRAIN_GPT_CUDA:-$here/../../train_gptcu}

# Losses of a run, one a line.
losses() {
    sed -n 's/.*"loss":\([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl"
}

# near A B TOLERANCE: as many numbers in both files, each close to the other's.
near() {
    paste "$1" "$2" | awk -v tol="$3" 'NF != 2 || ($1 - $2) ^ 2 > (tol * $2) ^ 2 { bad = 1 }
        END { exit bad || NR < 3 }' || complain "losses $(tr '\n' ' ' <"$1"), not $(tr '\n' ' ' <"$2")"
}

no_emulator() {
    [ -x "$emu" ] && return 1
    skip "no C++ compiler built train_gpt_emu"
}

runs_cross_over() {
    no_emulator && return
    works train tiny.json train.steps=7 checkpoint.dir=straight
    losses straight >want
    for stage in "$cpu 2 cpu" "$emu 4 cuda" "$emu 5 cpu" "$emu 6 auto" "$cpu 7 cpu"; do
        set -- $stage
        gpt=$1
        works train tiny.json train.steps="$2" --device "$3"
        case $3 in
        cpu) holds err "device: cpu (" ;;
        *) holds err "device: cuda (sm_" ;;
        esac
    done
    losses run >got
    near got want 1e-4
    gpt=$cpu
}

bf16_follows() {
    no_emulator && return
    gpt=$emu
    works train tiny.json train.steps=7 train.compute=bf16 checkpoint.dir=half --device cuda
    losses half >got
    near got want 2e-2
    gpt=$cpu
}

the_text_is_the_same() {
    no_emulator && return
    for prompt in "the cat" "a dog sees"; do
        works generate run -p "$prompt" -n 10 --temperature 0
        cp out want_text
        gpt=$emu
        works generate run -p "$prompt" -n 10 --temperature 0 --device cuda
        cmp -s out want_text || complain "'$(cat out)', not '$(cat want_text)'"
        gpt=$cpu
    done
    works eval run --data 'data/val_*.bin' --tokens 64
    cp out want_loss
    gpt=$emu
    works eval run --data 'data/val_*.bin' --tokens 64 --device cuda
    cmp -s out want_loss || complain "'$(head -n 1 out)', not '$(head -n 1 want_loss)'"
    gpt=$cpu
}

devices_have_names() {
    fails 1 "--device cuda: this program was built for cpu" train tiny.json --device cuda
    no_emulator && return
    gpt=$emu
    fails 1 "--device tpu: this program was built for cuda, cpu" train tiny.json --device tpu
    gpt=$cpu
}

without_a_driver_the_cpu_is_taken() {
    [ -x "$cuda" ] || { skip "train_gptcu was not built"; return; }
    [ "$here/../../libgpt.a" -nt "$cuda" ] && { skip "train_gptcu is older than the library: make"; return; }
    gpt=$cuda
    if "$gpt" train tiny.json train.steps=8 checkpoint.dir=gpu --device cuda >out 2>err </dev/null; then
        skip "there is a GPU"
    else
        fails 1 "no usable GPU" train tiny.json --device cuda
        holds err "install an NVIDIA driver or use --device cpu"
        works train tiny.json train.steps=8 --device auto
        holds err "using the cpu"
        holds err "device: cpu ("
        works train tiny.json train.steps=9 --device cpu
        grep -q "no usable GPU" err && complain "--device cpu speaks of a GPU"
    fi
    gpt=$cpu
}

make_text
make_config
# A rate that does not depend on the length of the run, and no evaluation.
sed -i 's/"warmup_steps": 2/"kind": "constant", "warmup_steps": 0/
    s/"eval_every": 10, "eval_tokens": 256, "sample_every": 10/"eval_every": 0/' tiny.json
"$gpt" prepare text.txt --tokenizer train:300 --out data --val-fraction 0.1 >out 2>&1 || complain "prepare: $(cat out)"
run_cases runs_cross_over bf16_follows the_text_is_the_same devices_have_names \
    without_a_driver_the_cpu_is_taken
