#!/bin/sh
# run_tests.sh PROGRAM... - runs test programs and adds up their last lines.
# The last line printed is "N passed, N failed, N skipped"; status 1 when anything failed.
# Tests use small models: threads that wait should sleep, not spin, above all on a busy machine.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
passed=0 failed=0 skipped=0
for program in "$@"; do
    log="$program.log"
    "$program" >"$log" 2>&1
    status=$?
    line=$(tail -n 1 "$log")
    case "$line" in
    *" passed, "*" failed, "*" skipped")
        set -- $(echo "$line" | tr -d ',')
        passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
        [ "$3" -eq 0 ] && [ "$status" -ne 0 ] && failed=$((failed + 1)) && set -- $1 $2 1
        ;;
    *) failed=$((failed + 1)) && set -- 0 passed 1 ;;
    esac
    echo "$program: $line"
    grep '^skip ' "$log"
    [ "$3" -eq 0 ] || { echo "--- $program (status $status)" && cat "$log"; }
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
