#!/bin/sh
# check_style.sh - rules that the compiler does not know: who may include whom, forbidden calls, sizes.
# Prints every violation; status 1 when there is one.
cd "$(dirname "$0")/.." || exit 1
bad=0
fail() {
    echo "$1" && bad=1
}

sources() { git ls-files --cached --others --exclude-standard -- "$@" | grep -E '\.(c|h|cu|cuh|cpp)$'; }

# includes FOLDER PATTERN WHY: no file of FOLDER may include what matches PATTERN.
includes() {
    hits=$(sources "$1" | xargs -r grep -nE "^ *#include \"($2)" 2>/dev/null)
    [ -z "$hits" ] || fail "$hits
  ($3)"
}

# Dependencies point one way: mains -> gpt/run -> commands -> gpt/model -> attention -> kernels/ops.h
# -> gpt/{util,rng,tensor}.
includes kernels '(attention|data)/|gpt/(model|config|train|optim|checkpoint|run|plan|tokenizer)' \
    'kernels/ sees neither model, config, attention nor data'
includes attention 'data/|gpt/|kernels/(cpu|cuda)/' 'attention/ sees ops and tensors only'
includes data 'kernels/|attention/|gpt/(model|config|train|optim|checkpoint)' 'data/ sees no kernels and no model'
hits=$(sources gpt train_gpt.c | xargs grep -nE '^ *#include "kernels/(cpu|cuda)/' 2>/dev/null)
[ -z "$hits" ] || fail "$hits
  (nothing above kernels/ops.h knows a device)"
hits=$(sources gpt attention data kernels train_gpt.c | xargs grep -lE '^ *#include "gpt/model_impl.h"' | grep -v '^gpt/model')
[ -z "$hits" ] || fail "$hits: gpt/model_impl.h belongs to gpt/model*.c"

# All kernels end in one program. Two types of one name, or two functions of one signature, in different
# files would be taken for the same one by the linker, without a word.
# shellcheck disable=SC2016
hits=$(sources kernels/cuda | xargs awk '
    match($0, /^(template <[^>]*> )?(typedef )?struct [A-Za-z0-9_]+ \{/) {
        name = substr($0, RSTART, RLENGTH - 2)
        sub(/.*struct /, "", name)
        print "struct " name
    }
    /^(__device__|__global__)/ { text = "" ; open = 1 }
    open { text = text " " $0 }
    open && /[{;]$/ {
        open = 0
        gsub(/__launch_bounds__\([^)]*\)/, "", text)
        gsub(/[ \t]+/, " ", text)
        sub(/ \{$/, "", text)
        if (match(text, /[A-Za-z0-9_]+\(/)) print substr(text, RSTART)
    }' | sort | uniq -d)
[ -z "$hits" ] || fail "$hits
  (defined twice in kernels/cuda)"

# Calls that have safer neighbours.
hits=$(sources . | grep -v '^test/' | xargs grep -nE '(^|[^_a-zA-Z0-9])(sprintf|strcpy|strcat|atoi|atof|rand|gets|strtok)\(')
[ -z "$hits" ] || fail "$hits
  (use snprintf, Buf, parse_i64, parse_f64, rng.h)"

# Fast-math breaks every NaN check.
hits=$(grep -nE -- '-Ofast|-ffast-math|use_fast_math' Makefile)
[ -z "$hits" ] || fail "$hits
  (no fast-math)"

# Sizes. The Unicode table is generated.
for f in $(sources . | grep -v unicode_table); do
    lines=$(wc -l <"$f")
    [ "$lines" -le 400 ] || fail "$f: $lines lines, at most 400"
    long=$(awk 'length($0) > 100 { print FILENAME ":" FNR }' "$f")
    [ -z "$long" ] || fail "$long: longer than 100 columns"
done
[ "$(wc -l <train_gpt.c)" -le 80 ] || fail "train_gpt.c: at most 80 lines"

# Functions of at most 60 lines (kernels 100): from a line that opens a body at column 0 to its "}".
long=$(sources . | xargs awk '
    FNR == 1 { open = 0 }
    /^[a-zA-Z_].*\) \{$/ || /^    .*\) \{$/ && !open && prev ~ /^[a-zA-Z_].*[(,]$/ { open = FNR; kernel = /__global__/ || prev ~ /__global__/ }
    /^}/ { if (open && FNR - open + 1 > (kernel ? 100 : 60)) print FILENAME ":" open ": " FNR - open + 1 " lines"; open = 0 }
    { prev = $0 }')
[ -z "$long" ] || fail "$long
  (functions have at most 60 lines, kernels 100)"

[ $bad -eq 0 ] && echo "style: ok"
exit $bad
