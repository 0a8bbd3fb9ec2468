# shellcheck shell=sh
# What functions/build and clients/build share: build a foreign program once, know
# when it is up to date, and say in one line what became of it. Sourced, POSIX sh;
# the caller has set $here to its own folder.
#
# Under OUTDIR:  KIND/NAME   the programs, KIND being functions or clients
#                work/       what the programs need beside them (node_modules, venv)
#                logs/       the last build of each program
#                stamps/     fingerprint of the sources each program was built from
#                go/ npm/ pip/  the tools' download caches, unless the caller's
#                            environment (GOMODCACHE, GOCACHE, npm_config_cache,
#                            PIP_CACHE_DIR) names others

# shellcheck source-path=SCRIPTDIR source=tools.sh
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

    # Nothing of the caller's Go setup may change what is built. A complete go.sum is
    # the only authority on hashes, so -mod=readonly, and no checksum database is asked.
    # -modcacherw lets `rm -rf` remove the module cache.
    export GOFLAGS='-mod=readonly -modcacherw -buildvcs=false' GOWORK=off CGO_ENABLED=0
    # The compiler collects its garbage four times as seldom: a fifth less time for some memory.
    export GOGC=400
    export GOMODCACHE="${GOMODCACHE:-$out/go/mod}" GOCACHE="${GOCACHE:-$out/go/build}"
    export npm_config_cache="${npm_config_cache:-$out/npm}"
    export PIP_CACHE_DIR="${PIP_CACHE_DIR:-$out/pip}" PIP_DISABLE_PIP_VERSION_CHECK=1
}

# program NAME MISSING SOURCES RECIPE: builds $bin/NAME by calling RECIPE NAME $bin/NAME,
# unless it is up to date, or MISSING says what the machine lacks. A program that
# is skipped or whose build failed is removed: tests must not find an old one.
program() {
    name=$1 missing=$2 sources=$3 recipe=$4
    path=$bin/$name stamp=$out/stamps/$kind-$name log=$out/logs/$kind-$name.log
    if [ -n "$missing" ]; then
        rm -f "$path" "$stamp"
        echo "skipped $name: $missing"
        return
    fi
    # The launchers of interpreted programs hold absolute paths, hence $out.
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

# finish: the build script's exit code.
finish() {
    [ "$failures" -eq 0 ]
}

# fingerprint PATH...: names and contents of all files, in one order on every machine.
fingerprint() {
    find "$@" -type f ! -path '*/node_modules/*' ! -path '*/__pycache__/*' -print |
        LC_ALL=C sort | while IFS= read -r file; do sha256sum "$file"; done
}

# go_build MODULE_DIR PACKAGE PATH: a static binary without the builder's paths.
go_build() {
    (cd "$1" && go build -trimpath -ldflags '-s -w' -o "$3" "$2")
}

# launcher PATH COMMAND...: a script at PATH that becomes COMMAND with its own
# arguments added. The words of COMMAND may hold spaces, not quotes.
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
