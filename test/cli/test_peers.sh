#!/bin/sh
# test_peers.sh - bench/peers.py with stand-ins for both programs: what it prints where, what it says
# of a slow or missing PyTorch, and that nothing outlives it. Run from the root of the sources.
peers=$PWD/bench/peers.py
. "$(dirname "$0")/common"

if ! command -v python3 >/dev/null; then
    echo "skip peers: no python3"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

ask() {
    python3 "$peers" --config config.json --train-gpt ./ours --python ./torch --rounds 1 "$@" >out 2>err
    status=$?
}

# An interpreter whose PyTorch makes that many FLOP/s.
torch_of() {
    cat >torch <<END
#!/bin/sh
case "\$2" in
--torch-probe) echo '{"version": "9.9", "flops": $1}' ;;
*) echo '{"seconds": [0.5, 0.5], "version": "9.9"}' ;;
esac
END
    chmod +x torch
}

turns_are_told_as_they_go() {
    torch_of 5e10
    ask --compute fp32 --tokens 64
    [ $status -eq 0 ] || complain "status $status: $(head -n 3 err)"
    holds err "round 1 of 1: train_gpt"
    holds err "stand-in at work"
    holds err "round 1 of 1: train_gpt 256.0 tokens/s; PyTorch 9.9"
    holds out "train_gpt 256.0 tokens/s, PyTorch 9.9 128.0 tokens/s, ratio 2.00"
}

a_slow_blas_is_told_and_left_out() {
    torch_of 9e8
    ask
    [ $status -eq 0 ] || complain "status $status"
    holds out "makes 0.9 GFLOP/s"
    holds out "install libopenblas0"
    [ "$(wc -l <out)" -eq 1 ] || complain "more than one line: $(cat out)"
    rm torch
    ask
    holds out "PyTorch not found"
}

# A zombie is dead: who adopts it may be slow to notice.
alive() {
    kill -0 "$1" 2>/dev/null && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null
}

nothing_outlives_it() {
    torch_of 5e10
    signals='TERM INT'
    [ "$(uname)" = Linux ] && signals="$signals KILL"
    for signal in $signals; do
        rm -f pid
        # In the background a shell makes programs deaf to SIGINT; python3 sets it back.
        python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
os.execvp(sys.argv[1], sys.argv[1:])' python3 "$peers" --config config.json --train-gpt ./forever \
            --python ./torch >out 2>err &
        child=$!
        tries=0
        while [ ! -s pid ] && [ $tries -lt 300 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        [ -s pid ] || complain "the stand-in did not start: $(head -n 3 err)"
        kill -$signal $child
        wait $child 2>/dev/null
        tries=0
        while alive "$(cat pid)" && [ $tries -lt 100 ]; do
            sleep 0.1
            tries=$((tries + 1))
        done
        alive "$(cat pid)" && complain "SIG$signal left $(cat pid) behind"
    done
}

# --- what the cases need

cat >config.json <<'END'
{"model": {"n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": 300}}
END
cat >ours <<'END'
#!/bin/sh
echo "stand-in at work" >&2
echo '{"step": [{"tokens_per_s": 256, "share_of_peak": 0.5}]}'
END
cat >forever <<'END'
#!/bin/sh
echo $$ >pid.new && mv pid.new pid
exec sleep 1000
END
chmod +x ours forever

run_cases turns_are_told_as_they_go a_slow_blas_is_told_and_left_out nothing_outlives_it
