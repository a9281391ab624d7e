#!/bin/sh
# `make install`, `make uninstall`, `make wheels`: all may be repeated. Run from the top of the source tree, with the
# variables of the Makefile in the environment: PYTHON PREFIX SYSCONFDIR DESTDIR PIP_FLAGS PURGE WHEELS.
#
# The program's environment is built into a directory of its own for each installation, venv-VERSION-TIME, and then the
# entry in bin is switched over to it: a running daemon keeps its files, and a failed build changes nothing.
set -eu
umask 022 # root's own may be tighter, and the service's user has to read what is installed
unset PYTHONPATH PYTHONHOME

for directory in "$PREFIX" "$SYSCONFDIR"; do
    case $directory in /*) ;; *) echo "vllm-supervisor: PREFIX and SYSCONFDIR must be absolute: $directory" >&2; exit 1 ;; esac
done
[ -z "$DESTDIR" ] || DESTDIR=$(realpath -m "$DESTDIR")

user=vllm-supervisor
lib=$PREFIX/lib/vllm-supervisor
entry=$PREFIX/bin/vllm-supervisor
config=$SYSCONFDIR/vllm-supervisor
units=$PREFIX/lib/systemd/system
share=$PREFIX/share
doc=$share/doc/vllm-supervisor
zsh=$share/zsh/site-functions
[ ! -e /etc/debian_version ] || [ "$PREFIX" != /usr ] || zsh=$share/zsh/vendor-completions

say() { echo "vllm-supervisor: $*"; }
fail() { say "$*" >&2; exit 1; }
# Only without DESTDIR is this host the one to change: otherwise a package is built.
here() { [ -z "$DESTDIR" ]; }
booted() { here && [ -d /run/systemd/system ]; }
have() { command -v "$1" >/dev/null 2>&1; }

put() { # MODE SOURCE TARGET, with the paths of this installation in the text
    directory=$DESTDIR$(dirname "$3")
    [ -d "$directory" ] || install -d -m 755 "$directory"
    sed -e "s#/usr/bin/vllm-supervisor#$entry#g" -e "s#/etc/vllm-supervisor#$config#g" "$2" >"$DESTDIR$3.new"
    chmod "$1" "$DESTDIR$3.new"
    mv -f "$DESTDIR$3.new" "$DESTDIR$3"
}

check_host() {
    here || return 0
    [ "$(id -u)" = 0 ] || fail "cannot install: this needs root; or give DESTDIR= to build a package"
}

make_user() {
    here || return 0
    if have systemd-sysusers; then
        systemd-sysusers "$PREFIX/lib/sysusers.d/vllm-supervisor.conf"
    elif ! id -u $user >/dev/null 2>&1; then
        have useradd || fail "no user: neither systemd-sysusers nor useradd is here; create the system user $user"
        useradd --system --user-group --home-dir /var/lib/vllm-supervisor --no-create-home \
            --shell "$(command -v nologin || echo /usr/sbin/nologin)" $user
    fi
}

make_directories() {
    here || return 0
    if have systemd-tmpfiles; then
        systemd-tmpfiles --create "$PREFIX/lib/tmpfiles.d/vllm-supervisor.conf"
    else
        install -d -o $user -g $user -m 755 /run/vllm-supervisor
        install -d -o $user -g $user -m 750 /var/lib/vllm-supervisor /var/cache/vllm-supervisor /var/log/vllm-supervisor
    fi
}

check_python() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "cannot install: $PYTHON is not Python 3.11 or later; set PYTHON="
    "$PYTHON" -c 'import ensurepip, venv' ||
        fail "cannot install: $PYTHON cannot make environments; install the package python3-venv"
}

build() { # sets venv
    check_python
    version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' vllm_supervisor/__init__.py)
    venv=$lib/venv-$version-$(date -u +%Y%m%d%H%M%S)-$$
    built=$DESTDIR$venv
    install -d -m 755 "$DESTDIR$lib"
    trap 'rm -rf "$built"' EXIT
    trap 'exit 1' HUP INT TERM
    say "building $built"
    "$PYTHON" -m venv "$built"
    runs_for_all "$venv/bin/python" -c pass
    # shellcheck disable=SC2086 # flags are words
    "$built/bin/pip" install $PIP_FLAGS --no-compile --require-hashes -r requirements.txt
    # shellcheck disable=SC2086
    "$built/bin/pip" install $PIP_FLAGS --no-compile --no-deps .
    # Nothing is ever installed into it again, and nothing in it shall know where it was built.
    "$built/bin/pip" --quiet --quiet --disable-pip-version-check uninstall --yes pip setuptools
    find "$built/bin" -type f ! -name vllm-supervisor -delete
    rm -f "$built"/lib/python3*/site-packages/vllm_supervisor-*/direct_url.json
    sed -i "s#$DESTDIR$lib#$lib#g" "$built/pyvenv.cfg"
    "$built/bin/python" -m compileall -q -j 0 ${DESTDIR:+-s "$DESTDIR"} ${DESTDIR:+-p /} "$built/lib"
    write_entry "$built/bin/vllm-supervisor"
    runs_for_all "$venv/bin/vllm-supervisor" --version
}

