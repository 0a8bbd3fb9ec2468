# shellcheck shell=sh
# Finds out which tools this machine lacks for programs of other projects, and installs them. Other
# scripts source this file (POSIX sh).

have() {
    command -v "$1" >/dev/null 2>&1
}

# no_go MODULE_DIR, no_node, no_python: each prints which tool is missing, if one is.
no_go() {
    if ! have go; then
        echo 'go is not installed'
        return
    fi
    need=$(sed -n 's/^go //p' "$1/go.mod")
    # This runs inside the module, because its go.mod can select a newer toolchain.
    got=$(cd "$1" && go env GOVERSION 2>/dev/null | sed 's/^go//')
    if [ "$(printf '%s\n%s\n' "$need" "${got:-0}" | sort -V | head -n 1)" != "$need" ]; then
        echo "go $need or newer is needed, this is $(go version | cut -d ' ' -f 3)"
    fi
}

no_node() {
    if ! have node; then
        echo 'node is not installed'
    elif ! have npm; then
        echo 'npm is not installed'
    fi
}

no_python() {
    if ! have python3; then
        echo 'python3 is not installed'
    elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "python3 3.10 or newer is needed, this is $(python3 -V | cut -d ' ' -f 2)"
    elif ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "python3 lacks the venv module (Debian's package python3-venv)"
    fi
}

no_chromium() {
    have chromium || have chromium-browser || have google-chrome ||
        echo "chromium is not installed (Debian's package chromium)"
}

no_prometheus() {
    if ! have prometheus || ! have promtool; then
        echo "prometheus is not installed (Debian's package prometheus)"
    fi
}

no_registry() {
    have docker-registry || echo "docker-registry is not installed (Debian's package docker-registry)"
}

# no_runc: prints why there is no container on this machine, if there is none.
no_runc() {
    have runc || echo "runc is not installed (Debian's package runc). "
    [ "$(id -u)" -eq 0 ] || echo 'containers of runc need root'
}

# no_sandboxes: prints why this machine cannot run sandboxes, if it cannot.
no_sandboxes() {
    unshare --user --map-root-user --mount --pid --fork true 2>/dev/null ||
        echo 'this machine does not allow user namespaces'
}

no_shellcheck() {
    have shellcheck || echo "shellcheck is not installed (Debian's package shellcheck)"
}

# no_shells: prints which shell of the completion tests is missing, if one is.
no_shells() {
    for shell in bash zsh fish; do
        if ! have "$shell"; then
            echo "$shell is not installed (Debian's package $shell)"
            return
        fi
    done
}

# no_cluster: prints why this machine cannot run a test cluster, if it cannot.
no_cluster() {
    if [ "$(id -u)" -ne 0 ]; then
        echo 'a test cluster needs root, for namespaces'
        return
    fi
    if ! unshare --net --mount --pid --fork true 2>/dev/null; then
        echo 'this machine does not allow new namespaces'
        return
    fi
    for tool in $cluster_tools; do
        if ! have "$tool"; then
            echo "$tool is not installed"
            return
        fi
    done
    if [ ! -x /usr/lib/cni/bridge ]; then
        echo "/usr/lib/cni/bridge is missing (Debian's package containernetworking-plugins)"
    fi
}

cluster_tools='containerd runc docker-registry htpasswd nft ip nsenter openssl curl gcc'
cluster_packages='containerd runc containernetworking-plugins docker-registry apache2-utils nftables iproute2 util-linux openssl curl gcc
    libc6-dev'

# install_tools: installs missing tools by apt-get. It never fails: programs whose tools are still
# missing are skipped, with the reason.
install_tools() {
    packages=''
    have go || packages="$packages golang-go"
    have node || packages="$packages nodejs"
    have npm || packages="$packages npm"
    [ -z "$(no_python)" ] || packages="$packages python3 python3-venv"
    have c++ || packages="$packages g++"
    [ -z "$(no_chromium)" ] || packages="$packages chromium fonts-inter"
    [ -z "$(no_prometheus)" ] || packages="$packages prometheus"
    [ -z "$(no_registry)" ] || packages="$packages docker-registry"
    [ "$(id -u)" -ne 0 ] || have runc || packages="$packages runc"
    [ "$(id -u)" -ne 0 ] || have umoci || packages="$packages umoci"
    have shellcheck || packages="$packages shellcheck"
    [ -z "$(no_shells)" ] || packages="$packages bash zsh fish"
    [ "$(id -u)" -ne 0 ] || [ -z "$(no_cluster)" ] || packages="$packages $cluster_packages"
    if [ -z "$packages" ]; then
        return 0
    fi
    if ! have apt-get || [ "$(id -u)" -ne 0 ]; then
        echo "cannot install without root and apt-get:$packages" >&2
        return 0
    fi
    echo "installing:$packages" >&2
    # shellcheck disable=SC2086
    if ! { apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages; } >&2; then
        echo "apt-get could not install:$packages" >&2
    fi
    return 0
}
