# shellcheck shell=sh
# How tests/run keeps account: which tiers ran, failed or were skipped, and for want of
# what. Sourced, POSIX sh. A skip is no failure on a developer's machine; under CI=true
# it is one, since there nobody reads the list.

tiers=''
tier_failures=0
tier_skips=0

# tier NAME COMMAND...: runs the command; its exit code is the tier's result. Make it a
# program: in a shell function called from here, `set -e` would have no effect.
tier() {
    tier_name=$1
    shift
    echo "== $tier_name" >&2
    if "$@"; then
        tier_note "ok       $tier_name"
    else
        tier_fail "$tier_name" "exit code $?"
    fi
}

# tier_fail NAME WHY
tier_fail() {
    tier_note "FAILED   $1: $2"
    tier_failures=$((tier_failures + 1))
}

# tier_skip NAME WHY
tier_skip() {
    tier_note "skipped  $1: $2"
    tier_skips=$((tier_skips + 1))
}

# build_foreign TESTS_DIR OUTDIR: builds functions, clients and test cluster. Each program
# that the machine cannot build is a skip, each that fails to build is a failure.
# Sets $foreign_skips to the names of the former.
build_foreign() {
    foreign_skips=''
    for foreign in functions clients cluster; do
        echo "== build of tests/$foreign" >&2
        foreign_lines=$("$1/$foreign/build" "$2") || true
        while IFS=' ' read -r verdict name rest; do
            case $verdict in
            built) ;;
            skipped)
                tier_skip "tests/$foreign ${name%:}" "$rest"
                foreign_skips="$foreign_skips ${name%:}"
                ;;
            *) tier_fail "tests/$foreign ${name%:}" "${rest:-the build script stopped early}" ;;
            esac
        done <<LINES
$foreign_lines
LINES
    done
}

tier_note() {
    tiers="$tiers$1
"
}

# tier_summary: prints one line per tier and returns the exit code of the whole run.
tier_summary() {
    printf '\n%s' "$tiers"
    if [ "$tier_failures" -gt 0 ]; then
        return 1
    fi
    if [ "$tier_skips" -gt 0 ] && [ "${CI:-}" = true ]; then
        echo 'CI=true: a skipped tier is a failure'
        return 1
    fi
}
