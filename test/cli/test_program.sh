#!/bin/sh
# test_program.sh - the real program from text to text: what it prints where, its exit status, one
# sentence for each mistake, signals, and the whole way from a text file to a generated one.
# Runs the train_gpt of the build that it was copied to.
. "$(dirname "$0")/common"

# --- cases

help_goes_to_stdout() {
    for args in help --help -h 'help train' 'train --help' 'train -h' 'help generate' 'help eval' \
        'help plan' 'help prepare' 'help bench' 'help config' 'help attention' 'help optim.matrix'; do
        works $args
        [ -s out ] || complain "$args: nothing on stdout"
        [ ! -s err ] || complain "$args: stderr holds $(head -n 1 err)"
    done
    works help
    for command in prepare train eval generate plan bench; do
        holds out "train_gpt $command"
    done
    works help prepare
    holds out "--val-fraction F"
    works help attention
    for variant in mha mqa gqa mla lrkv; do
        holds out "      $variant "
    done
}

wrong_usage_has_status_2() {
    run
    [ $status -eq 2 ] && [ ! -s out ] && [ -s err ] || complain "no arguments: status $status"
    fails 2 "unknown command 'trian'; did you mean train?" trian
    fails 2 "unknown command" 'quite another'
    fails 2 "unknown command 'trian'; did you mean train?" help trian
    fails 2 "unknown setting atention; did you mean attention?" help atention
    fails 2 "unknown setting model.n_layr; did you mean model.n_layer?" help model.n_layr
    fails 2 "unknown setting nothing; the config has model, attention" help nothing
    fails 2 "did you mean --fresh?" train a.json --frehs
    fails 2 "did you mean --prompt?" generate run --promt x
    fails 2 "train expects a config file" train
    fails 2 "eval expects" eval
    fails 2 "generate expects" generate
    fails 2 "plan expects" plan
    fails 2 "train.steps" train a.json train.setps=3
    fails 2 "section.field=value" train a.json b.json
    fails 2 "optim.matrix.lr" train a.json optim.matrix.lr=fast
    fails 2 "model.n_layer" plan a.json model.n_layer=0
}

# Every command tells wrong usage from a failure.
every_command_has_the_same_statuses() {
    for args in 'prepare x' 'train tiny.json' 'eval run --data x' 'generate run -p x' \
        'plan tiny.json' 'bench tiny.json'; do
        fails 2 "unknown option --nonsense" $args --nonsense
        case $args in
        prepare*) fails 2 "--seed expects N behind it" $args --seed ;;
        *)
            fails 2 "--device expects NAME behind it" $args --device
            fails 2 "unknown setting model.n_layres; did you mean model.n_layer?" \
                $args model.n_layres=3
            fails 2 "model.n_layer" $args model.n_layer=0
            fails 2 "model.n_layer" $args model.n_layer=two
            fails 2 "model.n_layer" $args model.n_layer=
            ;;
        esac
    done
    fails 2 "from 1 to 65536, found 'x'" plan tiny.json --gpus x
    fails 2 "--depths" bench tiny.json --depths x
    fails 2 "--only" bench tiny.json --only x
    fails 2 "plan expects a config file" plan model.n_layer=3
    fails 2 "eval expects --data" eval run
    fails 1 "nowhere" prepare nowhere --tokenizer train:300 --out other
    fails 1 "nowhere" train nowhere.json
    fails 1 "nowhere" eval nowhere --data text.txt
    fails 1 "nowhere" generate nowhere -p x
    fails 1 "nowhere" plan nowhere.json
    fails 1 "nowhere" bench nowhere.json
    # Settings that are wrong only together are no wrong usage.
    for command in train plan bench; do
        fails 1 "model.n_head" $command tiny.json model.n_head=5
    done
}

missing_files_have_status_1() {
    fails 1 "nowhere.json" train nowhere.json
    fails 1 "nowhere.json" plan nowhere.json
    fails 1 "nowhere" eval nowhere --data x.bin
    fails 1 "nowhere" generate nowhere -p x
    fails 1 "built for cpu" plan tiny.json --device tpu
    echo '{"model": {"n_layres": 3}}' >wrong.json
    fails 1 "n_layer" train wrong.json
    echo '{"model": {"n_layer": 3' >wrong.json
    fails 1 "wrong.json" train wrong.json
    echo '{"base": "nowhere.json"}' >wrong.json
    fails 1 "nowhere.json" train wrong.json
    fails 1 "data/tokenizer.json" train tiny.json data.train=nowhere.bin checkpoint.dir=other
}

