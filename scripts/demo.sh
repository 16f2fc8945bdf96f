#!/bin/sh
# demo.sh [TEXT...] - the main job in one go, in demo/: real text -> tokenizer and shards -> an LRKV model
# trained from nothing -> bits per byte on a text it has not seen -> a sample -> an exact resume.
#
# Without arguments the text is Jane Austen's six novels out of Debian's package r-cran-janeaustenr, and
# Persuasion is held out. With arguments these files are the text; the last one is held out when
# there are several, else a tenth of the documents.
# DEMO_FAST=1 takes fewer steps; every stage still runs.
cd "$(dirname "$0")/.." || exit 1
set -e
# Waiting threads sleep: other programs run faster beside the demo.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
scripts/install.sh cc:gcc make:make ar:binutils cjson/cJSON.h:libcjson-dev python3:python3
steps=180 kill_steps=24
[ -z "$DEMO_FAST" ] || steps=40 kill_steps=12
began=$(date +%s)
say() {
    printf '\n== %s (after %d s)\n' "$1" $(($(date +%s) - began))
}

make -s -j"$(nproc)" build/train_gpt
gpt=build/train_gpt
if [ -e demo ] && [ ! -e demo/.made-by-demo ]; then
    echo "demo.sh: a folder 'demo' is there that this script did not make; move it away" >&2
    exit 1
fi
rm -rf demo
mkdir -p demo/text
: >demo/.made-by-demo

say "text"
if [ $# -gt 0 ]; then
    for f in "$@"; do
        [ -f "$f" ] || { echo "demo.sh: $f: no such file" >&2 && exit 1; }
        cp "$f" demo/text/
        held_out=$(basename "$f")
    done
    if [ $# -gt 1 ]; then hold="--val-docs $held_out"; else hold="--val-fraction 0.1"; fi
else
    held_out=persuasion.txt
    hold="--val-docs $held_out"
    if ! (cd demo && apt-get download -qq r-cran-janeaustenr >/dev/null 2>&1); then
        echo "demo.sh: apt-get could not download r-cran-janeaustenr; give text files as arguments" >&2
        exit 1
    fi
    dpkg -x demo/r-cran-janeaustenr_*.deb demo/package
    python3 scripts/austen.py demo/package demo/text
fi

say "tokenizer and shards"
# shellcheck disable=SC2086
$gpt prepare demo/text --tokenizer train:2048 $hold --shard-tokens 400000 --out demo/data

say "training an LRKV model"
$gpt train configs/demo.json train.steps=$steps checkpoint.dir=demo/run

say "the held-out text, at most 50,000 tokens"
before=$(sed -n 's/.*"step":0,.*"val_bits_per_byte":\([0-9.]*\).*/\1/p' demo/run/metrics.jsonl)
printf 'before training: %.4f bits per byte\nafter training:  ' "$before"
$gpt eval demo/run --data 'demo/data/val_*.bin' --tokens 50000

say "a sample, decoded with the LRKV cache"
$gpt generate demo/run --prompt "It is a truth" -n 120 --seed 2

say "killed and resumed equals straight, bit for bit"
small="configs/demo.json model.n_layer=2 model.n_embd=128 model.n_head=2 batch.tokens=512 model.seq_len=64
    train.steps=$kill_steps train.eval_every=0 train.sample_every=0 checkpoint.every=2"
# Both runs use the same directory, because its name is part of the config that checkpoints hold.
# shellcheck disable=SC2086
$gpt train $small checkpoint.dir=demo/exact 2>/dev/null
mv demo/exact demo/straight
# shellcheck disable=SC2086
$gpt train $small checkpoint.dir=demo/exact 2>/dev/null &
victim=$!
while [ ! -s demo/exact/latest ] && kill -0 $victim 2>/dev/null; do sleep 0.05; done
kill -KILL $victim 2>/dev/null || true
wait $victim 2>/dev/null || true
echo "killed after $(cat demo/exact/latest)"
# shellcheck disable=SC2086
$gpt train $small checkpoint.dir=demo/exact 2>/dev/null
last=$(cat demo/straight/latest)
for f in model.safetensors optimizer.safetensors; do
    cmp "demo/straight/$last/$f" "demo/exact/$last/$f"
    echo "$f: the same $(wc -c <"demo/straight/$last/$f") bytes"
done

say "KV cache of the five variants at 128M"
$gpt plan configs/128m-mha.json configs/128m-gqa.json configs/128m-mqa.json configs/128m-mla.json \
    configs/128m-lrkv.json generate.kv_type=bf16
printf '\ndone in %d s; the model is in demo/run\n' $(($(date +%s) - began))
