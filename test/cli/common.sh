# common.sh - what the tests of the real programs share: a temporary directory, a text and a config
# in it, running the program, complaints, and the list of cases.
here=$(CDPATH= cd "$(dirname "$0")" && pwd)
gpt=${TRAIN_GPT:-$here/../../train_gpt}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/train_gpt_test_XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
cd "$tmp" || exit 1
export OMP_NUM_THREADS=1
passed=0 failed=0 skipped=0 name= bad=0 why=

complain() {
    bad=1
    echo "  $name: $*"
}

# Runs the program; $status, out and err are what it left.
run() {
    "$gpt" "$@" >out 2>err </dev/null
    status=$?
}

# works ARGS...: status 0; warnings at most on stderr.
works() {
    run "$@"
    [ $status -eq 0 ] || complain "'$*': status $status: $(head -n 3 err)"
    said=$(grep '^train_gpt: ' err | grep -v '^train_gpt: warning: ')
    [ -z "$said" ] || complain "'$*': said $said"
}

# fails STATUS WORDS ARGS...: that status, one sentence with the words on stderr, nothing on stdout.
fails() {
    want=$1 words=$2
    shift 2
    run "$@"
    [ $status -eq "$want" ] || complain "'$*': status $status, not $want: $(head -n 3 err)"
    [ ! -s out ] || complain "'$*': stdout holds $(head -n 1 out)"
    [ "$(wc -l <err)" -eq 1 ] || complain "'$*': stderr has $(wc -l <err) lines: $(head -n 3 err)"
    grep -q '^train_gpt: ' err || complain "'$*': stderr is $(head -n 1 err)"
    grep -qF -- "$words" err || complain "'$*': expected '$words', found $(head -n 1 err)"
}

holds() { # FILE WORDS
    grep -qF -- "$2" "$1" || complain "$1 lacks '$2': $(head -n 3 "$1")"
}

# text.txt: simple sentences.
make_text() {
    awk 'BEGIN {
        split("the a one this that", d, " "); split("cat dog bird fish fox", s, " ")
        split("sees likes eats hears finds", v, " ")
        for (i = 0; i < 1500; i++) {
            x = (i * 7919 + int(i / 7) * 31) % 625
            printf "%s %s %s %s %s.\n", d[x % 5 + 1], s[int(x / 5) % 5 + 1], v[int(x / 25) % 5 + 1],
                d[(x + i) % 5 + 1], s[int(x / 125) % 5 + 1]
        }
    }' >text.txt
}

# tiny.json: a model of that text.
make_config() {
cat >tiny.json <<'END'
{
  "model": {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 300, "seq_len": 32},
  "attention": {"type": "lrkv", "rank": 3},
  "data": {"train": "data/train_*.bin", "val": "data/val_*.bin", "tokenizer": "data/tokenizer.json"},
  "batch": {"tokens": 128},
  "schedule": {"warmup_steps": 2},
  "train": {"steps": 20, "eval_every": 10, "eval_tokens": 256, "sample_every": 10, "threads": 1},
  "checkpoint": {"dir": "run", "every": 8}
}
END
}

# A case that has nothing to test says why.
skip() {
    why=$*
}

run_cases() {
    for name in "$@"; do
        bad=0 why=
        $name
        if [ $bad -ne 0 ]; then
            failed=$((failed + 1)) && echo "FAIL $name"
        elif [ -n "$why" ]; then
            skipped=$((skipped + 1)) && echo "skip $name: $why"
        else
            passed=$((passed + 1)) && echo "ok   $name"
        fi
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
}