text_becomes_shards() {
    works prepare text.txt --tokenizer train:300 --out data --val-fraction 0.1
    for file in tokenizer.json train_*.bin val_*.bin; do
        ls data/$file >/dev/null 2>&1 || complain "data/$file is missing: $(ls data)"
    done
}

# A megabyte of one character, with 256 KB of stack.
long_runs_need_no_stack() {
    for character in a _ ' ' '\n' '\303'; do
        head -c 1000000 /dev/zero | tr '\0' "$character" >long.txt
        (
            ulimit -s 256
            works prepare long.txt --tokenizer data/tokenizer.json --out long --force
            [ $bad -eq 0 ]
        ) || complain "a run of '$character'"
    done
    rm -rf long long.txt
}

shards_become_a_model() {
    works train tiny.json
    [ ! -s out ] || complain "stdout holds $(head -n 1 out)"
    holds err "finished at step 20"
    [ -f run/step-00000020/model.safetensors ] || complain "no checkpoint: $(ls run)"
    [ "$(grep -c '"loss"' run/metrics.jsonl)" -eq 20 ] || complain "not 20 steps in metrics.jsonl"
    works train tiny.json
    holds err "going on at step 20 of 20"
    fails 1 "holds a run already" train tiny.json --fresh
    fails 1 "model.n_embd 32 -> 64" train tiny.json model.n_embd=64
    works train tiny.json train.steps=22
    holds run/metrics.jsonl '{"step":22,'
}

the_model_is_scored() {
    works eval run --data 'data/val_*.bin' --json
    holds out '{"loss": '
    [ "$(wc -l <out)" -eq 1 ] || complain "stdout has $(wc -l <out) lines"
    works eval run --data text.txt --tokens 100
    holds out "over 100 tokens"
}

the_model_writes() {
    works generate run --prompt "the cat" -n 12 --seed 5
    cp out first
    holds err "generated 12 "
    holds err "end: length"
    works generate run --prompt "the cat" -n 12 --seed 5 --json
    cmp -s out first || complain "the same seed gave another text"
    holds err '"generated_tokens": 12'
    printf 'the cat' >prompt
    works generate run --prompt-file prompt -n 12 --seed 5
    cmp -s out first || complain "a prompt from a file gave another text"
    "$gpt" generate run -n 12 --seed 5 <prompt >out 2>err || complain "standard input: $(cat err)"
    cmp -s out first || complain "a prompt from standard input gave another text"
    works generate run -p "" -n 3
    works generate run -p "the" -n 0
    [ "$(wc -c <out)" -eq 1 ] || complain "-n 0 printed $(cat out)"
    works generate run -p "the" -n -1 --ignore-eot
    holds err "end: context"
    works generate run -p "the" -n 4 --samples 3
    holds out "--- sample 3"
    fails 1 "the context holds 32" generate run --prompt-file text.txt
    fails 1 "not both" generate run -p a --prompt-file prompt
    fails 1 "top-p must lie in" generate run -p a --top-p 0
}

a_full_disk_is_noticed() {
    [ -c /dev/full ] || return
    "$gpt" generate run -p the -n 4 >/dev/full 2>err </dev/null && complain "status 0 on a full disk"
    holds err "writing the text failed"
}

signals_save_and_end_well() {
    rm -rf slow
    "$gpt" train tiny.json checkpoint.dir=slow train.steps=1000000 >slow.out 2>slow.err &
    child=$!
    tries=0
    while ! grep -q '"step":3,' slow/metrics.jsonl 2>/dev/null && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    fails 1 "another process" train tiny.json checkpoint.dir=slow train.steps=1000000
    kill -TERM $child
    wait $child
    status=$?
    [ $status -eq 0 ] || complain "status $status after SIGTERM"
    ls slow/step-*/state.json >/dev/null 2>&1 || complain "no checkpoint after SIGTERM: $(ls slow)"
    works eval slow --data 'data/val_*.bin' --tokens 50
    rm -rf slow
}

plans_allocate_nothing() {
    works plan tiny.json
    holds out "parameters"
    works plan tiny.json --json
    works plan tiny.json model.n_layer=100 model.n_embd=16384 model.n_head=128
    holds out "parameters"
}

make_text
make_config
run_cases help_goes_to_stdout wrong_usage_has_status_2 every_command_has_the_same_statuses \
    missing_files_have_status_1 text_becomes_shards long_runs_need_no_stack shards_become_a_model \
    the_model_is_scored the_model_writes a_full_disk_is_noticed signals_save_and_end_well \
    plans_allocate_nothing
