#!/bin/sh
# Fetch those that `make bench` compares, with pinned versions, into a folder of their own: nothing is installed in the
# system, and what cannot be had is left out and said so.
set -u
venv=$1
python=$2
pip="$venv/bin/pip install -q --disable-pip-version-check --no-input"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || exit 1
for project in supervisor==4.3.0 circus==0.19.0 model-hosting-container-standards==0.1.16; do
	$pip "$project" 2>"$venv/pip.err" || { echo "bench: $project cannot be installed here:"; tail -1 "$venv/pip.err"; } >&2
done
# Debian's packages are unpacked, not installed, with the libraries that they need.
debian=$(cd "$venv" && pwd)/debian
mkdir -p "$debian/archives"
if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
	for package in s6 runit; do
		[ -e "$debian/$package.version" ] && continue
		wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
			--no-enhances "$package" 2>/dev/null | grep -E "^($package|libs6|libskarnet|libexecline|execline)" | sort -u)
		if [ -n "$wanted" ] && (cd "$debian/archives" && apt-get download -qq $wanted 2>/dev/null); then
			for archive in "$debian"/archives/*.deb; do dpkg -x "$archive" "$debian"; done
			dpkg-deb -f "$debian"/archives/"$package"_*.deb Version >"$debian/$package.version"
		else
			echo "bench: Debian's package $package cannot be had here" >&2
		fi
	done
fi
