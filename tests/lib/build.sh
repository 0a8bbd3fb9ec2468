# shellcheck shell=sh
# For functions/build, clients/build and cluster/build: builds a program only if its sources have
# changed, and prints the result in one line. The scripts source this file (POSIX sh), after they
# have set $here to their own folder.
#
# Under OUTDIR:  KIND/NAME   the programs; KIND is functions, clients or cluster
#                work/       files that the programs need at run time (node_modules, venv)
#                logs/       the log of each program's last build
#                stamps/     a fingerprint of the sources of each program
#                go/ npm/ pip/  the tools' download caches, unless the caller's
#                            environment (GOMODCACHE, GOCACHE, npm_config_cache,
#                            PIP_CACHE_DIR) names others

# shellcheck source-path=SCRIPTDIR source=tools.sh
# shellcheck disable=SC2154 # The script that sources this one sets it.
. "$here/../lib/tools.sh"

# start KIND [OUTDIR]: sets $out and $bin, and waits for another build of the same OUTDIR.
start() {
    kind=$1
    out=${2:-$here/../.cache}
    mkdir -p "$out" && out=$(cd "$out" && pwd)
    bin=$out/$kind
    mkdir -p "$bin" "$out/work" "$out/logs" "$out/stamps"
    if have flock; then
        exec 9>"$out/$kind.lock"
        flock 9
    fi
    failures=0

    # The caller's Go settings must not change the build. Go asks no checksum database, because
    # go.sum is complete; -mod=readonly keeps it unchanged. -modcacherw lets `rm -rf` remove the
    # module cache.
    export GOFLAGS='-mod=readonly -modcacherw -buildvcs=false' GOWORK=off CGO_ENABLED=0
    # Go's compiler collects garbage less often: this saves a fifth of the time and costs memory.
    export GOGC=400
    export GOMODCACHE="${GOMODCACHE:-$out/go/mod}" GOCACHE="${GOCACHE:-$out/go/build}"
    export npm_config_cache="${npm_config_cache:-$out/npm}"
    export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$out/pip}" PIP_DISABLE_PIP_VERSION_CHECK=1
}

# program NAME MISSING SOURCES RECIPE: builds $bin/NAME by calling RECIPE NAME $bin/NAME, unless the
# program is up to date, or MISSING names a tool that the machine lacks. If the program is skipped
# or its build fails, its old file is removed, so that no test uses it.
program() {
    name=$1 missing=$2 sources=$3 recipe=$4
    path=$bin/$name stamp=$out/stamps/$kind-$name log=$out/logs/$kind-$name.log
    if [ -n "$missing" ]; then
        rm -f "$path" "$stamp"
        echo "skipped $name: $missing"
        return
    fi
    # Launchers of interpreted programs contain absolute paths, so the fingerprint includes $out.
    want=$({ echo "$out"; fingerprint "$sources" "$here/build" "$here/../lib/build.sh"; } | sha256sum)
    if [ -x "$path" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        echo "built $name $path"
        return
    fi
    rm -f "$path" "$stamp"
    echo "building $name, log in $log" >&2
    if "$recipe" "$name" "$path" >"$log" 2>&1 </dev/null; then
        echo "$want" >"$stamp"
        echo "built $name $path"
    else
        rm -f "$path"
        failures=$((failures + 1))
        tail -n 20 "$log" >&2
        echo "failed $name: the whole log is $log"
    fi
}

# finish: returns the build script's exit code.
finish() {
    [ "$failures" -eq 0 ]
}

# fingerprint PATH...: prints the name and hash of each file, in the same order on every machine.
fingerprint() {
    find "$@" -type f ! -path '*/node_modules/*' ! -path '*/__pycache__/*' -print |
        LC_ALL=C sort | while IFS= read -r file; do sha256sum "$file"; done
}

# go_build MODULE_DIR PACKAGE PATH: builds a static binary that does not contain the builder's
# paths.
go_build() {
    (cd "$1" && go build -trimpath -ldflags '-s -w' -o "$3" "$2")
}

# launcher PATH COMMAND...: writes a script to PATH that runs COMMAND with the script's arguments
# appended. The words of COMMAND may contain spaces, but no quotes.
launcher() {
    target=$1
    shift
    {
        printf '#!/bin/sh\nexec'
        printf ' "%s"' "$@"
        # shellcheck disable=SC2016
        printf ' "$@"\n'
    } >"$target" && chmod +x "$target"
}