write_entry() {
    # -I: neither variables nor the current directory can put other modules in place of ours.
    printf '#!%s -I\nimport sys\n\nfrom vllm_supervisor.cli.main import main\n\nsys.exit(main())\n' "$venv/bin/python" >"$1"
    chmod 755 "$1"
}

runs_for_all() { # COMMAND...: what root can run, the service's user need not be able to
    here || return 0
    # By way of a shell: setpriv gives up root's rights only with what it executes, so that it could reach a program that
    # nobody else can.
    if have setpriv; then
        setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'exec "$@"' sh "$@"
    else
        runuser -u nobody -- "$@"
    fi >/dev/null || fail "cannot install: only root can run $(readlink -f "$venv/bin/python"); give PYTHON= one that all can"
}

switch() {
    previous=
    [ ! -f "$DESTDIR$entry" ] || previous=$(sed -n "1s#^\#!\($lib/venv-[^/]*\)/.*#\1#p" "$DESTDIR$entry")
    install -d -m 755 "$DESTDIR$PREFIX/bin"
    write_entry "$DESTDIR$entry.new"
    mv -f "$DESTDIR$entry.new" "$DESTDIR$entry"
    trap - EXIT
    for other in "$DESTDIR$lib"/venv-*; do
        [ "$other" = "$DESTDIR$venv" ] || used "$other" || rm -rf "$other"
    done
}

used() { # the previous one may be needed to go back; others as long as a process has them mapped or was started by them
    here || return 1
    [ "$1" != "$previous" ] || return 0
    # The pattern comes by a pipe: as an argument, grep would find itself.
    echo "$1/" | grep -qsF -f - /proc/[0-9]*/maps || echo "$1/" | grep -qsaF -f - /proc/[0-9]*/cmdline
}

