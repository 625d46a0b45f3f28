#!/bin/bash
# Stands in for ssh where hosts are to have processors of their own: it records what a host answers
# and how long it took, then has the host wait as long and answer that. The connection is real.
#
# REPLAY is a folder with one for each host in it, RECORD is set while that is being written.
set -u
command=${*: -1}
host=${*: -2:1}
case $command in
    "/bin/sh -c "*) ;;
    *) exec ssh "$@" ;; # no task: a question about the connection
esac
mkdir -p "$REPLAY/$host"
cd "$REPLAY/$host" || exit 255
read -r step 2>/dev/null <step
step=$((${step:-0} + 1))
echo "$step" >step
if [ -n "${RECORD:-}" ]; then
    begun=$EPOCHREALTIME
    ssh "$@" >"$step.answer" 2>"$step.said"
    status=$?
    ended=$EPOCHREALTIME
    echo "$status $((${ended/./} - ${begun/./}))" >"$step.took"
    cat "$step.said" >&2
    cat "$step.answer"
    exit "$status"
fi
read -r status micros <"$step.took" || exit 255
cat <&0 >/dev/null 2>&1 & # what the task would have run; where it is no input, nobody closes it
cat "$step.said" >&2
printf -v seconds '%d.%06d' $((micros / 1000000)) $((micros % 1000000))
exec ssh "${@:1:$#-1}" "sleep $seconds; cat; exit $status" <"$step.answer"
