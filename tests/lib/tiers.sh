# shellcheck shell=bash
# Runs the tiers of tests/run, and records which of them succeeded, failed or were skipped, and why.
# Under CI=true a skipped tier is a failure, because nobody reads the list of skipped tiers there.

tier_lines=''
tier_failures=0
tier_skips=0
declare -A background_tiers=()

# tier NAME COMMAND...: runs the command; its exit code is the tier's result. The command must be a
# program: `set -e` would have no effect in a shell function that is called from here.
tier() {
    echo "== $1" >&2
    local code=0
    "${@:2}" || code=$?
    tier_ended "$1" "$code"
}

# unless WHY tier|background NAME COMMAND...: runs the tier if WHY is empty. Otherwise the tier
# counts as skipped, or as failed if WHY reports a failed build.
unless() {
    case $1 in
    '') "${@:2}" ;;
    *'failed '*) tier_ended "$3: $1" 1 ;;
    *)
        tier_lines+="SKIPPED  $3: $1"$'\n'
        tier_skips=$((tier_skips + 1))
        ;;
    esac
}

# background NAME COMMAND...: runs a tier in the background, in its own process group.
# wait_background waits for all background tiers, and end_background ends them.
background() {
    local log
    log=$PORCH_FN_TEST_CACHE/logs/$(printf '%s' "$1" | tr -c 'a-z0-9' -).log
    mkdir -p "${log%/*}"
    echo "== $1, in the background, log in $log" >&2
    setsid "${@:2}" >"$log" 2>&1 &
    background_tiers[$!]=$1$'\t'$log
}

wait_background() {
    local pid code name log
    for pid in "${!background_tiers[@]}"; do
        IFS=$'\t' read -r name log <<<"${background_tiers[$pid]}"
        code=0
        wait "$pid" || code=$?
        [ "$code" -eq 0 ] || tail -n 200 "$log" >&2
        tier_ended "$name" "$code"
        unset "background_tiers[$pid]"
    done
}

end_background() {
    local pid
    for pid in "${!background_tiers[@]}"; do
        kill -TERM -- "-$pid" || true
    done
}

# tier_ended NAME CODE: records the result of a tier.
tier_ended() {
    if [ "$2" -eq 0 ]; then
        tier_lines+="ok       $1"$'\n'
    else
        tier_lines+="FAILED   $1: exit code $2"$'\n'
        tier_failures=$((tier_failures + 1))
    fi
}

# missing_programs SCRIPT OUTDIR: runs SCRIPT, which builds programs of other projects in OUTDIR.
# Prints why programs are missing.
missing_programs() {
    local lines code=0
    lines=$("$1" "$2") || code=$?
    printf '%s\n' "$lines" | sed -n '/^built /d; /./s/$/; /p' | tr -d '\n'
    case "$code $lines" in
    0* | *'failed '*) ;;
    *) printf 'failed %s' "$1" ;;
    esac
}

# tier_summary: prints one line per tier and returns the exit code of the whole run.
tier_summary() {
    printf '\n%s' "$tier_lines"
    [ "$tier_skips" -eq 0 ] || echo 'tests/run --install installs what is missing'
    if [ "$tier_failures" -gt 0 ]; then
        return 1
    fi
    if [ "$tier_skips" -gt 0 ] && [ "${CI:-}" = true ]; then
        echo 'CI=true: a skipped tier is a failure'
        return 1
    fi
}