put_files() {
    for unit in systemd/*; do put 644 "$unit" "$units/$(basename "$unit")"; done
    put 644 etc/completions/vllm-supervisor.bash "$share/bash-completion/completions/vllm-supervisor"
    put 644 etc/completions/_vllm-supervisor "$zsh/_vllm-supervisor"
    put 644 etc/completions/vllm-supervisor.fish "$share/fish/vendor_completions.d/vllm-supervisor.fish"
    for page in etc/man/*.[58]; do put 644 "$page" "$share/man/man${page##*.}/$(basename "$page")"; done
    put 644 README.md "$doc/README.md"
    put 644 CHANGELOG.md "$doc/CHANGELOG.md"
    put 644 etc/config.yaml "$doc/config.yaml"
    for example in etc/examples/*; do put 644 "$example" "$doc/examples/$(basename "$example")"; done
}

put_config() {
    [ -d "$DESTDIR$config" ] || install -d -m 755 "$DESTDIR$config"
    # Files that are added, for instances, get the service's group: they too need not be open to everybody.
    ! here || { chgrp $user "$config" && chmod g+s "$config"; }
    # Keys may stand in it, whatever the advice: others do not read it.
    if [ -e "$DESTDIR$config/config.yaml" ] || [ -L "$DESTDIR$config/config.yaml" ]; then
        cmp -s etc/config.yaml "$DESTDIR$config/config.yaml" ||
            say "kept $config/config.yaml as it is; the one of this version is $doc/config.yaml"
    else
        put 640 etc/config.yaml "$config/config.yaml"
        ! here || chgrp $user "$config/config.yaml"
    fi
}

install_all() {
    check_host
    # Before anything else: it takes the network, and is what can fail.
    build
    put 644 etc/sysusers.conf "$PREFIX/lib/sysusers.d/vllm-supervisor.conf"
    put 644 etc/tmpfiles.conf "$PREFIX/lib/tmpfiles.d/vllm-supervisor.conf"
    make_user
    make_directories
    put_files
    put_config
    switch
    say "installed $version as $DESTDIR$entry"
    booted || return 0
    systemctl daemon-reload
    for unit in $(active); do
        say "$unit still runs the version it was started with; systemctl restart $unit"
    done
    say "next: edit $config/config.yaml; vllm-supervisor check; systemctl enable --now vllm-supervisor"
}

active() {
    systemctl list-units --plain --no-legend --state=active 'vllm-supervisor.service' 'vllm-supervisor@*.service' |
        cut -d ' ' -f 1
}

uninstall_all() {
    check_host
    if booted; then
        # The socket first: it would start the service again. `disable` by file, so that instances that do not run go too.
        for unit in vllm-supervisor.socket vllm-supervisor.service 'vllm-supervisor@*.service'; do
            systemctl stop "$unit" 2>/dev/null || true
        done
        systemctl reset-failed 'vllm-supervisor*' 2>/dev/null || true
        rm -rf /run/vllm-supervisor
        for link in /etc/systemd/system/*.wants/vllm-supervisor.service /etc/systemd/system/*.wants/vllm-supervisor.socket \
            /etc/systemd/system/*.wants/vllm-supervisor@*.service; do
            [ ! -L "$link" ] || rm -f "$link"
        done
    fi
    for unit in vllm-supervisor.service vllm-supervisor@.service vllm-supervisor.socket vllm-supervisor-devices.service; do
        rm -f "$DESTDIR$units/$unit"
    done
    rm -rf "$DESTDIR$lib" "$DESTDIR$doc"
    rm -f "$DESTDIR$entry" "$DESTDIR$PREFIX/lib/sysusers.d/vllm-supervisor.conf" \
        "$DESTDIR$PREFIX/lib/tmpfiles.d/vllm-supervisor.conf" "$DESTDIR$zsh/_vllm-supervisor" \
        "$DESTDIR$share/bash-completion/completions/vllm-supervisor" \
        "$DESTDIR$share/fish/vendor_completions.d/vllm-supervisor.fish" \
        "$DESTDIR$share/man/man8/vllm-supervisor.8" "$DESTDIR$share/man/man5/vllm-supervisor.yaml.5"
    if [ -n "$PURGE" ] && [ "$PURGE" != 0 ]; then
        purge
    else
        say "removed; kept are $config, drop-ins, /opt/vllm-supervisor and what the service wrote: PURGE=1 removes them too"
    fi
    ! booted || systemctl daemon-reload
}

purge() {
    rm -rf "$DESTDIR$config"
    here || return 0
    rm -rf /etc/systemd/system/vllm-supervisor*.service.d /etc/systemd/system/vllm-supervisor.socket.d \
        /run/vllm-supervisor /opt/vllm-supervisor /var/lib/vllm-supervisor /var/cache/vllm-supervisor /var/log/vllm-supervisor
    if id -u $user >/dev/null 2>&1 && have userdel; then
        userdel $user || say "the user $user stays: it still has processes"
        # Left by userdel where others were made members, as for the control socket.
        ! have groupdel || groupdel $user 2>/dev/null || true
    fi
    say "removed with configuration, state, logs and the user $user"
}

fetch_wheels() { # all that `build` would take from the network, for a host that has none
    check_python
    install -d "$WHEELS"
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    trap 'exit 1' HUP INT TERM
    "$PYTHON" -m venv "$built"
    # Apart: pip wants either hashes for everything, or for nothing.
    # shellcheck disable=SC2086 # flags are words
    "$built/bin/pip" download $PIP_FLAGS --require-hashes -r requirements.txt -d "$WHEELS"
    requires=$("$PYTHON" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
    # shellcheck disable=SC2086
    "$built/bin/pip" download $PIP_FLAGS $requires -d "$WHEELS"
    say "fetched; there: make install PIP_FLAGS=\"-q --no-index --find-links $WHEELS\""
}

case ${1:-} in
    wheels) fetch_wheels ;;
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) fail "usage: install.sh install|uninstall|wheels" ;;
esac
