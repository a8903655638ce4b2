#!/bin/sh
# Install EdgeLink on this machine: fetch its package, check its SHA-256, install it. Run it as root:
#
#   curl -fsSL https://mirror.example.org/edgelink/install.sh | sudo sh -s -- --from https://mirror.example.org/edgelink
#
#   --from URL|DIR   where the packages lie: a mirror, or a directory
#   --relay          install Mosquitto, too, which the relay needs
#   --bundle         the bundle also where apt could install the .deb
#
# `make packages` writes this file with the packages' names and checksums. So the packages may come from anywhere: this file
# is the one to get from a place that you trust.
set -eu

main() {
  source='@SOURCE@'
  relay=
  bundle=
  while [ $# -gt 0 ]; do
    case $1 in
      --from)
        [ $# -ge 2 ] || fail 2 "--from needs an address or a directory"
        source=$2
        shift
        ;;
      --relay) relay=1 ;;
      --bundle) bundle=1 ;;
      *) fail 2 "install.sh: there is no option $1; the options are --from URL|DIR, --relay and --bundle" ;;
    esac
    shift
  done
  [ -n "$source" ] || fail 2 "install.sh: it is not said where the packages lie: --from URL, or --from DIR"
  [ "$(id -u)" = 0 ] || fail 78 "install.sh: only root may install EdgeLink: pipe it into \`sudo sh\`"

  kind=tar.gz
  if [ -z "$bundle" ] && command -v apt-get >/dev/null && command -v dpkg >/dev/null; then kind=deb; fi
  packaged "$(uname -m)" "$kind"
  [ -n "$name" ] || fail 78 "install.sh: there is no package for $(uname -s) on $(uname -m)"

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work" # apt reads a package as a user of its own
  fetch "$source" "$name" "$work/$name"
  if ! echo "$sha256  $work/$name" | sha256sum --check --status; then
    fail 1 "install.sh: $source/$name is not the package that this install.sh was made for; nothing was installed. \
Get both from the same release"
  fi
  install_package
  if [ -n "$relay" ]; then install_broker; fi
  echo "next: \`sudo edgelink up TOKEN\` makes this machine a node, \`sudo edgelink up --relay\` the relay of a new network"
}

# Set name and sha256 of the package for the machine $1 of the kind $2.
packaged() {
  name=
  case "$1 $2" in
    # @PACKAGES@
  esac
}

fetch() { # the file $2 of the source $1, as $3
  case $1 in
    http://* | https://*)
      echo "fetching $2 from $1" >&2
      if command -v curl >/dev/null; then
        curl -fsSL --retry 3 --connect-timeout 10 -o "$3" "$1/$2"
      elif command -v wget >/dev/null; then
        wget -q --tries=3 --timeout=20 -O "$3" "$1/$2"
      else
        python3 -c 'import shutil, sys, urllib.request as u
shutil.copyfileobj(u.urlopen(sys.argv[1], timeout=20), open(sys.argv[2], "wb"))' "$1/$2" "$3"
      fi || fail 75 "install.sh: $1/$2 cannot be fetched, see above; nothing was installed. Check the address and the proxy variables"
      ;;
    *) cp -- "$1/$2" "$3" || fail 78 "install.sh: $1: has no $2; nothing was installed. Name the directory that has it: --from" ;;
  esac
}

install_package() {
  echo "installing $name" >&2
  if [ "$kind" = deb ]; then
    apt_install "$work/$name"
  else
    tar xzf "$work/$name" -C "$work"
    "$work/${name%.tar.gz}/install"
    command -v nft >/dev/null || echo "install nftables before \`edgelink up\`" >&2
  fi
}

install_broker() { # which starts by itself where it was not there; the relay runs one of its own
  if command -v mosquitto >/dev/null; then return; fi
  echo "installing Mosquitto" >&2
  [ "$kind" = deb ] || fail 78 "install.sh: EdgeLink is installed; install Mosquitto with this machine's package manager"
  apt_install mosquitto
  systemctl disable --now --quiet mosquitto || true
}

apt_install() { # packages, with the lists of now where those that are there do not do
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --allow-downgrades "$@" >"$work/apt.log" 2>&1 && return
  apt-get update --quiet >"$work/apt.log" 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --allow-downgrades "$@" >"$work/apt.log" 2>&1 && return
  cat "$work/apt.log" >&2
  fail 1 "install.sh: apt could not install $*, see above; mend that, and run this again"
}

fail() { # with the exit status $1: what, where, why and what to do
  printf '%s\n' "$2" >&2
  exit "$1"
}

main "$@" </dev/null # the last line: half a download does nothing
